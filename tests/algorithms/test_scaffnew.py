import numpy as np
import pytest
import torch
from federated_round import (
    REGRESSION,
    Federation,
    as_arrays,
    batch_orders,
    flat,
    make_clients,
    make_task,
    run_rounds,
    same_bits,
    two_quadratics,
)
from references.logistic import gradient, predict, with_bias
from references.scaffnew_numpy import scaffnew

from lit_fed.algorithms import FedAvg, Scaffnew
from lit_fed.clients import VectorizedTrainer
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.seeds import generator

SIZES = [5, 2, 8]


def steps_of(round_idx, p, seed=0):
    return int(generator(seed, round_idx, 0, "scaffnew").geometric(p))


def run_reference(federation, cohorts, p):
    """Rounds of federation and reference side by side."""
    lr, clients = federation.solver.lr, as_arrays(federation.train)
    weights = [len(y) if federation.weighting == "samples" else 1 for _, y in clients]
    x, hs, lengths = federation.weights[0].numpy(), [np.zeros(5)] * len(clients), set()
    for cohort in cohorts:
        steps = steps_of(federation.round_idx, p)
        lengths.add(steps)
        orders = batch_orders(federation, work=federation.solver.work._replace(epochs=None, steps=steps))
        slopes = [
            lambda t, theta, i=i, own=orders[i]: gradient(theta, *(part[own[t]] for part in clients[i])) for i in cohort
        ]
        coins = [False] * (steps - 1) + [True]
        own = [hs[i] for i in cohort], [weights[i] for i in cohort]
        (x, *_), new = scaffnew([x] * len(cohort), own[0], coins, slopes, own[1], p=p, lr=lr)
        for i, h in zip(cohort, new, strict=True):
            hs[i] = h
        federation.round(cohort)
        np.testing.assert_allclose(federation.weights[0].numpy(), x, rtol=0, atol=1e-10)
        np.testing.assert_allclose(flat(federation.states.control).numpy(), np.stack(hs), rtol=0, atol=1e-9)
    assert len(lengths) > 1
    return x


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_rounds_are_those_of_the_reference(weighting, client_trainer):
    train = make_clients(SIZES)
    fields = {"solver": LocalSolver(lr=0.4), "trainer": client_trainer, "batch_size": 2, "weighting": weighting}
    federation = Federation(Scaffnew(0.4), train, **fields)
    theta = run_reference(federation, [[0, 1, 2]] * 3 + [[0, 2], [1, 2], [0]], 0.4)
    for found, (x, _) in zip(federation.predictions(), as_arrays(train), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(theta, x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_it_ends_at_the_minimiser(weighting):
    """Least squares with several local steps a round, where FedAvg ends elsewhere; h_i is ∇f_i there."""
    train, task = make_clients([6, 9, 3], 2, REGRESSION), make_task(REGRESSION, 2)
    fields = {"task": task, "batch_size": 0, "weighting": weighting, "rounds": 30, "solver": LocalSolver(lr=0.5)}
    ours = run_rounds(Scaffnew(0.5), VectorizedTrainer(), train, **fields)
    clients = [(with_bias(x), y) for x, y in as_arrays(train)]
    weight = [len(y) if weighting == "samples" else 1 for _, y in clients]
    hessian = sum(w * x.T @ x / len(y) for w, (x, y) in zip(weight, clients, strict=True))
    optimum = np.linalg.solve(hessian, sum(w * x.T @ y / len(y) for w, (x, y) in zip(weight, clients, strict=True)))
    np.testing.assert_allclose(ours.weights[0].numpy(), optimum, rtol=0, atol=1e-7)
    slopes = [x.T @ (x @ optimum - y) / len(y) for x, y in clients]
    np.testing.assert_allclose(flat(ours.states.control).numpy(), np.stack(slopes), rtol=0, atol=1e-5)
    biased = run_rounds(FedAvg(), VectorizedTrainer(), train, **fields | {"solver": LocalSolver(lr=0.5, local_steps=2)})
    assert np.abs(biased.weights[0].numpy() - optimum).max() > 1e-3


def test_two_quadratics_with_some_clients_keep_the_sum_of_controls():
    federation = Federation(Scaffnew(0.5), **two_quadratics(solver=LocalSolver(lr=0.1), batch_size=0))
    for cohort in ([0, 1], [0], [1], [0, 1]):
        federation.round(cohort)
        assert abs(float(federation.states.control["weight"].sum())) < 1e-12


def test_always_averaging_is_fedavg_of_one_step(client_trainer):
    fields = {"train": make_clients(SIZES), "batch_size": 0, "weighting": "uniform"}
    ours = run_rounds(Scaffnew(1.0), client_trainer, solver=LocalSolver(lr=0.3), rounds=1, **fields)
    plain = run_rounds(FedAvg(), client_trainer, solver=LocalSolver(lr=0.3, local_steps=1), rounds=1, **fields)
    assert same_bits(ours.shared, plain.shared)


def test_a_rate_of_zero_keeps_the_controls():
    federation = run_rounds(Scaffnew(), None, make_clients(SIZES), rounds=2, solver=LocalSolver(lr=0.0))
    assert float(flat(federation.states.control).abs().max()) == 0.0


def test_the_mean_comes_down_once(client_trainer):
    """At the end of a round; at its start only to clients that missed the end of the last one."""
    federation = Federation(Scaffnew(), make_clients(SIZES), trainer=client_trainer)
    bits = []
    for cohort in ([0, 1, 2], [0, 1], [1, 2]):
        federation.round(cohort)
        bits.append((federation.bits / (5 * 64)).tolist())
    assert bits == [[3, 3], [2, 2], [2, 3]]


def test_steps_are_geometric():
    counts = torch.tensor([steps_of(one, 0.25) for one in range(400)], dtype=torch.float64)
    assert float(counts.mean()) == pytest.approx(4, abs=0.6)
    assert counts.min() == 1
