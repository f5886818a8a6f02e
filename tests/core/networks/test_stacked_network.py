from federated_round import MULTICLASS, make_task
from normalised import NormalisedMLP

from lit_fed.core.task import Task
from lit_fed.models import MLP, LeafCNN


def mlp(**fields):
    return make_task(MULTICLASS, network=lambda shape, outputs: MLP(shape, outputs, (5,)), **fields)


def test_networks_that_train_as_they_predict():
    assert mlp().same_in_training
    assert not make_task(network=NormalisedMLP).same_in_training
    for dropout, same in ((0.5, False), (0.0, True)):
        task = Task.create(lambda: LeafCNN((1, 8, 8), 3, hidden_size=4, dropout=dropout), MULTICLASS)  # noqa: B023
        assert task.same_in_training is same
