import numpy as np
import pytest
from federated_round import (
    REGRESSION,
    Federation,
    as_arrays,
    batch_orders,
    distance,
    flat,
    make_clients,
    make_task,
    run_rounds,
)
from references.logistic import predict
from references.mixture_admm_numpy import mixture_solution
from references.mixture_dca_numpy import dca_rounds, objective

from lit_fed.algorithms import MixtureADMM, MixtureDCA
from lit_fed.clients import VectorizedTrainer
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver, Penalty
from lit_fed.core.solvers.newton import minimise

SIZES = [5, 2, 8]


def same_points(federation, expected, v):
    found = flat(federation.states.models.parameters).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8)
    np.testing.assert_allclose(federation.weights[0].numpy(), v.mean(0), rtol=0, atol=1e-8)
    np.testing.assert_allclose(flat(federation.shared.mean)[0].numpy(), expected.mean(0), rtol=0, atol=1e-8)


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_exact_rounds_are_those_of_the_reference(weighting, client_trainer):
    train, test = make_clients(SIZES), make_clients([4, 2, 3], seed=1)
    clients = as_arrays(train)
    federation = Federation(MixtureDCA(2.0, local_solve="exact"), train, trainer=client_trainer, weighting=weighting)
    shares = [3 * size / sum(SIZES) if weighting == "samples" else 1.0 for size in SIZES]
    points, v, taken = dca_rounds(federation.weights[0].numpy(), clients, 2.0, 5, shares=shares, q=5)
    for _ in range(5):
        federation.round()
    same_points(federation, points[-1], v)
    assert all(taken)
    value = objective(points[-1], clients, shares, 2.0) / 3
    assert float(federation.shared.values[-1]) == pytest.approx(value, abs=1e-9)
    for found, own, (x, _) in zip(federation.predictions(test), points[-1], as_arrays(test), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(own, x), rtol=0, atol=1e-8)


@pytest.mark.parametrize("q", [0, 1, None])
def test_inexact_rounds_are_those_of_the_reference(q, client_trainer):
    """With steps so long that some extrapolated points are worse."""
    solver, options = LocalSolver(lr=0.5, local_epochs=2), {"lr": 0.5}
    algorithm = MixtureDCA(0.7, accelerated=q is not None, memory=q or 0)
    federation = Federation(algorithm, make_clients(SIZES), solver=solver, trainer=client_trainer, batch_size=2)
    start, orders = federation.weights[0].numpy(), []
    for _ in range(8):
        orders.append(batch_orders(federation))
        federation.round()
    points, v, taken = dca_rounds(
        start, as_arrays(federation.train), 0.7, 8, q=q, sgd=options, batches=lambda k: orders[k - 1]
    )
    same_points(federation, points[-1], v)
    assert len({*taken[1:]}) == (1 if q is None else 2)


# ---------------------------------------------------------------------- the mixture solution
def error_after(rounds, lam, **options):
    """Largest error after some rounds on N = 6 random quadratics in d = 3, and a bias."""
    train = make_clients([5, 9, 7, 6, 12, 8], num_features=3, target=REGRESSION, seed=4)
    setting = {"train": train, "task": make_task(REGRESSION, num_features=3), "trainer": VectorizedTrainer()}
    federation = run_rounds(MixtureDCA(lam, local_solve="exact", **options), rounds=rounds, **setting)
    x, _ = mixture_solution(as_arrays(train), lam)
    return np.abs(flat(federation.states.models.parameters).numpy() - x).max()


def test_the_mixture_solution_is_found_sooner_with_acceleration(newton_step):
    """For a strong pull, where plain DCA is slow."""
    plain, accelerated = (error_after(18, 20.0, accelerated=one) for one in (False, True))
    assert accelerated < plain / 5


# ---------------------------------------------------------------------- identities
@pytest.mark.parametrize("local_solve", ["exact", "inexact"])
def test_without_acceleration_it_is_alternating_minimisation(local_solve, client_trainer):
    options = {"train": make_clients(SIZES), "solver": LocalSolver(lr=0.05, local_epochs=2), "weighting": "samples"}
    plain = run_rounds(MixtureDCA(0.7, accelerated=False, local_solve=local_solve), client_trainer, **options)
    other = run_rounds(MixtureADMM(0.7, local_solve=local_solve), client_trainer, **options)
    assert distance(plain.states.models, other.states.models) < 1e-11
    assert distance(plain.shared.models, other.shared.models) < 1e-11


def test_the_first_two_rounds_are_not_extrapolated(client_trainer):
    """As t_1 = 1."""
    fast, plain = (
        run_rounds(MixtureDCA(0.7, accelerated=one), client_trainer, make_clients(SIZES), rounds=2, num_rounds=3)
        for one in (True, False)
    )
    assert distance(fast.states, plain.states) < 1e-13
    assert distance(fast.shared.models, plain.shared.models) > 1e-3


# ---------------------------------------------------------------------- serving and traffic
def test_an_unseen_client_takes_the_proximal_point(client_trainer):
    unseen = make_clients([6, 3], seed=2, first_id=3)
    federation = run_rounds(MixtureDCA(0.7, local_solve="exact"), client_trainer, make_clients(SIZES))
    served, v = federation.serve(unseen, seen=False), federation.shared.models
    for row in range(2):
        expected = minimise(make_task(), v, unseen.client(3 + row), Penalty(0.7, v.parameters))
        assert distance(tree.index(served.models, row), expected) < 1e-11


def test_values_cost_two_numbers(client_trainer):
    for accelerated, more in ((False, 0), (True, 2)):
        federation = run_rounds(MixtureDCA(accelerated=accelerated), client_trainer, make_clients(SIZES), rounds=1)
        assert federation.bits.tolist() == [3 * (5 + more) * 64, 3 * 5 * 64]
