import numpy as np
import pytest
from federated_round import (
    Federation,
    as_arrays,
    batch_orders,
    distance,
    flat,
    make_clients,
    run_rounds,
    two_quadratics,
)
from references.logistic import predict
from references.per_fedavg_numpy import adapt
from references.pfldyn_numpy import pfldyn_round

from lit_fed.algorithms import FedDyn, PFLDyn
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import LocalWork


def close(found, expected):
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=1e-10)


@pytest.mark.parametrize("serve_mean", [False, True])
@pytest.mark.parametrize("variant", ["exact", "first_order"])
def test_rounds_and_serving_are_those_of_the_reference(variant, serve_mean, client_trainer):
    train, options = make_clients([5, 2, 8]), {"lr": 0.5, "momentum": 0.3}
    algorithm = PFLDyn(0.7, serve_mean, variant, inner_lr=0.6, inner_steps=3, adapt_steps=2)
    solver = LocalSolver(local_epochs=2, **options)
    federation = Federation(algorithm, train, solver=solver, trainer=client_trainer, batch_size=2)
    theta, terms, work = federation.weights[0].numpy(), [np.zeros(5)] * 3, LocalWork(epochs=2, batches_per_step=2)
    for present in ([0, 1, 2], [1], [0, 2]):
        theta, terms = pfldyn_round(
            theta, terms, as_arrays(train), batch_orders(federation, work=work), alpha=0.7, inner_lr=0.6,
            inner_steps=3, exact=variant == "exact", present=present, **options,
        )  # fmt: skip
        federation.round(present)
        close(federation.weights, [theta])
        close(flat(federation.shared.h), [np.mean(terms, axis=0)])
        close(flat(federation.states), terms)
    start = theta + np.mean(terms, axis=0) / 0.7 if serve_mean else theta
    for data, seen in ((train, True), (make_clients([4, 1], seed=1, first_id=3), False)):
        for found, (x, y) in zip(federation.predictions(data, seen=seen), as_arrays(data), strict=True):
            close(found.exp(), predict(adapt(start, x, y, 0.6, steps=2), x))


def test_without_inner_steps_of_any_length_it_is_feddyn():
    """On whole local sets, as D′ is another draw."""
    options = {"train": make_clients([5, 2, 8]), "solver": LocalSolver(local_steps=3), "batch_size": 0}
    ours, plain = (run_rounds(one, None, **options) for one in (PFLDyn(0.3, inner_lr=0.0), FedDyn(0.3)))
    assert distance(ours.shared, plain.shared) < 1e-12
    assert distance(ours.predictions(), plain.predictions()) < 1e-12


def test_the_fixed_point_is_the_optimum_of_the_meta_objective():
    """½w² and ½·3(w − 4)² after two steps of 0.1: curvatures (1 − 0.1)^4 and 3·(1 − 0.3)^4."""
    solver = LocalSolver(lr=0.2, local_steps=3)
    federation = run_rounds(PFLDyn(2.0, inner_lr=0.1, inner_steps=2), rounds=40, **two_quadratics(solver=solver))
    curvatures = 0.9**4, 3 * 0.7**4
    assert float(federation.weights) == pytest.approx(4 * curvatures[1] / sum(curvatures), abs=1e-4)
