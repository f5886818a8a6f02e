"""Clipped gradients of single samples, and the step that is made of them."""

import pytest
import torch
from federated_round import MULTICLASS, POSITIONS, Tagger, make_clients, make_task
from torch import nn

from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver, Penalty
from lit_fed.core.objective import Objective
from lit_fed.core.seeds import Secret
from lit_fed.core.targets import Regression
from lit_fed.core.task import Task
from lit_fed.core.types import Batch, ModelState
from lit_fed.errors import ConfigError
from lit_fed.models import MLP, CharLSTM, LeNet5, Linear
from lit_fed.wrappers.privacy.private_solver import NoisyStep, PrivateSolver, PrivateTask, _factors

LR = torch.tensor(1.0, dtype=torch.float64)


class Slope(nn.Module):
    """Least squares without a constant, from 0."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 1, bias=False)
        nn.init.zeros_(self.linear.weight)

    def forward(self, x):
        return self.linear(x)


def fixed_line():
    """The same with a constant that is frozen at 0, whose gradients have a closed form."""
    line = Linear((2,), 1)
    nn.init.zeros_(line.linear.weight)
    nn.init.zeros_(line.linear.bias).requires_grad_(False)
    return line


def three(y=(1.0, -2.0, 1.0)):
    x = torch.tensor([[1.0, 2], [0, 1], [3, 0]], dtype=torch.float64)
    return Batch(x, torch.tensor(y, dtype=torch.float64), torch.arange(3), torch.ones(3))


def noisy(noise=0.0, expected=4.0, clip_norm=1.0, step=0, client_id=0):
    return NoisyStep(clip_norm, noise, torch.tensor(expected), Secret.of_seed(0), 0, "train", torch.tensor(client_id),
                     torch.tensor(float(step)))  # fmt: skip


def a_step(task, models, batch, release, solver=LocalSolver(lr=1.0), **more):  # noqa: B008 - frozen
    private = PrivateSolver.of(solver, release)
    return private.step(PrivateTask.of(task), models, private.init(models), batch, LR, **more)


@pytest.mark.parametrize("network", [Slope, fixed_line], ids=["vmap", "closed"])
def test_least_squares_at_zero(network):
    task = Task.create(network, Regression(), dtype=torch.float64)
    models, batch = task.init(1, 0), three()
    loss, total = PrivateTask.of(task).clipped_sum(models, batch, None, 1.0)
    assert total["linear.weight"].flatten().tolist() == pytest.approx([-1.4472135955, 0.1055728090], abs=1e-10)
    assert loss.tolist() == [3.0]
    moved, state, loss = a_step(task, models, batch, noisy())
    assert moved.parameters["linear.weight"].flatten().tolist() == pytest.approx(
        [0.3618033989, -0.0263932023], abs=1e-10
    )
    assert loss.tolist() == [0.75]
    assert state.step == 1


def test_a_sample_has_one_norm_for_all_models():
    weight, squares = torch.tensor([[0.9, 0.1]], dtype=torch.float64), torch.tensor([[25.0, 1.0]]).double()
    assert float(_factors(squares, weight, 1.0)) == pytest.approx(1 / 4.5011109740, rel=1e-10)
    assert float(_factors(squares, weight, 1.0)) == pytest.approx(0.2221673729, abs=1e-10)


def summed_by_hand(task, models, batch, weight, bound):
    """The clipped sum of gradients that are taken one after another."""
    total = tree.zeros_like(models.parameters)
    for row in range(len(batch.mask)):
        one = tree.index(batch, slice(row, row + 1))
        gradient = task.value_and_grad(models, one, None if weight is None else weight[row : row + 1])[1]
        factor = min(1.0, bound / float(tree.norm(gradient).clamp(min=1e-30)))
        total = tree.add(total, tree.scale(gradient, factor * float(one.mask)))
    return total


NETWORKS = {
    "linear": (Linear, {}, MULTICLASS),
    "mlp": (lambda shape, outputs: MLP(shape, outputs, (3,)), {}, MULTICLASS),
    "mlp, models at once": (lambda shape, outputs: MLP(shape, outputs, (3,)), {"model_axis": "vmap"}, MULTICLASS),
    "positions": (Tagger, {}, POSITIONS),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("weighted", [True, False])
def test_the_sum_of_clipped_gradients(name, weighted, monkeypatch):
    network, fields, target = NETWORKS[name]
    task, rng = make_task(target, network=network, **fields), torch.Generator().manual_seed(0)
    if target is POSITIONS:
        x, y = torch.randint(0, 7, (7, 3), generator=rng), torch.randint(0, 3, (7, 3), generator=rng)
    else:
        split = make_clients([7], target=target)
        x, y = split.x, split.y
    batch = Batch(x, y, torch.arange(7), torch.tensor([1.0] * 6 + [0.0]))
    weight = torch.rand(7, 2, generator=rng, dtype=torch.float64) if weighted else None
    models = task.init(2, 0)
    by_hand = summed_by_hand(task, models, batch, weight, 0.3)
    private = PrivateTask.of(task)
    _, total = private.clipped_sum(models, batch, weight, 0.3)
    assert float(tree.norm(tree.sub(total, by_hand))) < 1e-12
    monkeypatch.setattr("lit_fed.wrappers.privacy.private_solver.GRADIENT_BYTES", 1)  # one sample at a time
    assert float(tree.norm(tree.sub(private.clipped_sum(models, batch, weight, 0.3)[1], by_hand))) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_sample_exceeds_the_bound(dtype):
    task = make_task(MULTICLASS, network=Linear, dtype=dtype)
    models, split = tree.scale(task.init(3, 0), 1.0), make_clients([20], target=MULTICLASS, dtype=dtype)
    for row in range(20):
        one = Batch(1e3 * split.x[row : row + 1], split.y[row : row + 1], torch.tensor([row]), torch.ones(1))
        _, total = PrivateTask.of(task).clipped_sum(models, one, None, 0.1)
        assert float(tree.norm(total)) <= 0.1 * (1 + 1e-6)


def test_a_recurrent_network_sample_by_sample():
    task = Task.create(lambda: CharLSTM((5,), 9, hidden_size=4), POSITIONS.__class__(9))
    x, y = torch.randint(0, 9, (2, 3, 5), generator=torch.Generator().manual_seed(1))[:, :3]
    batch = Batch(x, y, torch.arange(3), torch.ones(3))
    models = task.init(2, 0)
    _, total = PrivateTask.of(task).clipped_sum(models, batch, None, 0.1)
    assert float(tree.norm(tree.sub(total, summed_by_hand(task, models, batch, None, 0.1)))) < 1e-6


def test_convolutions_at_once_and_a_step_without_a_sample():
    task = Task.create(lambda: LeNet5((1, 16, 16), 3), MULTICLASS)
    x = torch.rand(2, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    batch, models = Batch(x, torch.tensor([0, 2]), torch.arange(2), torch.ones(2)), task.init(1, 0)
    _, total = PrivateTask.of(task).clipped_sum(models, batch, None, 0.1)
    assert float(tree.norm(tree.sub(total, summed_by_hand(task, models, batch, None, 0.1)))) < 1e-6
    empty = tree.index(batch, slice(0, 1))._replace(mask=torch.zeros(1))
    moved, _, loss = a_step(task, models, empty, noisy())
    assert tree.norm(tree.sub(moved.parameters, models.parameters)) == 0
    assert loss == 0


def test_noise_is_divided_by_what_a_batch_holds_on_average():
    task = make_task(network=lambda *sizes: MLP(*sizes, (400, 50)), dtype=torch.float32)
    models = task.init(1, 0)
    split = make_clients([3], dtype=torch.float32)
    nothing = Batch(split.x, split.y, torch.arange(3), torch.zeros(3))
    moved = [
        a_step(task, models, nothing, noisy(2.0, 5.0, 0.5, **which))[0].parameters
        for which in ({}, {}, {"step": 1}, {"client_id": 1})
    ]
    changes = [torch.cat([(new[name] - old).flatten() for name, old in models.parameters.items()]) for new in moved]
    assert torch.equal(changes[0], changes[1])
    assert float(changes[0].std()) == pytest.approx(2.0 * 0.5 / 5, rel=0.01)
    for other in changes[2:]:
        assert abs(float(torch.corrcoef(torch.stack([changes[0], other]))[0, 1])) < 0.03


def test_penalties_come_after_the_noise_and_momentum_after_both():
    task = Task.create(Slope, Regression(), dtype=torch.float64)
    batch, solver = three(), LocalSolver(lr=1.0, momentum=0.5)
    start = ModelState({"linear.weight": torch.ones(1, 1, 2, dtype=torch.float64)}, {})
    pull = Penalty(100.0, {"linear.weight": torch.zeros(1, 1, 2, dtype=torch.float64)})
    plain = a_step(task, start, batch, noisy(1.0), solver)
    pulled = a_step(task, start, batch, noisy(1.0), solver, penalty=pull)
    assert tree.sub(plain[0].parameters, pulled[0].parameters)["linear.weight"].flatten().tolist() == pytest.approx(
        [100.0, 100.0]
    )
    assert torch.equal(
        pulled[1].first["linear.weight"], start.parameters["linear.weight"] - pulled[0].parameters["linear.weight"]
    )


@pytest.mark.parametrize("axis", ["loop", "vmap"])
@pytest.mark.parametrize("network", [Linear, MLP, Tagger])
def test_objectives_of_single_samples_are_clipped_sample_by_sample(network, axis, monkeypatch):
    """Gradients of batches of one sample are the reference; networks in a loop are taken in pieces."""
    target = POSITIONS if network is Tagger else MULTICLASS
    task = make_task(target, network=network, model_axis=axis)
    models, rng = task.init(2, 0), torch.Generator().manual_seed(0)
    positions = (4,) if target.positions else ()
    x = torch.randint(7, (5, 4)) if target.positions else torch.randn(5, 4, dtype=torch.float64, generator=rng)
    batch = Batch(x, torch.randint(3, (5, *positions), generator=rng), torch.arange(5), torch.tensor([1.0, 1, 1, 1, 0]))
    rows = torch.randn(5, 1, *task.features(models, x).shape[2:], dtype=torch.float64, generator=rng)
    share = torch.rand(2, dtype=torch.float64, generator=rng)
    objective, weight = Objective(pulled, True, constants=share, rows=rows), torch.rand(5, 2, dtype=torch.float64)
    monkeypatch.setattr("lit_fed.wrappers.privacy.private_solver.GRADIENT_BYTES", 3 * tree.bits(models.parameters) // 8)
    losses, total = PrivateTask.of(task).clipped_sum(models, batch, weight, 0.3, objective)
    expected = tree.zeros_like(models.parameters)
    for s in range(4):
        one: Batch = tree.index(batch, slice(s, s + 1))
        own = objective.of_rows(slice(s, s + 1))
        loss, gradient, _ = task.value_and_grad(models, one, weight[s : s + 1], objective=own)
        losses = losses - loss
        expected = tree.add(expected, tree.scale(gradient, (0.3 / tree.norm(gradient)).clamp(max=1)))
    assert float(losses.abs().max()) < 1e-12
    assert float(tree.norm(tree.sub(total, expected))) < 1e-12


def pulled(view):
    positions = tuple(range(1, view.features.ndim))
    return view.losses + view.constants * (view.features - view.rows).square().sum(positions)


def test_a_loss_over_a_batch_is_refused():
    task = Task.create(Slope, Regression(), dtype=torch.float64)
    objective = Objective(lambda view: view.losses * view.mask.sum(), over_batch=True)
    with pytest.raises(
        ConfigError, match=r"ExamplePrivacy bounds .* objective is a loss over a batch, .*; choose another"
    ):
        a_step(task, task.init(1, 0), three(), noisy(), objective=objective)


@pytest.mark.parametrize("gradient", ["value_and_grad", "full_gradient", "hessian_vector"])
def test_no_other_gradient_is_to_be_had(gradient):
    task = PrivateTask.of(make_task())
    with pytest.raises(ConfigError, match="takes gradients beside it"):
        getattr(task, gradient)(task.init(1, 0), three())


def test_a_solver_takes_one_step():
    task = Task.create(Slope, Regression(), dtype=torch.float64)
    private, models = PrivateSolver.of(LocalSolver(lr=1.0), noisy()), task.init(1, 0)
    private.step(PrivateTask.of(task), models, private.init(models), three(), LR)
    with pytest.raises(ConfigError, match="this takes two"):
        private.step(PrivateTask.of(task), models, private.init(models), three(), LR)
    with pytest.raises(ConfigError, match="takes gradients beside it"):
        private.update({}, {}, private.init(models), LR)


def test_a_solver_takes_no_step_of_a_task_without_protection():
    task = Task.create(lambda: LeNet5((1, 16, 16), 3), MULTICLASS)
    private, models = PrivateSolver.of(LocalSolver(lr=1.0), noisy()), task.init(2, 0)
    with pytest.raises(ConfigError, match="takes gradients beside it"):
        private.step(task, models, private.init(models), three(), LR)
