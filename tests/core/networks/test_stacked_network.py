from dataclasses import replace

import pytest
import torch
from federated_round import MULTICLASS, distance, make_clients, make_task, run_rounds, same_bits
from normalised import NormalisedMLP

from lit_fed.algorithms import FedAvg, FedEM, OfficialFedEM
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.networks.stacked_network import ForwardMemory
from lit_fed.core.task import Task
from lit_fed.core.types import Batch
from lit_fed.models import MLP, LeafCNN


def mlp(**fields):
    return make_task(MULTICLASS, network=lambda shape, outputs: MLP(shape, outputs, (5,)), **fields)


def batch(task, samples=6):
    x = torch.randn(samples, 4, dtype=torch.float64)
    return Batch(x, torch.randint(3, (samples,)), torch.arange(samples), torch.ones(samples))


class Counter:
    """Counts the forward passes of a task's network, by whether they track a gradient."""

    def __init__(self, task):
        self.tracked = self.untracked = 0
        task.network.register_forward_hook(self.count)

    def count(self, module, inputs, output):
        self.tracked += output.requires_grad
        self.untracked += not output.requires_grad


def test_the_gradient_of_a_remembered_pass_is_that_of_a_new_one():
    task, weight = mlp(), torch.rand(6, 2, dtype=torch.float64)
    models, some = task.init(2, 0), batch(task)
    remembering = replace(task, memory=ForwardMemory(some.x))
    assert same_bits(remembering.outputs(models, some.x), task.outputs(models, some.x))
    counter = Counter(task)
    found = remembering.value_and_grad(models, some, weight)
    assert counter.tracked == 0
    assert same_bits(found, task.value_and_grad(models, some, weight))
    assert counter.tracked == 2


@pytest.mark.parametrize("what", ["samples", "models", "twice"])
def test_only_the_very_same_pass_is_taken_and_only_once(what):
    task = mlp()
    models, some = task.init(2, 0), batch(task)
    remembering = replace(task, memory=ForwardMemory(some.x))
    remembering.outputs(models, some.x)
    if what == "samples":
        some = some._replace(x=some.x.clone())
    elif what == "models":
        models = task.init(2, 0)
    else:
        remembering.value_and_grad(models, some)
    counter = Counter(task)
    assert same_bits(remembering.value_and_grad(models, some), task.value_and_grad(models, some))
    assert counter.tracked == 4


def test_a_round_passes_the_first_batch_once():
    """Three clients of 6, 9 and 3 samples in batches of 4: the E-step passes the rest of each, M times."""
    task = mlp()
    counter = Counter(task)
    run_rounds(FedEM(num_components=2), train=make_clients([6, 9, 3], target=MULTICLASS), rounds=1, task=task)
    assert counter.tracked == 2 * (2 + 3 + 1)
    assert counter.untracked == 2 * 2  # the client of 3 samples has no rest


def test_an_algorithm_without_e_step_is_not_slowed_down():
    task = mlp()
    counter = Counter(task)
    run_rounds(FedAvg(), train=make_clients([6, 9, 3], target=MULTICLASS), rounds=1, task=task)
    assert (counter.tracked, counter.untracked) == (2 + 3 + 1, 0)


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
