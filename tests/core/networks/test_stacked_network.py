import pytest
from federated_round import MULTICLASS, distance, make_clients, make_task, run_rounds
from normalised import NormalisedMLP

from lit_fed.algorithms import OfficialFedEM
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.task import Task
from lit_fed.models import MLP, LeafCNN


def mlp(**fields):
    return make_task(MULTICLASS, network=lambda shape, outputs: MLP(shape, outputs, (5,)), **fields)


@pytest.mark.parametrize("shuffle_per_component", [False, True])
def test_sequential_is_vectorized_over_rounds(shuffle_per_component):
    algorithm = OfficialFedEM(num_components=2, shuffle_per_component=shuffle_per_component)
    options = {"train": make_clients([6, 9, 3], target=MULTICLASS), "task": mlp(), "solver": LocalSolver(momentum=0.9)}
    one, other = (run_rounds(algorithm, trainer, **options) for trainer in (SequentialTrainer(), VectorizedTrainer()))
    assert distance((one.shared, one.states), (other.shared, other.states)) < 1e-10


def test_networks_that_train_as_they_predict():
    assert mlp().same_in_training
    assert not make_task(network=NormalisedMLP).same_in_training
    for dropout, same in ((0.5, False), (0.0, True)):
        task = Task.create(lambda: LeafCNN((1, 8, 8), 3, hidden_size=4, dropout=dropout), MULTICLASS)  # noqa: B023
        assert task.same_in_training is same
