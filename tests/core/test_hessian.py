"""Hessian-vector products against differences of gradients."""

import pytest
import torch
from federated_round import (
    BINARY,
    MULTICLASS,
    POSITIONS,
    REGRESSION,
    NormalisedLinear,
    Tagger,
    distance,
    make_task,
    perturbed,
    same_bits,
)

from lit_fed.core import tree
from lit_fed.core.types import Batch
from lit_fed.models import MLP, Linear


def small_mlp(shape, outputs):
    return MLP(shape, outputs, (5,))


CASES = [
    *(
        (target, network)
        for target in (BINARY, MULTICLASS, REGRESSION)
        for network in (Linear, small_mlp, NormalisedLinear)
    ),
    (POSITIONS, Tagger),
]
NAMES = [f"{'positions' if target.positions else target.kind}-{network.__name__}" for target, network in CASES]


@pytest.fixture(params=CASES, ids=NAMES)
def case(request):
    return request.param


def make_batch(target, num_samples=6, num_models=None):
    """A batch for all models, or one for each."""
    lead = () if num_models is None else (num_models,)
    if target.positions:
        x, shape = torch.randint(7, (*lead, num_samples, 4)), (*lead, num_samples, 4)
    else:
        x, shape = torch.randn(*lead, num_samples, 4, dtype=torch.float64), (*lead, num_samples)
    regression = target.kind == "regression"
    y = torch.randn(shape, dtype=torch.float64) if regression else torch.randint(target.num_classes, shape)
    mask = torch.ones(*lead, num_samples)
    return Batch(x, y, torch.arange(num_samples).expand(mask.shape), mask)


def difference(task, models, batch, vector, step=1e-5):
    """[∇f(θ + step·v) − ∇f(θ − step·v)] / 2 step."""
    offset = tree.scale(vector, step)
    ahead, behind = (
        task.value_and_grad(models._replace(parameters=move(models.parameters, offset)), batch)[1]
        for move in (tree.add, tree.sub)
    )
    return tree.scale(tree.sub(ahead, behind), 0.5 / step)


def direction(models, seed):
    return perturbed(tree.zeros_like(models.parameters), 1.0, seed)


@pytest.mark.parametrize("axis", ["loop", "vmap"])
@pytest.mark.parametrize("own_batches", [False, True])
def test_products_are_differences_of_gradients(case, axis, own_batches):
    target, network = case
    task = make_task(target, network=network, model_axis=axis)
    models, batch = perturbed(task.init(3, 0), 0.5), make_batch(target, num_models=3 if own_batches else None)
    vector = direction(models, 1)
    product = task.hessian_vector(models, batch, vector)
    assert distance(product, difference(task, models, batch, vector)) < 1e-7
    assert float(tree.norm(product)) > 0.1


@pytest.mark.parametrize("axis", ["loop", "vmap"])
def test_products_are_symmetric_and_linear(case, axis):
    target, network = case
    task = make_task(target, network=network, model_axis=axis)
    models, batch = perturbed(task.init(1, 0), 0.5), make_batch(target)
    u, v = (direction(models, seed) for seed in (1, 2))
    hu, hv = (task.hessian_vector(models, batch, one) for one in (u, v))
    torch.testing.assert_close(tree.dot(u, hv), tree.dot(v, hu), rtol=0, atol=1e-12)
    both = task.hessian_vector(models, batch, tree.add(tree.scale(u, 2.0), v))
    assert distance(both, tree.add(tree.scale(hu, 2.0), hv)) < 1e-12


@pytest.mark.parametrize("own_batches", [False, True])
def test_models_do_not_mix(case, own_batches):
    target, network = case
    loop, stacked = (make_task(target, network=network, model_axis=axis) for axis in ("loop", "vmap"))
    models, batch = perturbed(loop.init(3, 0), 0.5), make_batch(target, num_models=3 if own_batches else None)
    vector = direction(models, 1)
    products = [task.hessian_vector(models, batch, vector) for task in (loop, stacked)]
    assert distance(*products) < 1e-12
    for m in range(3):
        one = slice(m, m + 1)
        own = tree.index(batch, m) if own_batches else batch
        alone = loop.hessian_vector(tree.index(models, one), own, tree.index(vector, one))
        assert distance(alone, tree.index(products[0], one)) < 1e-12


@pytest.mark.parametrize("axis", ["loop", "vmap"])
@pytest.mark.parametrize(("target", "network"), [case for case in CASES if case[1] is not NormalisedLinear])
def test_padding_takes_no_part(target, network, axis):
    task = make_task(target, network=network, model_axis=axis)
    models, batch = perturbed(task.init(2, 0), 0.5), make_batch(target)
    padded = batch._replace(mask=torch.tensor([1.0, 1, 1, 1, 0, 0]))
    vector = direction(models, 1)
    plain = task.hessian_vector(models, tree.index(batch, slice(0, 4)), vector)
    assert distance(task.hessian_vector(models, padded, vector), plain) < 1e-12
    nothing = task.hessian_vector(models, batch._replace(mask=torch.zeros(6)), vector)
    assert same_bits(nothing, tree.zeros_like(vector))


def test_of_least_squares_the_hessian_is_that_of_the_inputs():
    task = make_task(REGRESSION)
    models, batch = task.init(2, 0), make_batch(REGRESSION)
    features = torch.cat([batch.x, torch.ones(6, 1, dtype=torch.float64)], dim=1)
    vector = direction(models, 1)
    flat = torch.cat([vector["linear.weight"][:, 0], vector["linear.bias"]], dim=1)
    expected = flat @ (features.T @ features) / 6
    product = task.hessian_vector(models, batch, vector)
    found = torch.cat([product["linear.weight"][:, 0], product["linear.bias"]], dim=1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("axis", ["loop", "vmap"])
def test_no_input_is_changed(case, axis):
    target, network = case
    task = make_task(target, network=network, model_axis=axis)
    models, batch = task.init(2, 0), make_batch(target)
    vector = direction(models, 1)
    before = tree.map_leaves(torch.clone, (models, batch, vector))
    task.hessian_vector(models, batch, vector)
    assert same_bits((models, batch, vector), before)
