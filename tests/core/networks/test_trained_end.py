"""What comes before the trained end is found, and computed once for all models, with the same bits."""

from dataclasses import replace

import pytest
import torch
from federated_round import MULTICLASS, same_bits
from torch import nn
from torch.nn import functional

from lit_fed.core.networks.layers import TrainedEnd, choose_trained
from lit_fed.core.task import Task
from lit_fed.core.types import Batch


class Counted(nn.Module):
    """A frozen layer that counts its passes."""

    def __init__(self):
        super().__init__()
        self.layer, self.passes = nn.Linear(4, 5), 0

    def forward(self, x):
        self.passes += 1
        return torch.tanh(self.layer(x))


class Parts(nn.Module):
    """A body and a head, and what may come between or behind them."""

    def __init__(self, between=None, behind=None):
        super().__init__()
        self.body, self.head = Counted(), nn.Linear(5, 3)
        self.between, self.behind = between, behind

    def forward(self, x):
        z = self.body(x)
        z = z if self.between is None else self.between(self, z)
        outputs = self.head(z)
        return outputs if self.behind is None else self.behind(self, outputs)


X = torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def task_of(build, trainable="head"):
    def network():
        one = build()
        choose_trained(one, trainable)
        return one

    return Task.create(network, MULTICLASS, dtype=torch.float64)


CASES = {
    "head": (Parts, "head", "head", True),
    "sequential": (
        lambda: nn.Sequential(Counted(), nn.Tanh(), nn.Linear(5, 4), nn.Linear(4, 3)),
        ["2", "3"],
        "2",
        True,
    ),
    "inside": (lambda: nn.Sequential(Counted(), nn.Sequential(nn.Tanh(), nn.Linear(5, 3))), ["1.*"], "1.1", True),
    "dropout": (lambda: Parts(lambda net, z: functional.dropout(z, 0.5, net.training)), "head", "head", False),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("axis", ["loop", "vmap"])
def test_the_same_bits_with_fewer_passes(case, axis):
    build, trainable, name, same = CASES[case]
    whole = replace(task_of(build, trainable), model_axis=axis)
    once = whole.with_end(X[:2])
    assert (once.end.name, once.end.same_in_training) == (name, same)
    models = whole.init(3, 0)
    body = next(module for module in whole.network.modules() if isinstance(module, Counted))
    batch = Batch(X, torch.arange(6) % 3, torch.arange(6), torch.ones(6))
    for function in (lambda task: task.outputs(models, X), lambda task: task.value_and_grad(models, batch)):
        found, passes = [], []
        for task in (whole, once):
            torch.manual_seed(5)
            body.passes = 0
            if axis == "loop" or same:
                found.append(function(task))
            passes.append(body.passes)
        assert len(found) < 2 or same_bits(*found)
        assert passes[1] <= 1 or not same
    body.passes = 0
    once.outputs(models, X)
    assert body.passes == 1


def test_dropout_right_before_belongs_to_the_end():
    whole = task_of(lambda: nn.Sequential(Counted(), nn.Sequential(nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 3))))
    once, models = whole.with_end(X[:2]), whole.init(2, 0)
    assert (once.end.name, once.end.same_in_training) == ("1.1", True)
    batch, found = Batch(X, torch.arange(6) % 3, torch.arange(6), torch.ones(6)), []
    for task in (whole, once):
        torch.manual_seed(5)
        found.append((task.value_and_grad(models, batch), task.outputs(models, X)))
    assert same_bits(*found)


@pytest.mark.parametrize(
    ("build", "trainable"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 3)), ["0.weight"]),  # nothing before it
        (lambda: Parts(behind=lambda net, outputs: 2 * outputs), "head"),  # something behind it
        (lambda: Parts(between=lambda net, z: net.head(z).sum() + z), "head"),  # reached twice
        (lambda: Parts(between=lambda net, z: z * net.head.bias.sum()), "head"),  # needed before
        (Parts, ["body.layer.bias"]),
        (Parts, "*"),
    ],
)
def test_networks_without_a_trained_end(build, trainable):
    assert task_of(build, trainable).with_end(X[:2]).end is None


def test_batches_of_each_model_and_a_frozen_bias_inside_the_end():
    whole = task_of(Parts, ["head.weight"])
    once, models = whole.with_end(X[:2]), whole.init(2, 0)
    assert isinstance(once.end, TrainedEnd)
    batch = Batch(X.view(2, 3, 4), torch.arange(6).view(2, 3) % 3, torch.arange(6).view(2, 3), torch.ones(2, 3))
    assert same_bits(*(task.value_and_grad(models, batch) for task in (whole, once)))
    assert same_bits(*(task.outputs(models, X) for task in (whole, once)))
