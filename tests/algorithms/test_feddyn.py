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
from references.feddyn_numpy import feddyn_round
from references.logistic import predict

from lit_fed.algorithms import FedDyn, FedProx
from lit_fed.core.local_solver import LocalSolver

PLAIN, HEAVY = {"lr": 0.5}, {"lr": 0.3, "momentum": 0.5, "weight_decay": 0.05}
COHORTS = [[0, 1, 2], [1], [0, 2], [2, 1]]


def close(found, expected):
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=1e-10)


@pytest.mark.parametrize("serve_mean", [False, True])
@pytest.mark.parametrize(("options", "weighting"), [(PLAIN, "uniform"), (HEAVY, "uniform"), (HEAVY, "samples")])
@pytest.mark.parametrize("aggregation", ["renormalised", "stale_fill"])
def test_rounds_are_those_of_the_reference(options, weighting, aggregation, serve_mean, client_trainer):
    train = make_clients([5, 2, 8])
    federation = Federation(
        FedDyn(0.7, serve_mean), train, solver=LocalSolver(local_epochs=2, **options), trainer=client_trainer,
        batch_size=2, weighting=weighting, aggregation=aggregation,
    )  # fmt: skip
    theta, h, gradients = federation.weights[0].numpy(), np.zeros(5), [np.zeros(5)] * 3
    for cohort in COHORTS:
        theta, h, gradients = feddyn_round(
            theta, h, gradients, as_arrays(train), batch_orders(federation), alpha=0.7, present=cohort,
            by_samples=weighting == "samples", fills_in=aggregation == "stale_fill", **options,
        )  # fmt: skip
        federation.round(cohort)
        close(federation.weights, [theta])
        close(flat(federation.shared.h), [h])
        close(flat(federation.states), gradients)
    served = theta + h / 0.7 if serve_mean else theta
    for data, seen in ((train, True), (make_clients([4, 1], seed=1, first_id=3), False)):
        for prediction, (x, _) in zip(federation.predictions(data, seen=seen), as_arrays(data), strict=True):
            close(prediction.exp(), predict(served, x))


@pytest.mark.parametrize("steps", [1, 4])
def test_the_fixed_point_is_the_optimum_whatever_the_number_of_steps(steps):
    """½w² and ½·3(w − 4)²: the optimum is 3, where the slopes are 3 and −3 and h is 0."""
    solver = LocalSolver(lr=0.1, local_steps=steps)
    federation = run_rounds(FedDyn(4.0), rounds=40, **two_quadratics(solver=solver))
    found = [float(federation.weights), float(federation.shared.h["weight"]), *federation.states.gradient["weight"]]
    assert found == pytest.approx([3, 0, 3, -3], abs=1e-5)


def test_the_first_local_steps_are_those_of_fedprox():
    """Linear terms are 0 at first; the mean of the clients is FedProx's model."""
    train, options = make_clients([5, 2, 8]), {"rounds": 1, "solver": LocalSolver(local_epochs=2), "batch_size": 2}
    dynamic = run_rounds(FedDyn(0.3, serve_mean=True), None, train, **options)
    proximal = run_rounds(FedProx(0.3), None, train, weighting="uniform", **options)
    assert distance(dynamic.predictions(), proximal.predictions()) < 1e-12
