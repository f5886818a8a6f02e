import math
import re

import pytest
import torch
from federated_round import (
    BINARY,
    MULTICLASS,
    POSITIONS,
    Tagger,
    distance,
    make_clients,
    make_task,
    perturbed,
    run_rounds,
    same_bits,
)
from torch import nn
from torch.func import grad, vmap
from torch.nn import functional as F

from lit_fed.algorithms import FedEM
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver, Penalty
from lit_fed.core.types import Batch, LocalWork, ModelState
from lit_fed.errors import ConfigError
from lit_fed.models import MLP, Linear

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
TORCH = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


def batches(number=6, num_samples=5):
    client = make_clients([number * num_samples]).client(0)
    index, mask = torch.arange(num_samples), torch.ones(num_samples)
    for lo in range(0, number * num_samples, num_samples):
        yield Batch(client.x[lo : lo + num_samples], client.y[lo : lo + num_samples], index, mask)


def torch_optimizer(options, parameters):
    options = dict(options)
    name = options.pop("optimizer", "sgd")
    return TORCH[name](parameters, **options)


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
    [
        ({}, 0, 0),
        ({"momentum": 0.9}, 2, 0),
        ({"optimizer": "adam"}, 2, 2),
    ],
)
def test_only_what_the_method_needs_is_kept(options, first, second):
    state = LocalSolver(**options).init(make_task().init(1, 0))
    assert (len(state.first), len(state.second)) == (first, second)
    assert all((leaf == 0).all() for leaf in tree.leaves(state))


def lion(solver, step, gradient, first, second):
    """Chen et al. 2023, Algorithm 2, without weight decay, and the second tensor as a counter of steps."""
    beta1, beta2 = solver.betas
    direction = (beta1 * first + (1 - beta1) * gradient).sign()
    return direction, beta2 * first + (1 - beta2) * gradient, second + step


LION = f"{__name__}.lion"


def test_a_user_defined_rule():
    """Three steps by hand."""
    task, solver, batch = make_task(), LocalSolver(LION, 0.1, betas=(0.5, 0.75)), next(batches())
    models = task.init(2, 0)
    state, moment = solver.init(models), tree.zeros_like(models.parameters)
    for step in range(1, 4):
        _, gradient, _ = task.value_and_grad(models, batch)
        direction = {name: (0.5 * moment[name] + 0.5 * leaf).sign() for name, leaf in gradient.items()}
        moment = {name: 0.75 * moment[name] + 0.25 * leaf for name, leaf in gradient.items()}
        wanted = {name: leaf - 0.1 * direction[name] for name, leaf in models.parameters.items()}
        models, state, _ = solver.step(task, models, state, batch, solver.lr_at(0, 1))
        assert distance((models.parameters, state.first), (wanted, moment)) < 1e-12
        assert all((leaf == step * (step + 1) / 2).all() for leaf in state.second.values())


@pytest.mark.parametrize("optimizer", [LION, *(name for name in TORCH if name not in ("sgd", "adam"))])
def test_clients_at_once_take_the_steps_of_each(optimizer):
    """Of one client after another, at different steps because their sizes differ, and where a round goes on."""
    solver, train = LocalSolver(optimizer, 0.05, momentum=0.5, persist_optimizer=True), make_clients([9, 2, 5])
    one, other = (run_rounds(FedEM(2), trainer(), train, solver=solver, batch_size=2) for trainer in
                  (SequentialTrainer, VectorizedTrainer))  # fmt: skip
    assert distance((one.shared, one.states), (other.shared, other.states)) < 1e-10
    assert bool(one.weights.isfinite().all())


def wrong_shape(solver, step, gradient, first, second):
    return gradient.sum(), first, second


def wrong_type(solver, step, gradient, first, second):
    return gradient, first.double(), second


def wrong_number(solver, step, gradient, first, second):
    return gradient, first


def stacked(solver, step, gradient, first, second):
    return gradient


def raising(solver, step, gradient, first, second):
    raise KeyError("beta3")


def branching(solver, step, gradient, first, second):
    return (gradient if gradient.sum() > 0 else -gradient), first, second


def by_norm(solver, step, gradient, first, second):
    """Of each model of a leaf, not of each number."""
    flat = gradient.flatten(1)
    return (flat / (flat.norm(dim=1, keepdim=True) + 1e-8)).view_as(gradient), first, second


@pytest.mark.parametrize("rule", [wrong_shape, wrong_type, wrong_number, stacked])
def test_rules_that_return_something_else_are_refused(rule):
    with pytest.raises(ConfigError, match=f"{rule.__name__} does not return three tensors of the gradient's shape"):
        LocalSolver(f"{__name__}.{rule.__name__}")


@pytest.mark.parametrize(("rule", "why"), [(raising, "'beta3'"), (branching, ".*data-dependent control flow.*")])
def test_rules_that_fail_are_refused(rule, why):
    """Branches by values too: clients may run at once."""
    words = rf"(?s){rule.__name__} fails on zeros of two clients \({why}\); let it return three"
    with pytest.raises(ConfigError, match=words):
        LocalSolver(f"{__name__}.{rule.__name__}")


def test_a_rule_gets_whole_leaves():
    solver, train = LocalSolver(f"{__name__}.by_norm", 0.05), make_clients([9, 2, 5])
    one, other = (run_rounds(FedEM(2), trainer(), train, solver=solver, batch_size=2) for trainer in
                  (SequentialTrainer, VectorizedTrainer))  # fmt: skip
    assert distance((one.shared, one.states), (other.shared, other.states)) < 1e-10


@pytest.mark.parametrize("name", sorted({*TORCH, "adamw"}))
def test_classes_of_torch_are_taken_by_their_paths(name):
    path = f"torch.optim.{TORCH.get(name, torch.optim.AdamW).__name__}"
    assert LocalSolver(path) == LocalSolver(name)


@pytest.mark.parametrize(
    ("optimizer", "why"),
    [
        ("lbfgs", ""),
        ("LBFGS", ""),
        ("nadam", ""),
        ("torch.optim.LBFGS", ", a class without a rule here"),
        ("nowhere.lion", r", which cannot be imported \(No module named 'nowhere'\)"),
        (f"{__name__}.SOLVERS", ", no function"),
        ("../lion.py", ""),
        (f"{__name__}:lion", ""),
        ("os.path:join", ""),
    ],
)
def test_other_optimizers_are_refused_by_name(optimizer, why):
    wanted = rf"--model\.solver\.optimizer is {re.escape(optimizer)}{why}; give one of sgd, adam, adamw, or the path"
    with pytest.raises(ConfigError, match=wanted):
        LocalSolver(optimizer)
    with pytest.raises(ConfigError, match="nesterov is True; give false, or momentum > 0 with sgd"):
        LocalSolver("adam", momentum=0.5, nesterov=True)


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
        ("exponential", [2, 2 * 0.99, 2 * 0.99**2, 2 * 0.99**3]),
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


@pytest.mark.parametrize("schedule", ["constant", "multi_step", "cosine", "sqrt", "linear", "exponential"])
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


@pytest.mark.parametrize("schedule", ["constant", "multi_step", "cosine", "sqrt", "linear", "exponential"])
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
        ("schedule_decay", 0.9),
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


M = 3
SHAPES = {"weight": (2, 4), "bias": (2,)}
PATHS = {
    "linear loop": (Linear, "loop"),
    "linear vmap": (Linear, "vmap"),
    "mlp loop": (lambda shape, outputs: MLP(shape, outputs, (3,)), "loop"),
    "mlp vmap": (lambda shape, outputs: MLP(shape, outputs, (3,)), "vmap"),
}


def leaves(models, seed, dtype=torch.float64):
    rng = torch.Generator().manual_seed(seed)
    return {name: torch.randn(models, *shape, generator=rng, dtype=torch.float64).to(dtype)
            for name, shape in SHAPES.items()}  # fmt: skip


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


WEIGHTS = {"number": 0.7, "tensor": tensor(0.7), "each": tensor([0.7, 0.0, 2.0])}
PARTS = {"none": None, "one": leaves(1, 1), "each": leaves(M, 2)}


@pytest.fixture(params=WEIGHTS)
def weight(request):
    return WEIGHTS[request.param]


@pytest.fixture(params=PARTS)
def anchor(request):
    return PARTS[request.param]


@pytest.fixture(params=PARTS)
def linear(request):
    part = PARTS[request.param]
    return part and tree.map_leaves(torch.sin, part)


# ---------------------------------------------------------------------- value and gradient
def test_the_gradient_is_that_of_the_value(weight, anchor, linear):
    penalty, parameters = Penalty(weight, anchor, linear), leaves(M, 0)
    expected = grad(lambda leaves: penalty.value(leaves).sum())(parameters)
    assert distance(penalty.gradient(parameters), expected) < 1e-14


def test_the_value_is_written_out(weight, anchor, linear):
    parameters, weights = leaves(M, 0), WEIGHTS["each"] if weight is WEIGHTS["each"] else tensor([0.7] * M)
    found = Penalty(weight, anchor, linear).value(parameters)
    assert found.shape == (M,)
    for m in range(M):
        own = [part and tree.index(part, m if len(part["bias"]) == M else 0) for part in (parameters, anchor, linear)]
        theta, away, slope = own[0], tree.sub(own[0], own[1]) if own[1] else own[0], own[2]
        expected = weights[m] / 2 * tree.norm(away) ** 2 + (tree.dot(slope, theta) if slope else 0)
        assert float(found[m]) == pytest.approx(float(expected), abs=1e-13)


def test_by_default_there_is_none():
    parameters = leaves(M, 0)
    assert float(Penalty().value(parameters).abs().max()) == 0
    assert same_bits(Penalty().gradient(parameters), tree.zeros_like(parameters))


def test_a_proximal_term_has_no_slope_at_its_anchor(weight):
    parameters = leaves(M, 0)
    assert same_bits(Penalty(weight, parameters).gradient(parameters), tree.zeros_like(parameters))


def test_float32_models_keep_their_type(weight):
    parameters, anchor = leaves(M, 0, torch.float32), leaves(1, 1, torch.float32)
    penalty = Penalty(weight, anchor, anchor)
    assert {leaf.dtype for leaf in tree.leaves(penalty.gradient(parameters))} == {torch.float32}
    assert penalty.value(parameters).dtype == torch.float32


def test_clients_at_once_have_penalties_of_their_own():
    """A weight, an anchor and a linear part for each of C clients, as under a client trainer."""
    clients = [leaves(M, seed) for seed in range(4)]
    weights, anchors, parameters = torch.rand(4, dtype=torch.float64), tree.stack(clients), leaves(M, 9)
    at_once = vmap(lambda weight, anchor: Penalty(weight, anchor, anchor).gradient(parameters))(weights, anchors)
    for one, anchor in enumerate(clients):
        expected = Penalty(weights[one], anchor, anchor).gradient(parameters)
        assert distance(tree.index(at_once, one), expected) < 1e-15


# ---------------------------------------------------------------------- in a step of the solver
def some_batches(number=5, num_samples=6):
    client = make_clients([number * num_samples]).client(0)
    for lo in range(0, number * num_samples, num_samples):
        rows = slice(lo, lo + num_samples)
        yield Batch(client.x[rows], client.y[rows], torch.arange(num_samples), torch.ones(num_samples))


def penalty_for(models, seed=0):
    """A penalty of each kind for each model."""
    rng = torch.Generator().manual_seed(seed)
    linear = tree.map_leaves(
        lambda leaf: 0.3 * torch.randn(leaf.shape, generator=rng, dtype=leaf.dtype), models.parameters
    )
    weights = torch.linspace(0.2, 0.8, len(next(iter(linear.values()))), dtype=torch.float64)
    return Penalty(weights, tree.index(models.parameters, slice(0, 1)), linear)


def train_on_objective(network, options, clip_norm, penalty):
    """Steps on the loss plus the penalty, written as one objective; the penalty has no model axis."""
    optimizer = torch_optimizer(options, network.parameters())
    losses = []
    for batch in some_batches():
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(network(batch.x)[:, 0], batch.y.double())
        parameters = {name: leaf.unsqueeze(0) for name, leaf in network.named_parameters()}
        (loss + penalty.value(parameters)[0]).backward()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(network.parameters(), clip_norm)
        optimizer.step()
        losses.append(loss.item())
    return dict(network.named_parameters()), losses


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("options", SOLVERS, ids=str)
@pytest.mark.parametrize("clip_norm", [None, 0.1])
def test_a_penalty_is_part_of_the_objective(path, options, clip_norm):
    """Momentum, moments and clipping see its gradient; weight decay comes after clipping, as in torch.optim."""
    network, model_axis = PATHS[path]
    task = make_task(BINARY, network=network, model_axis=model_axis)
    solver, models = LocalSolver(**options, clip_norm=clip_norm), task.init(2, 0)
    penalty, start, optimizer, losses = penalty_for(models), models, solver.init(models), []
    lr = solver.lr_at(0, 1)
    for batch in some_batches():
        models, optimizer, loss = solver.step(task, models, optimizer, batch, lr, penalty=penalty)
        losses.append(loss)
    for m in range(2):
        one = task.build().double()
        one.load_state_dict(tree.index(start.parameters, m))
        own = Penalty(penalty.weight[m], penalty.anchor, tree.index(penalty.linear, slice(m, m + 1)))
        expected, expected_losses = train_on_objective(one, options, clip_norm, own)
        torch.testing.assert_close(tree.index(models.parameters, m), dict(expected), rtol=0, atol=1e-12)
        torch.testing.assert_close(torch.stack(losses)[:, m].tolist(), expected_losses, rtol=0, atol=1e-12)


@pytest.mark.parametrize("model_axis", ["loop", "vmap"])
@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"optimizer": "adam"}], ids=str)
def test_a_penalty_of_weight_0_changes_no_bit(model_axis, options):
    task = make_task(POSITIONS, num_features=4, network=Tagger, model_axis=model_axis)
    solver, models = LocalSolver(**options), task.init(2, 0)
    rng = torch.Generator().manual_seed(0)
    x, y = (torch.randint(high, (6, 4), generator=rng) for high in (7, 3))
    batch = Batch(x, y, torch.arange(6), torch.ones(6))
    plain, penalised = (
        solver.step(task, models, solver.init(models), batch, solver.lr_at(0, 1), penalty=penalty)
        for penalty in (None, Penalty(0.0, models.parameters))
    )
    assert same_bits(plain, penalised)


@pytest.mark.parametrize("path", PATHS)
def test_weights_of_samples_do_not_weigh_the_penalty(path):
    network, model_axis = PATHS[path]
    task = make_task(MULTICLASS, network=network, model_axis=model_axis)
    train = make_clients([6], target=MULTICLASS)
    batch = Batch(train.x, train.y, torch.arange(6), torch.ones(6))
    start = task.init(2, 0)
    models, solver = perturbed(start), LocalSolver(lr=0.5)
    penalty = Penalty(0.4, start.parameters)
    nothing = torch.zeros(6, 2, dtype=torch.float64)
    moved, _, loss = solver.step(
        task, models, solver.init(models), batch, solver.lr_at(0, 1), weight=nothing, penalty=penalty
    )
    expected = tree.lerp(models.parameters, start.parameters, 0.5 * 0.4)
    assert distance(moved.parameters, expected) < 1e-14
    assert loss.tolist() == [0, 0]


@pytest.mark.parametrize("path", PATHS)
def test_a_penalty_changes_no_input(path):
    network, model_axis = PATHS[path]
    task, solver = make_task(network=network, model_axis=model_axis), LocalSolver(momentum=0.9)
    models, batch = task.init(2, 0), next(some_batches())
    inputs = models, solver.init(models), batch, penalty_for(models)
    before = tree.map_leaves(torch.clone, inputs)
    solver.step(task, *inputs[:3], solver.lr_at(0, 1), penalty=inputs[3])
    assert same_bits(inputs, before)
    assert isinstance(inputs[0], ModelState)


def test_a_linear_term_alone_is_its_own_gradient_for_every_model():
    parameters = {"w": torch.full((3, 2), torch.inf, dtype=torch.float64)}  # a weight of 0 takes no product with it
    linear = {"w": torch.tensor([[1.0, -2.0]], dtype=torch.float64)}
    assert Penalty(linear=linear).gradient(parameters)["w"].tolist() == [[1.0, -2.0]] * 3
