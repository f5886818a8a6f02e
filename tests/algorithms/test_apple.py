import math

import numpy as np
import pytest
from federated_round import Federation, as_arrays, batch_orders, flat, make_clients, run_rounds
from references.apple_numpy import apple_round, train
from references.logistic import predict

from lit_fed.algorithms import APPLE, Local
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import LocalWork

SIZES = [5, 2, 8]


@pytest.mark.parametrize(("weighting", "schedule"), [("samples", "exponential"), ("uniform", "cosine")])
def test_rounds_are_those_of_the_reference(weighting, schedule, client_trainer):
    """All clients and some; the pull to p_0 falls and is gone in round 3."""
    solver = {"lr": 0.8, "momentum": 0.5}
    fields = {"solver": LocalSolver(local_epochs=2, **solver), "trainer": client_trainer, "batch_size": 2}
    algorithm = APPLE(0.1, 0.7, 3, schedule)
    federation = Federation(algorithm, make_clients(SIZES), weighting=weighting, **fields)
    clients, theta = as_arrays(federation.train), flat(federation.task.init(1, 0).parameters)[0].numpy()
    cores, shifts, personal, sizes = [theta] * 3, [np.zeros(3)] * 3, [theta] * 3, np.ones(3)
    for round_idx, cohort in enumerate(([0, 2], [0, 1, 2], [1, 2], [0, 1])):
        if round_idx == 1 and weighting == "samples":
            sizes = np.array([5, 6.5, 8])  # client 1 has sent nothing yet, and counts as the average
        elif weighting == "samples" and round_idx > 1:
            sizes = np.array(SIZES)
        prior = sizes / sizes.sum()
        falls = {"cosine": (1 + math.cos(math.pi * round_idx / 3)) / 2, "exponential": 0.001 ** (round_idx / 3)}
        pull = 0.7 * falls[schedule] * (round_idx < 3)
        cores, ps, personal = apple_round(
            cores, [prior + shift for shift in shifts], personal, prior, clients, batch_orders(federation),
            present=cohort, relation_lr=0.1, pull=pull, **solver,
        )  # fmt: skip
        shifts = [p - prior for p in ps]
        federation.round(cohort)
        np.testing.assert_allclose(
            flat(federation.shared.peers.parameters).numpy(), np.stack(cores), rtol=0, atol=1e-10
        )
        np.testing.assert_allclose(federation.states.shift.numpy(), shifts, rtol=0, atol=1e-10)
        found = flat(federation.states.models.parameters).numpy()
        np.testing.assert_allclose(found, np.stack(personal), rtol=0, atol=1e-10)
    assert np.ptp(ps, axis=0).max() > 0.05
    told = algorithm.collaboration(federation.context("train"), federation.shared, federation.states)
    np.testing.assert_allclose(told.numpy(), ps, rtol=0, atol=1e-10)
    for found, own, (x, _) in zip(federation.predictions(), personal, clients, strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(own, x), rtol=0, atol=1e-10)


def test_an_unseen_client_learns_its_relations(client_trainer):
    unseen = make_clients([6, 3], seed=2, first_id=3)
    algorithm = APPLE(0.2, 0.7, 9, unseen_epochs=2)
    federation = run_rounds(algorithm, client_trainer, make_clients(SIZES), rounds=2, weighting="samples")
    orders = batch_orders(federation, "adapt", LocalWork(epochs=2), unseen)
    cores, prior = flat(federation.shared.peers.parameters).numpy(), np.array(SIZES) / 15
    found = federation.serve(unseen, seen=False)
    options = {"lr": 0.1, "relation_lr": 0.2, "pull": 0.7 * 0.001 ** (2 / 9), "learns_core": False}
    for row, (order, (x, y)) in enumerate(zip(orders, as_arrays(unseen), strict=True)):
        _, p, own = train(None, cores, prior, prior, x, y, order, **options)
        np.testing.assert_allclose((prior + found.shift[row].numpy()), p, rtol=0, atol=1e-10)
        np.testing.assert_allclose(flat(found.models.parameters)[row].numpy(), own, rtol=0, atol=1e-10)


def test_one_client_without_a_rate_of_relations_is_local(client_trainer):
    options = {"solver": LocalSolver(lr=0.3, momentum=0.5), "rounds": 3}
    ours, alone = (run_rounds(one, client_trainer, make_clients([7]), **options) for one in (APPLE(0.0), Local()))
    found, expected = (flat(one.states.models.parameters).numpy() for one in (ours, alone))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_bytes():
    """Up a model and a number of samples; down the models of all others."""
    federation = Federation(APPLE(), make_clients(SIZES))
    bits = []
    for _ in range(2):
        federation.round()
        bits.append((federation.bits / 64).tolist())
    assert bits == [[3 * 6, 3 * 10]] * 2
