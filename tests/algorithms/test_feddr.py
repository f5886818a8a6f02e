import numpy as np
import pytest
import torch
from federated_round import Federation, as_arrays, batch_orders, flat, make_clients, run_rounds, two_quadratics
from references.feddr_numpy import feddr_round
from references.logistic import predict

from lit_fed.algorithms import FedDR
from lit_fed.core.local_solver import LocalSolver

SIZES = [5, 2, 8]


@pytest.mark.parametrize("options", [None, {"lr": 0.3, "momentum": 0.5, "weight_decay": 0.05}], ids=["exact", "sgd"])
@pytest.mark.parametrize(("weighting", "l1"), [("uniform", 0.05), ("samples", 0.0)])
def test_rounds_are_those_of_the_reference(options, weighting, l1, client_trainer):
    """All users and some; the reflections of absent ones go on counting."""
    train, solver = make_clients(SIZES), LocalSolver(local_epochs=2, **(options or {}))
    fields = {"solver": solver, "trainer": client_trainer, "batch_size": 2, "weighting": weighting}
    federation = Federation(FedDR(0.7, "inexact" if options else "exact", 1.6, l1), train, **fields)
    common = federation.weights[0].numpy()
    xs, ys, reflected = [common] * 3, [common] * 3, [common] * 3
    for cohort in ([0, 1, 2], [2, 0], [1], [0, 1]):
        common, xs, ys, reflected = feddr_round(
            common, xs, ys, reflected, as_arrays(train), batch_orders(federation), rho=0.7, alpha=1.6, l1=l1,
            weights=SIZES if weighting == "samples" else None, present=cohort, solver=options,
        )  # fmt: skip
        federation.round(cohort)
        np.testing.assert_allclose(federation.weights[0].numpy(), common, rtol=0, atol=1e-9)
        np.testing.assert_allclose(flat(federation.states.models.parameters).numpy(), np.stack(xs), rtol=0, atol=1e-9)
        np.testing.assert_allclose(flat(federation.states.centre).numpy(), np.stack(ys), rtol=0, atol=1e-9)
    for found, (features, _) in zip(federation.predictions(), as_arrays(train), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(common, features), rtol=0, atol=1e-9)


@pytest.mark.parametrize("local_solve", ["exact", "inexact"])
@pytest.mark.parametrize(("l1", "expected"), [(0.0, 3.0), (1.0, 2.5), (7.0, 0.0)])
def test_it_ends_at_the_minimiser_of_two_quadratics(local_solve, l1, expected, newton_step):
    """The mean of ½w² and ½·3(w − 4)², plus l1·|w|: w = 3 − l1/2, or 0."""
    solver = LocalSolver(lr=0.15, local_steps=4)
    federation = run_rounds(FedDR(1.5, local_solve, 1.0, l1), rounds=30, **two_quadratics(solver=solver))
    assert float(federation.weights) == pytest.approx(expected, abs=1e-6)


def test_sampled_users_reach_the_minimiser_too(newton_step):
    cohorts = [[0], [1], [0, 1]] * 14
    federation = run_rounds(FedDR(1.5, "exact"), rounds=42, cohorts=cohorts, **two_quadratics())
    assert float(federation.weights) == pytest.approx(3, abs=1e-6)


def test_a_user_drawn_twice_counts_once():
    one, other = (
        run_rounds(FedDR(), None, make_clients(SIZES), rounds=1, cohorts=[cohort]) for cohort in ([0, 1], [1, 0, 1])
    )
    assert torch.equal(one.weights, other.weights)
