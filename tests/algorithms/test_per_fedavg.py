import numpy as np
import pytest
import torch
from federated_round import (
    MULTICLASS,
    REGRESSION,
    Federation,
    Scale,
    as_arrays,
    batch_orders,
    distance,
    flat,
    make_clients,
    make_context,
    make_task,
    quadratics,
    run_rounds,
    same_bits,
)
from references.logistic import predict
from references.per_fedavg_numpy import adapt, per_fedavg_round

from lit_fed.algorithms import FedAvgPlus, PerFedAvg
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import Batch, LocalWork
from lit_fed.models import MLP

VARIANTS = ["exact", "first_order", "hessian_free"]
Q2 = quadratics([1.0, 3.0], [0.0, 4.0])
SCALE = {"task": make_task(REGRESSION, network=Scale), "batch_size": 0, "solver": LocalSolver(lr=0.1)}


def small_mlp(shape, outputs):
    return MLP(shape, outputs, (5,))


def orders_of(federation):
    streams = 2 if federation.algorithm.variant == "first_order" else 3
    return batch_orders(federation, work=federation.solver.work._replace(batches_per_step=streams))


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("options", [{"lr": 0.5}, {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.05}], ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_rounds_and_adaptation_are_those_of_the_reference(variant, options, client_trainer):
    train, test = make_clients([5, 3, 8]), make_clients([4, 2, 3], seed=1)
    algorithm = PerFedAvg(variant, inner_lr=0.4, difference=0.3, adapt_steps=2)
    solver = LocalSolver(local_epochs=2, **options)
    federation = Federation(algorithm, train, solver=solver, trainer=client_trainer, batch_size=2)
    theta = federation.weights[0].numpy()
    for present in (None, [0, 2], [1]):
        theta = per_fedavg_round(
            theta, as_arrays(train), orders_of(federation), present=present,
            variant=variant, inner_lr=0.4, difference=0.3, **options,
        )  # fmt: skip
        federation.round(present)
        np.testing.assert_allclose(federation.weights[0].numpy(), theta, rtol=0, atol=1e-10)
    for found, (x, y), (x_test, _) in zip(federation.predictions(test), as_arrays(train), as_arrays(test), strict=True):
        expected = predict(adapt(theta, x, y, 0.4, steps=2), x_test)
        np.testing.assert_allclose(found.exp().numpy(), expected, rtol=0, atol=1e-10)


def test_the_batches_of_a_step_are_drawn_independently():
    federation = Federation(PerFedAvg(), make_clients([40]), batch_size=10)
    first, second, third = orders_of(federation)[0][0]
    assert len({tuple(first), tuple(second), tuple(third)}) == 3


@pytest.mark.parametrize(("variant", "streams"), [("exact", 3), ("first_order", 2), ("hessian_free", 3)])
def test_the_users_local_work_is_kept(variant, streams):
    ctx = make_context(solver=LocalSolver(local_steps=7, straggler_fraction=0.5))
    (phase,) = PerFedAvg(variant).phases(ctx, torch.arange(3))
    assert phase.work == LocalWork(steps=7, batches_per_step=streams, straggler_fraction=0.5)


# ---------------------------------------------------------------------- two quadratics
@pytest.mark.parametrize("variant", VARIANTS)
def test_fixed_points_of_two_quadratics(variant, client_trainer):
    optimum = 2.8 if variant == "first_order" else 5.88 / 2.28
    assert optimum == pytest.approx({"first_order": 2.8}.get(variant, 2.5789473684), abs=1e-9)
    options = SCALE | {"solver": LocalSolver(lr=0.7)}
    federation = run_rounds(PerFedAvg(variant, inner_lr=0.1), client_trainer, Q2, rounds=40, **options)
    assert federation.weights.item() == pytest.approx(optimum, abs=1e-9)
    served = flat(federation.serve()).squeeze(1)
    expected = [optimum * 0.9, optimum - 0.3 * (optimum - 4)]
    torch.testing.assert_close(served, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-9)


def test_the_meta_gradient_of_a_quadratic(client_trainer):
    """From 0 with rate 1: (1 − αh)·∇f(w̃), w̃ = αhc."""
    options = SCALE | {"solver": LocalSolver(lr=1.0)}
    for variant, factor in (("exact", 0.7), ("hessian_free", 0.7), ("first_order", 1.0)):
        federation = run_rounds(PerFedAvg(variant, 0.1), client_trainer, quadratics([3.0], [4.0]), rounds=1, **options)
        assert federation.weights.item() == pytest.approx(factor * 3 * (4 - 1.2), abs=1e-12)


@pytest.mark.parametrize("network", [None, small_mlp], ids=["linear", "mlp"])
def test_a_small_difference_of_gradients_is_nearly_exact(network):
    train = make_clients([6, 4], target=MULTICLASS)
    task = make_task(MULTICLASS, **({} if network is None else {"network": network}))
    exact, *free = (
        run_rounds(PerFedAvg(*settings), None, train, rounds=1, task=task)
        for settings in (("exact", 0.5), ("hessian_free", 0.5, 1e-2), ("hessian_free", 0.5, 1e-4))
    )
    gaps = [distance(exact.shared, one.shared) for one in free]
    assert gaps[1] < 1e-8
    assert gaps[1] < gaps[0]


@pytest.mark.parametrize("axis", ["loop", "vmap"])
def test_the_curvature_survives_bf16(axis):
    """Gradients that differ by less than bfloat16 can tell are taken in float32."""
    task = make_task(MULTICLASS, network=small_mlp, dtype=torch.float32, model_axis=axis)
    data = make_clients([30], target=MULTICLASS, dtype=torch.float32)
    models, rows = task.init(1, 0), torch.arange(30).view(3, 10)
    batch = Batch(data.x[rows], data.y[rows], rows, torch.ones(3, 10))
    ctx = make_context(task)

    def direction(variant):
        return PerFedAvg(variant, inner_lr=1.0)._meta_gradient(ctx, models, batch)[1]

    exact = direction("exact")
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        found = {variant: direction(variant) for variant in VARIANTS}
    error = {variant: float(tree.norm(tree.sub(one, exact)) / tree.norm(exact)) for variant, one in found.items()}
    assert error["first_order"] > 0.1
    assert max(error["exact"], error["hessian_free"]) < 0.02, error


# ---------------------------------------------------------------------- limits
def one_step(variant, batch):
    task = make_task(REGRESSION)
    ctx = make_context(task, LocalSolver(lr=0.5))
    algorithm, data = PerFedAvg(variant, inner_lr=0.3), make_clients([3], target=REGRESSION).client(0)
    shared = algorithm.shared_init(ctx)
    work = algorithm.client_init(ctx, shared, (), data, None)
    return algorithm.client_step(ctx, shared, work, batch)


@pytest.mark.parametrize("orthogonal", [True, False])
def test_first_order_is_exact_where_the_curvature_does_not_see_the_gradient(orthogonal):
    """With one sample a batch, ∇f(w̃; D′) is along (x′, 1), and ∇²f(w; D″) is (x″, 1)(x″, 1)ᵀ."""
    third = [-1.0, 3.0, 2.0, 0.0] if orthogonal else [1.0, 3.0, 2.0, 0.0]
    x = torch.tensor([[[0.5, 1.0, 0.0, 2.0]], [[1.0, 0.0, 0.0, 0.0]], [third]], dtype=torch.float64)
    batch = Batch(x, torch.ones(3, 1, dtype=torch.float64), torch.zeros(3, 1, dtype=torch.int64), torch.ones(3, 1))
    exact = one_step("exact", batch)
    first_order = one_step("first_order", tree.index(batch, slice(0, 2)))
    assert (distance(exact.models, first_order.models) < 1e-15) == orthogonal


# ---------------------------------------------------------------------- serving
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_unseen_clients_adapt_on_all_their_training_samples(steps, client_trainer):
    train, unseen = make_clients([5, 5, 5]), make_clients([6, 3], seed=2, first_id=3)
    options = {"solver": LocalSolver(momentum=0.9, weight_decay=0.1), "batch_size": 2}
    federation = run_rounds(PerFedAvg(inner_lr=0.7, adapt_steps=steps), client_trainer, train, rounds=2, **options)
    theta = federation.weights[0].numpy()
    for found, (x, y) in zip(federation.predictions(unseen, seen=False), as_arrays(unseen), strict=True):
        expected = predict(adapt(theta, x, y, 0.7, steps), x)
        np.testing.assert_allclose(found.exp().numpy(), expected, rtol=0, atol=1e-10)


def test_one_step_of_adaptation_is_that_of_fedavg_plus(client_trainer):
    train = make_clients([5, 2, 8])
    options = {"rounds": 0, "batch_size": 0}
    meta = run_rounds(PerFedAvg(inner_lr=0.3), client_trainer, train, **options)
    tuned = run_rounds(FedAvgPlus(fine_tune_lr=0.3), client_trainer, train, **options)
    assert distance(meta.predictions(), tuned.predictions()) < 1e-14


def test_the_global_model_is_sent_and_the_adapted_one_thrown_away(client_trainer):
    federation = run_rounds(PerFedAvg(inner_lr=2.0), client_trainer, make_clients([5, 2, 8]))
    before = tree.map_leaves(torch.clone, federation.shared)
    first = federation.serve()
    assert distance(tree.index(first, 0), tree.index(first, 1)) > 0.01
    assert same_bits(federation.shared, before)
    assert federation.states == ()
    assert same_bits(federation.serve(), first)


def test_a_client_without_samples_is_served_by_the_global_model(client_trainer):
    federation = run_rounds(PerFedAvg(), client_trainer, make_clients([5, 2]))
    states = federation.serve(make_clients([0], first_id=2), seen=False)
    assert same_bits(tree.index(states.models, 0), federation.shared.models)


# ---------------------------------------------------------------------- server
def test_clients_are_weighted_alike_unless_asked_otherwise(client_trainer):
    train = make_clients([1, 9])
    runs = [run_rounds(PerFedAvg(), client_trainer, train, rounds=1, weighting=rule) for rule in (None, "samples")]
    alone = [run_rounds(PerFedAvg(), client_trainer, train, rounds=1, cohorts=[[one]]).weights for one in (0, 1)]
    assert distance(runs[0].weights, (alone[0] + alone[1]) / 2) < 1e-12
    assert distance(runs[1].weights, (alone[0] + 9 * alone[1]) / 10) < 1e-12
