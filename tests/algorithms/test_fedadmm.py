import numpy as np
import pytest
import torch
from federated_round import (
    Federation,
    as_arrays,
    batch_orders,
    flat,
    make_clients,
    run_rounds,
    two_quadratics,
)
from references.fedadmm_numpy import fedadmm_round
from references.logistic import predict

from lit_fed.algorithms import FedADMM
from lit_fed.core.local_solver import LocalSolver

SIZES = [5, 2, 8]


@pytest.mark.parametrize("options", [None, {"lr": 0.3, "momentum": 0.5, "weight_decay": 0.05}], ids=["exact", "sgd"])
@pytest.mark.parametrize(("weighting", "start", "lr"), [("uniform", "local", 0.8), ("samples", "server", None)])
def test_rounds_are_those_of_the_reference(options, weighting, start, lr, client_trainer):
    train, solver = make_clients(SIZES), LocalSolver(local_epochs=2, **(options or {}))
    fields = {"solver": solver, "trainer": client_trainer, "batch_size": 2, "weighting": weighting}
    federation = Federation(FedADMM(0.7, "inexact" if options else "exact", lr, start), train, **fields)
    theta = federation.weights[0].numpy()
    ws, ys, weights = [theta] * 3, [0 * theta] * 3, SIZES if weighting == "samples" else [1] * 3
    for cohort in ([0, 1, 2], [2, 0], [1], [0, 1]):
        step = sum(weights[i] for i in cohort) / sum(weights) if lr is None else lr
        theta, ws, ys = fedadmm_round(
            theta, ws, ys, as_arrays(train), batch_orders(federation), rho=0.7, lr=step, present=cohort,
            from_server=start == "server", weights=weights, solver=options,
        )  # fmt: skip
        federation.round(cohort)
        np.testing.assert_allclose(federation.weights[0].numpy(), theta, rtol=0, atol=1e-9)
        np.testing.assert_allclose(flat(federation.states.models.parameters).numpy(), np.stack(ws), rtol=0, atol=1e-9)
        np.testing.assert_allclose(flat(federation.states.dual).numpy(), np.stack(ys), rtol=0, atol=1e-9)
    for found, (features, _) in zip(federation.predictions(), as_arrays(train), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(theta, features), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("local_solve", "cohorts"), [("exact", None), ("inexact", None), ("exact", [[0], [1]] * 30)])
def test_it_ends_at_the_minimiser_of_two_quadratics(local_solve, cohorts, newton_step):
    """½w² and ½·3(w − 4)², whose sum is least at 3; y_i is −∇f_i there."""
    solver, rounds = LocalSolver(lr=0.15, local_steps=4), len(cohorts or [[]] * 40)
    algorithm = FedADMM(1.0, local_solve, None)
    federation = run_rounds(algorithm, rounds=rounds, cohorts=cohorts, **two_quadratics(solver=solver))
    assert float(federation.weights) == pytest.approx(3, abs=1e-5)
    assert flat(federation.states.dual).flatten().tolist() == pytest.approx([-3, 3], abs=1e-4)


def test_a_client_drawn_twice_counts_once():
    one, other = (
        run_rounds(FedADMM(), None, make_clients(SIZES), rounds=1, cohorts=[cohort]) for cohort in ([0, 1], [1, 0, 1])
    )
    assert torch.equal(one.weights, other.weights)
