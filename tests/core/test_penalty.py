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
    same_bits,
)
from test_local_solver import SOLVERS, torch_optimizer
from torch import nn
from torch.func import grad, vmap
from torch.nn import functional as F

from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver, Penalty
from lit_fed.core.types import Batch, ModelState
from lit_fed.models import MLP, Linear

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


def test_each_model_has_the_penalty_of_its_own(weight, anchor, linear):
    penalty, parameters = Penalty(weight, anchor, linear), leaves(M, 0)
    gradient, value = penalty.gradient(parameters), penalty.value(parameters)
    for m in range(M):
        place = slice(m, m + 1)
        own, theta = penalty.of_model(m), tree.index(parameters, place)
        assert same_bits(own.gradient(theta), tree.index(gradient, place))
        assert torch.equal(own.value(theta), value[place])


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


def train_by_torch(network, options, clip_norm, penalty):
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
        moved = solver.move(task, models, optimizer, batch, lr, penalty=penalty)
        models, optimizer, loss = solver.step(task, models, optimizer, batch, lr, penalty=penalty)
        assert distance(moved, (models, optimizer)) < 1e-15
        losses.append(loss)
    for m in range(2):
        one = task.build().double()
        one.load_state_dict(tree.index(start.parameters, m))
        expected, expected_losses = train_by_torch(one, options, clip_norm, penalty.of_model(m))
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
def test_no_input_is_changed(path):
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
