import numpy as np
import pytest
import torch
from federated_round import (
    REGRESSION,
    Federation,
    Scale,
    as_arrays,
    batch_orders,
    distance,
    flat,
    make_clients,
    make_task,
    quadratics,
    run_rounds,
    same_bits,
)
from references.ditto_l2sgd_numpy import l2sgd_round, personal

from lit_fed.algorithms import DittoL2SGD, Local, ProxAvg
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import LocalWork

SIZES = [5, 2, 8]


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("options", [{"lr": 0.5}, {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.05}], ids=str)
@pytest.mark.parametrize("prox_weight", [0.3, 1.0])
def test_rounds_are_those_of_the_reference(options, prox_weight, client_trainer):
    train = make_clients(SIZES)
    solver = LocalSolver(local_epochs=2, **options)
    federation = Federation(DittoL2SGD(prox_weight), train, solver=solver, trainer=client_trainer, batch_size=2)
    w = federation.weights[0].numpy()
    vs = [w] * 3
    for cohort in ([0, 1, 2], [1], [0, 2]):
        orders = batch_orders(federation)
        vs, w = l2sgd_round(vs, w, as_arrays(train), orders, cohort, prox_weight=prox_weight, **options)
        federation.round(cohort)
        np.testing.assert_allclose(flat(federation.states).numpy(), np.stack(vs), rtol=0, atol=1e-10)
        np.testing.assert_allclose(federation.weights[0].numpy(), w, rtol=0, atol=1e-10)


def test_each_client_is_served_by_its_own_model(client_trainer):
    federation = run_rounds(DittoL2SGD(), client_trainer, make_clients(SIZES))
    for found, v, (x, _) in zip(
        federation.predictions(), flat(federation.states), as_arrays(federation.train), strict=True
    ):
        expected = torch.sigmoid(torch.from_numpy(x) @ v[:-1] + v[-1])
        assert distance(found[:, 1].exp(), expected) < 1e-12


# ---------------------------------------------------------------------- identities
def test_it_is_prox_avg_with_equal_weights(client_trainer):
    """Up to the weights of the mean and to absent clients, in which the two repositories differ."""
    train, run = make_clients(SIZES), {"solver": LocalSolver(lr=0.3, momentum=0.5)}
    ours = run_rounds(DittoL2SGD(0.7), client_trainer, train, **run)
    uniform = run_rounds(ProxAvg(0.7), client_trainer, train, weighting="uniform", **run)
    assert same_bits((ours.shared, ours.states.models), (uniform.shared, uniform.states.models))
    by_samples = run_rounds(ProxAvg(0.7), client_trainer, train, **run)
    assert distance(ours.shared, by_samples.shared) > 1e-3


def test_it_reaches_the_mixture_solution(client_trainer):
    """Two clients with the losses ½x² and ½·3·(x − 4)² and λ = 1: (1.2, 3.6) with the mean 2.4."""
    run = {"task": make_task(REGRESSION, 1, Scale), "batch_size": 0, "solver": LocalSolver(lr=0.2, local_steps=2)}
    federation = run_rounds(DittoL2SGD(), client_trainer, quadratics([1.0, 3.0], [0.0, 4.0]), rounds=45, **run)
    assert flat(federation.states)[:, 0].tolist() == pytest.approx([1.2, 3.6], abs=1e-9)
    assert float(federation.weights) == pytest.approx(2.4, abs=1e-9)


@pytest.mark.parametrize("options", [{"lr": 0.4}, {"lr": 0.2, "momentum": 0.9, "weight_decay": 0.05}], ids=str)
def test_without_a_pull_it_is_local(options, client_trainer):
    run = {"solver": LocalSolver(local_epochs=2, **options), "cohorts": [[0, 1, 2], [1], [0, 2]]}
    ours, alone = (run_rounds(one, client_trainer, make_clients(SIZES), **run) for one in (DittoL2SGD(0.0), Local()))
    assert same_bits(ours.states.models, alone.states.models)
    assert same_bits(ours.predictions(), alone.predictions())


# ---------------------------------------------------------------------- who takes part
def test_absent_clients_count_with_the_global_model():
    train = make_clients(SIZES)
    federation = run_rounds(DittoL2SGD(), None, train, rounds=2, cohorts=[[0, 1, 2], [1]])
    first = run_rounds(DittoL2SGD(), None, train, rounds=1, num_rounds=2)
    expected = first.weights[0] + (flat(federation.states)[1] - first.weights[0]) / 3
    assert distance(federation.weights[0], expected) < 1e-14
    assert distance(federation.weights[0], first.weights[0]) > 1e-3


@pytest.mark.parametrize(("weighting", "share"), [("uniform", 1 / 3), ("samples", 2 / 15)])
def test_a_client_alone_moves_the_global_model_by_its_share(weighting, share, client_trainer):
    start = Federation(DittoL2SGD(), make_clients(SIZES)).weights[0]
    run = {"rounds": 1, "cohorts": [[1]], "weighting": weighting}
    federation = run_rounds(DittoL2SGD(), client_trainer, make_clients(SIZES), **run)
    assert distance(federation.weights[0] - start, share * (flat(federation.states)[1] - start)) < 1e-14


def test_more_draws_than_clients_go_to_their_mean_and_not_past_it(client_trainer):
    federation = run_rounds(DittoL2SGD(), client_trainer, make_clients(SIZES), rounds=1, cohorts=[[0, 2, 2, 2]])
    own = flat(federation.states)
    assert distance(federation.weights[0], (own[0] + 3 * own[2]) / 4) < 1e-14
    two = run_rounds(DittoL2SGD(), client_trainer, make_clients(SIZES), rounds=1, cohorts=[[2, 2]])
    start = Federation(DittoL2SGD(), make_clients(SIZES)).weights[0]
    assert distance(two.weights[0], start + (own[2] - start) * 2 / 3) < 1e-14


# ---------------------------------------------------------------------- unseen clients
@pytest.mark.parametrize("epochs", [0, 1, 3])
def test_an_unseen_client_trains_from_and_towards_the_global_model(epochs, client_trainer):
    train, unseen = make_clients(SIZES), make_clients([6, 3], seed=2, first_id=3)
    federation = run_rounds(DittoL2SGD(0.7, unseen_epochs=epochs), client_trainer, train)
    w = federation.weights[0].numpy()
    orders = batch_orders(federation, "adapt", LocalWork(epochs=epochs), unseen)
    expected = [personal(w, w, x, y, own, 0.7, 0.1) for own, (x, y) in zip(orders, as_arrays(unseen), strict=True)]
    served = flat(federation.serve(unseen, seen=False)).numpy()
    np.testing.assert_allclose(served, np.stack(expected), rtol=0, atol=1e-10)
