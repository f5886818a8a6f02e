from dataclasses import replace

import pytest
import torch
from federated_round import MULTICLASS, distance, make_task
from torch import nn

from lit_fed.core import task as tasks
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.networks import products, stacked_network
from lit_fed.core.objective import Objective
from lit_fed.core.types import Batch
from lit_fed.models import LeafCNN, LeNet5, Linear

SHAPE = (2, 17, 16)


def lenets(channels_last=True, **fields):
    task = make_task(MULTICLASS, network=lambda *_: LeNet5(SHAPE, 3), **fields)
    return replace(task, channels_last=channels_last)


def batch(dtype=torch.float64, samples=5):
    torch.manual_seed(0)
    x = torch.randn(samples, *SHAPE, dtype=dtype)
    return Batch(x, torch.randint(3, (samples,)), torch.arange(samples), torch.tensor([1.0, 1, 0, 1, 1], dtype=dtype))


def passes(monkeypatch):
    """How often models were taken together."""
    seen, outputs = [], products.grouped_outputs
    for module in (stacked_network, tasks):
        monkeypatch.setattr(module, "grouped_outputs", lambda *given: seen.append(0) or outputs(*given))
    return seen


def test_outputs_and_gradients_are_those_of_one_model_after_another(monkeypatch):
    seen, some, weight = passes(monkeypatch), batch(), torch.rand(5, 3, dtype=torch.float64)
    together, alone = lenets(), lenets(channels_last=False)
    models = together.init(3, 0)
    assert distance(together.outputs(models, some.x), alone.outputs(models, some.x)) < 1e-13
    assert distance(together.value_and_grad(models, some, weight), alone.value_and_grad(models, some, weight)) < 1e-13
    assert len(seen) == 2


def test_steps_of_the_solver_are_the_same(monkeypatch):
    seen, some, lr = passes(monkeypatch), batch(), torch.tensor(0.1, dtype=torch.float64)
    solver = LocalSolver(momentum=0.9, weight_decay=0.01, clip_norm=0.5)
    found = []
    for task in (lenets(), lenets(channels_last=False)):
        models = task.init(3, 0)
        state = models, solver.init(models)
        for _ in range(2):
            *state, loss = solver.step(task, *state, some, lr)
        found.append((*state, loss))
    assert distance(*found) < 1e-13
    assert len(seen) == 2


def test_soft_labels():
    some, together, alone = batch(), lenets(), lenets(channels_last=False)
    models = together.init(2, 0)
    soft = some._replace(y=torch.rand(5, 3, dtype=torch.float64).softmax(1))
    assert distance(together.value_and_grad(models, soft), alone.value_and_grad(models, soft)) < 1e-13


class Louder(LeNet5):
    def forward(self, x):
        return 2 * super().forward(x)


def hooked():
    network = LeNet5(SHAPE, 3)
    network.features[1].register_forward_hook(lambda *_: None)
    return network


def replaced():
    network = LeNet5(SHAPE, 3)
    network.classifier[2] = nn.Dropout(0.5)
    return network


@pytest.mark.parametrize(
    "network",
    [lambda: Louder(SHAPE, 3), hooked, replaced, lambda: LeafCNN(SHAPE, 3), lambda: Linear((4,), 3)],
    ids=["overrides forward", "hooked", "another layer", "wide channels", "no chain"],
)
def test_all_other_networks_are_taken_one_after_another(network):
    assert not products.grouped_layers(network())
    assert products.grouped_layers(LeNet5(SHAPE, 3))


def test_one_model_other_layouts_and_objectives_are_taken_alone(monkeypatch):
    seen, some = passes(monkeypatch), batch()
    for task, number in ((lenets(), 1), (lenets(channels_last=False), 2), (lenets(model_axis="vmap"), 2)):
        task.outputs(task.init(number, 0), some.x)
    each = some._replace(x=some.x.expand(2, -1, -1, -1, -1), y=some.y.expand(2, -1), index=some.index.expand(2, -1),
                         mask=some.mask.expand(2, -1))  # fmt: skip
    lenets().value_and_grad(lenets().init(2, 0), each)
    lenets().value_and_grad(lenets().init(2, 0), some, objective=Objective(lambda view: view.losses))
    assert not seen
