import math

import pytest
import torch
from federated_round import BINARY, distance, make_clients, make_task, same_bits
from torch.nn import functional as F

from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import Batch, LocalWork, ModelState
from lit_fed.errors import ConfigError
from lit_fed.models import MLP

SOLVERS = [
    {"lr": 0.3},
    {"lr": 0.3, "weight_decay": 0.1},
    {"lr": 0.1, "momentum": 0.9},
    {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05},
    {"lr": 0.1, "momentum": 0.7, "nesterov": True},
    {"lr": 0.1, "momentum": 0.7, "nesterov": True, "weight_decay": 0.05},
    {"optimizer": "adam", "lr": 0.05},
    {"optimizer": "adam", "lr": 0.05, "weight_decay": 0.1, "betas": (0.8, 0.95), "eps": 1e-3},
]


def batches(number=6, num_samples=5):
    client = make_clients([number * num_samples]).client(0)
    index, mask = torch.arange(num_samples), torch.ones(num_samples)
    for lo in range(0, number * num_samples, num_samples):
        yield Batch(client.x[lo : lo + num_samples], client.y[lo : lo + num_samples], index, mask)


def torch_optimizer(options, parameters):
    options = dict(options)
    name = options.pop("optimizer", "sgd")
    return {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[name](parameters, **options)


def train_by_torch(options, network, clip_norm=None):
    optimizer = torch_optimizer(options, network.parameters())
    losses = []
    for batch in batches():
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(network(batch.x)[:, 0], batch.y.double())
        loss.backward()
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(network.parameters(), clip_norm)
        optimizer.step()
        losses.append(loss.item())
    return dict(network.named_parameters()), losses


@pytest.mark.parametrize("options", SOLVERS, ids=str)
@pytest.mark.parametrize("clip_norm", [None, 0.1])
def test_steps_are_those_of_torch_optim(options, clip_norm):
    solver = LocalSolver(**options, clip_norm=clip_norm)
    build = lambda: MLP((4,), 1, (3,)).double()  # noqa: E731
    task = make_task(BINARY, network=lambda shape, outputs: build())
    models = task.init(2, 0)
    start, optimizer, losses = models, solver.init(models), []
    for batch in batches():
        models, optimizer, loss = solver.step(task, models, optimizer, batch, solver.lr_at(0, 1))
        losses.append(loss)
    assert float(optimizer.step) == 6
    for m in range(2):
        network = build()
        network.load_state_dict(tree.index(start.parameters, m))
        expected, expected_losses = train_by_torch(options, network, clip_norm)
        torch.testing.assert_close(tree.index(models.parameters, m), dict(expected), rtol=0, atol=1e-12)
        torch.testing.assert_close(torch.stack(losses)[:, m].tolist(), expected_losses, rtol=0, atol=1e-12)


def test_each_model_is_clipped_by_its_own_norm():
    parameters = {"w": torch.zeros(2, 2, dtype=torch.float64), "b": torch.zeros(2, 1, dtype=torch.float64)}
    gradient = {
        "w": torch.tensor([[3.0, 0.0], [0.3, 0.0]], dtype=torch.float64),
        "b": torch.tensor([[4.0], [0.4]], dtype=torch.float64),
    }
    solver = LocalSolver(lr=1.0, clip_norm=1.0)
    new, _ = solver.update(parameters, gradient, solver.init(ModelState(parameters, {})), torch.tensor(1.0).double())
    torch.testing.assert_close(new["w"][0], torch.tensor([-0.6, 0.0]).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(new["b"][:, 0], torch.tensor([-0.8, -0.4]).double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("options", SOLVERS, ids=str)
def test_no_input_is_changed(options):
    solver, task = LocalSolver(**options), make_task(BINARY)
    models, batch = task.init(2, 0), next(batches())
    optimizer = solver.init(models)
    before = tree.map_leaves(torch.clone, (models, optimizer, batch))
    once = solver.step(task, models, optimizer, batch, solver.lr_at(0, 1))
    assert same_bits((models, optimizer, batch), before)
    assert same_bits(solver.step(task, models, optimizer, batch, solver.lr_at(0, 1)), once)


@pytest.mark.parametrize("options", [*SOLVERS, {"optimizer": "adamw", "weight_decay": 0.1}], ids=str)
def test_updates_in_pieces_are_those_of_whole_leaves(monkeypatch, options):
    solver, task = LocalSolver(**options, clip_norm=0.5), make_task(BINARY)
    start = task.init(2, 0)

    def trained():
        models, optimizer = start, solver.init(start)
        for batch in batches(2):
            models, optimizer, _ = solver.step(task, models, optimizer, batch, solver.lr_at(0, 1))
        return models, optimizer

    whole = trained()
    monkeypatch.setattr("lit_fed.core.local_solver.PIECE", 5)
    assert same_bits(trained(), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", SOLVERS, ids=str)
def test_types_never_change(dtype, options):
    solver, task = LocalSolver(**options), make_task(BINARY, dtype=dtype)
    batch = next(batches())
    models, optimizer = task.init(1, 0), solver.init(task.init(1, 0))
    moved, state, _ = solver.step(task, models, optimizer, batch._replace(x=batch.x.to(dtype)), solver.lr_at(0, 1))
    assert {leaf.dtype for leaf in tree.leaves(moved)} == {dtype}
    assert {leaf.dtype for leaf in tree.leaves((state.first, state.second))} <= {dtype}
    assert state.step.dtype == torch.float64


@pytest.mark.parametrize(
    ("options", "first", "second"),
    [({}, 0, 0), ({"momentum": 0.9}, 2, 0), ({"optimizer": "adam"}, 2, 2)],
)
def test_only_what_the_method_needs_is_kept(options, first, second):
    state = LocalSolver(**options).init(make_task().init(1, 0))
    assert (len(state.first), len(state.second)) == (first, second)
    assert all((leaf == 0).all() for leaf in tree.leaves(state))


def test_moments_of_adam_share_no_memory():
    state = LocalSolver(optimizer="adam").init(make_task().init(1, 0))
    assert all(state.first[name].data_ptr() != state.second[name].data_ptr() for name in state.first)


def test_a_learning_rate_of_0_moves_nothing():
    task, solver = make_task(), LocalSolver(lr=0.0, momentum=0.9, weight_decay=0.1)
    models = task.init(1, 0)
    moved, _, _ = solver.step(task, models, solver.init(models), next(batches()), solver.lr_at(0, 1))
    assert same_bits(moved, models)


def test_weights_multiply_the_loss_of_each_sample():
    task, solver, batch = make_task(), LocalSolver(lr=0.5), next(batches())
    models = task.init(2, 0)
    weight = torch.tensor([[1.0, 0.25]], dtype=torch.float64).expand(5, 2)
    moved, _, _ = solver.step(task, models, solver.init(models), batch, solver.lr_at(0, 1), weight=weight)
    plain, _, _ = solver.step(task, models, solver.init(models), batch, solver.lr_at(0, 1))
    whole, scaled = tree.sub(plain, models).parameters, tree.sub(moved, models).parameters
    assert distance(tree.index(scaled, 0), tree.index(whole, 0)) < 1e-15
    assert distance(tree.index(scaled, 1), tree.map_leaves(lambda leaf: leaf / 4, tree.index(whole, 1))) < 1e-15


# ---------------------------------------------------------------------- schedules
def rates(schedule, num_rounds, rounds=None):
    solver = LocalSolver(lr=2.0, schedule=schedule)
    return [float(solver.lr_at(t, num_rounds)) for t in (rounds or range(num_rounds))]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [2, 2, 2, 2]),
        ("sqrt", [2, 2 / math.sqrt(2), 2 / math.sqrt(3), 1]),
        ("linear", [2, 1, 2 / 3, 0.5]),
        ("cosine", [2, 1 + math.cos(math.pi / 4), 1, 1 - math.cos(math.pi / 4)]),
        ("multi_step", [2, 2, 0.2, 0.02]),
    ],
)
def test_schedules_by_hand(schedule, expected):
    assert rates(schedule, 4) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("num_rounds", "milestones"),
    [(200, (100, 150)), (80, (40, 60)), (10, (5, 6)), (7, (3, 3)), (5, (2, 3)), (4, (2, 3))],
)
def test_multi_step_falls_at_half_and_at_three_times_the_quarter(num_rounds, milestones):
    expected = [2 * 0.1 ** sum(t >= milestone for milestone in milestones) for t in range(num_rounds)]
    assert rates("multi_step", num_rounds) == pytest.approx(expected, rel=1e-12)


def test_rates_are_float64_scalars():
    rate = LocalSolver(lr=0.1).lr_at(0, 1)
    assert rate.dtype == torch.float64
    assert rate.shape == ()
    assert float(rate) == 0.1


@pytest.mark.parametrize("schedule", ["constant", "multi_step", "cosine", "sqrt", "linear"])
def test_rates_never_go_up_and_a_horizon_has_a_last_one(schedule):
    solver = LocalSolver(lr=2.0, schedule=schedule, schedule_rounds=8)
    found = [float(solver.lr_at(t, 30)) for t in range(30)]
    assert found[:8] == rates(schedule, 8)
    assert found == sorted(found, reverse=True)
    assert found[-1] > 0
    if schedule in ("multi_step", "cosine"):
        assert set(found[8:]) == {found[7]}
    else:  # which have no horizon
        assert found == rates(schedule, 30)


@pytest.mark.parametrize("schedule", ["constant", "multi_step", "cosine", "sqrt", "linear"])
def test_adaptation_has_a_rate_of_its_own(schedule):
    plain, own = LocalSolver(lr=2.0, schedule=schedule), LocalSolver(lr=2.0, schedule=schedule, adapt_lr=0.5)
    for t in (0, 5, 7):
        assert float(plain.lr_in("adapt", t, 8)) == 2.0
        assert float(own.lr_in("adapt", t, 8)) == 0.5
        for phase in ("train", "local/0", "evaluate"):
            assert plain.lr_in(phase, t, 8) == own.lr_in(phase, t, 8) == plain.lr_at(t, 8)


# ---------------------------------------------------------------------- settings
def test_work_is_epochs_or_steps():
    assert LocalSolver(local_epochs=3).work == LocalWork(epochs=3)
    assert LocalSolver(local_epochs=0).work == LocalWork(epochs=0)
    assert LocalSolver(local_epochs=3, local_steps=5).work == LocalWork(steps=5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lr", -0.1),
        ("lr", math.nan),
        ("schedule_rounds", 0),
        ("adapt_lr", -0.1),
        ("adapt_lr", math.nan),
        ("momentum", 1.0),
        ("momentum", -0.1),
        ("nesterov", True),
        ("weight_decay", -1e-3),
        ("betas", (0.9, 1.0)),
        ("betas", (-0.1, 0.9)),
        ("local_epochs", -1),
        ("local_steps", 0),
        ("local_steps", -3),
        ("clip_norm", 0.0),
        ("clip_norm", -1.0),
    ],
)
def test_values_out_of_range_are_named(field, value):
    with pytest.raises(ConfigError, match=rf"--model\.solver\.{field} is .*; give "):
        LocalSolver(**{field: value})


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0},
        {"adapt_lr": 0},
        {"schedule_rounds": 1},
        {"momentum": 0.5, "nesterov": True},
        {"local_epochs": 0},
        {"local_steps": 1},
        {"clip_norm": 5},
    ],
)
def test_values_at_the_edge_are_taken(options):
    LocalSolver(**options)
