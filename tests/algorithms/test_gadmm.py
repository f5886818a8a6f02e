import numpy as np
import pytest
import torch
from federated_round import (
    REGRESSION,
    Federation,
    NormalisedLinear,
    Scale,
    as_arrays,
    batch_orders,
    distance,
    flat,
    least_squares,
    make_clients,
    make_task,
    quadratics,
    reordered,
    run_rounds,
    same_bits,
)
from references.gadmm_numpy import gadmm_round, rewire
from references.logistic import exact, inexact, predict

import lit_fed.algorithms.gadmm as module
from lit_fed.algorithms import GADMM
from lit_fed.algorithms.gadmm import Chain, chain
from lit_fed.clients import VectorizedTrainer
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver

SIZES = [5, 2, 8, 3, 4]
EXACT = {"local_solve": "exact"}


def models(federation):
    """x_i as rows, [T, d + 1]."""
    return flat(federation.states.models.parameters)


def multipliers(federation, order):
    """λ of each link, from the linear terms λ_p − λ_{p−1} of the clients along the chain, [T − 1, d + 1]."""
    return flat(federation.shared.dual)[order].cumsum(0)[:-1]


def run_reference(federation, rounds, solver=None, samples=False):
    """Rounds of federation and reference side by side."""
    algorithm, num, every = federation.algorithm, federation.train.num_clients, federation.algorithm.redraw_every
    xs = list(models(federation).numpy())
    lambdas = [np.zeros_like(xs[0])] * (num - 1)
    order = list(range(num))
    for t in range(rounds):
        old, order = order, chain(num, federation.seed, t // every if every else None).order.tolist()
        if every and t and t % every == 0:
            lambdas = rewire(lambdas, old, order)
        batches = {group: batch_orders(federation, group) for group in ("heads", "tails")}
        xs, lambdas = gadmm_round(
            xs, lambdas, as_arrays(federation.train), batches, order=order, rho=algorithm.penalty_weight,
            samples=samples, solver=solver,
        )  # fmt: skip
        federation.round()
        np.testing.assert_allclose(models(federation).numpy(), np.stack(xs), rtol=0, atol=1e-9)
        np.testing.assert_allclose(multipliers(federation, order).numpy(), np.stack(lambdas), rtol=0, atol=1e-9)
        np.testing.assert_array_equal(flat(federation.shared.peers.parameters), models(federation))
    return xs


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("options", [{"lr": 0.3}, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}], ids=str)
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_inexact_rounds_are_those_of_the_reference(options, weighting, client_trainer):
    train, test = make_clients(SIZES), make_clients([4, 2, 3, 1, 2], seed=1)
    solver = LocalSolver(local_epochs=2, **options)
    federation = Federation(GADMM(0.7), train, solver=solver, trainer=client_trainer, batch_size=2, weighting=weighting)
    xs = run_reference(federation, 3, options, weighting == "samples")
    for found, theta, (x, _) in zip(federation.predictions(test), xs, as_arrays(test), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(theta, x), rtol=0, atol=1e-9)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_exact_rounds_are_those_of_the_reference(weighting, client_trainer):
    federation = Federation(GADMM(0.5, **EXACT), make_clients(SIZES), trainer=client_trainer, weighting=weighting)
    run_reference(federation, 3, samples=weighting == "samples")


@pytest.mark.parametrize("every", [1, 2])
def test_redrawn_chains_are_those_of_the_reference(every, client_trainer):
    federation = Federation(
        GADMM(0.7, every), make_clients(SIZES), solver=LocalSolver(lr=0.3), trainer=client_trainer, batch_size=2
    )
    run_reference(federation, 5, {"lr": 0.3})


# ---------------------------------------------------------------------- two quadratics
@pytest.mark.parametrize(("rounds", "x"), [(1, (0, 3)), (2, (3, 3)), (3, (3, 3))])
def test_first_rounds_on_two_quadratics(rounds, x):
    """½x² and ½·3(x − 4)², from 0, with ρ = 1."""
    task, train = make_task(REGRESSION, num_features=1, network=Scale), quadratics([1.0, 3.0], [0.0, 4.0])
    federation = run_rounds(GADMM(1.0, **EXACT), None, train, rounds=rounds, task=task)
    assert models(federation)[:, 0].tolist() == pytest.approx(x, abs=1e-12)
    assert float(multipliers(federation, [0, 1])) == pytest.approx(-3, abs=1e-12)


# ---------------------------------------------------------------------- the optimum
@pytest.mark.parametrize(
    ("num", "algorithm", "weighting", "rounds", "within"),
    [
        (6, GADMM(1.5, **EXACT), "uniform", 45, 1e-6),
        (6, GADMM(1.0, **EXACT), "samples", 35, 1e-3),
        (5, GADMM(1.0, **EXACT), "uniform", 35, 1e-3),
        (6, GADMM(1.0, 1, **EXACT), "uniform", 30, 1e-3),
        (6, GADMM(1.0, 7, **EXACT), "uniform", 30, 1e-3),
    ],
    ids=["uniform", "samples", "odd", "redrawn at once", "redrawn"],
)
def test_quadratics_reach_the_optimum_of_the_sum(num, algorithm, weighting, rounds, within, newton_step):
    train = make_clients([6, 9, 12, 5, 7, 8][:num], num_features=3, target=REGRESSION)
    task = make_task(REGRESSION, num_features=3)
    federation = run_rounds(algorithm, VectorizedTrainer(), train, rounds=rounds, task=task, weighting=weighting)
    weights = [len(y) if weighting == "samples" else 1 for _, y in as_arrays(train)]
    optimum = least_squares(train, weights)
    np.testing.assert_allclose(models(federation).numpy(), np.stack([optimum] * num), rtol=0, atol=within)


def test_heads_move_before_tails(client_trainer):
    """A tail sees the new models of its neighbours, and a head the old ones."""
    phases = GADMM().phases(Federation(GADMM(), make_clients(SIZES)).context("plan"), torch.tensor([4, 1, 0, 2, 3, 0]))
    assert [(phase.name, phase.client_ids.tolist()) for phase in phases] == [("heads", [0, 2, 4]), ("tails", [1, 3])]


# ---------------------------------------------------------------------- other chains
def test_clients_under_other_names_with_the_chain_renamed(monkeypatch, client_trainer):
    order = torch.tensor([2, 0, 3, 1, 4])  # whom each new name stands for
    train = make_clients(SIZES)
    renamed = reordered(train, order)
    one = run_rounds(GADMM(0.7), client_trainer, train, batch_size=0)
    natural, new = chain(5, 0), torch.argsort(order)  # the new name of each client
    edges = torch.cat([natural.edges[:-1][order], natural.edges[-1:]])[:, order]
    monkeypatch.setattr(module, "chain", lambda *_: Chain(new, natural.heads[order], edges))
    other = run_rounds(GADMM(0.7), client_trainer, renamed, batch_size=0)
    assert distance(tree.index(one.states, order), other.states) < 1e-10
    assert distance(tree.index(one.shared.dual, order), other.shared.dual) < 1e-10
    assert distance(one.shared.peers.mean, other.shared.peers.mean) < 1e-10


def test_redraws_are_the_same_in_every_run_and_change_the_chain():
    train = make_clients([3] * 8)
    drawn = [chain(8, 0, draw).order.tolist() for draw in range(3)]
    assert len({tuple(one) for one in drawn}) == 3
    one, other = (run_rounds(GADMM(0.7, 2), None, train, rounds=5) for _ in range(2))
    assert same_bits((one.shared, one.states), (other.shared, other.states))
    fixed = run_rounds(GADMM(0.7), None, train, rounds=5)
    assert distance(one.states, fixed.states) > 1e-4


# ---------------------------------------------------------------------- traffic, serving
@pytest.mark.parametrize("local_solve", ["exact", "inexact"])
def test_one_broadcast_up_and_a_model_from_each_neighbour(local_solve, client_trainer):
    task, train = make_task(dtype=torch.float32), make_clients(SIZES, dtype=torch.float32)
    federation = Federation(GADMM(1.0, local_solve=local_solve), train, task, trainer=client_trainer)
    for _ in range(2):
        federation.round()
        assert federation.bits.tolist() == [5 * 5 * 32, 2 * 4 * 5 * 32]


def test_a_new_chain_costs_a_broadcast_of_each_tail(client_trainer):
    task, train = make_task(dtype=torch.float32), make_clients(SIZES, dtype=torch.float32)
    federation = Federation(GADMM(1.0, 2), train, task, trainer=client_trainer)
    model = 5 * 32
    for up, down in ((5, 8), (5, 8), (5 + 2, 8 + 4), (5, 8), (5 + 2, 8 + 4)):
        federation.round()
        assert federation.bits.tolist() == [up * model, down * model]


def test_running_statistics_are_sent_with_the_models(client_trainer):
    train, task = make_clients([6, 4, 8]), make_task(network=NormalisedLinear)
    federation = run_rounds(GADMM(), client_trainer, train, task=task, batch_size=0)
    for name in ("norm.running_mean", "norm.running_var"):
        own = federation.states.models.buffers[name]
        assert same_bits(federation.shared.peers.buffers[name], own)
        assert distance(federation.shared.peers.mean.buffers[name], own.mean(0)) < 1e-12
        assert distance(own[0], own[1]) > 1e-3


@pytest.mark.parametrize("every", [0, 2])
@pytest.mark.parametrize("local_solve", ["exact", "inexact"])
def test_an_unseen_client_is_attached_to_the_end_of_the_chain(local_solve, every, client_trainer):
    train, unseen = make_clients(SIZES), make_clients([6, 3], seed=2, first_id=5)
    solver = LocalSolver(lr=0.3, momentum=0.5, local_epochs=2)
    algorithm = GADMM(0.7, every, local_solve=local_solve)
    federation = run_rounds(algorithm, client_trainer, train, solver=solver, batch_size=2)
    last = chain(5, 0, 3 // 2 if every else None).order[-1]
    end = models(federation)[last].numpy()
    work = algorithm.adapt_work(federation.context("adapt"), seen=False)
    orders = batch_orders(federation, "adapt", work, unseen) if local_solve == "inexact" else [None] * 2
    served = federation.predictions(unseen, seen=False)
    for found, batches, (x, y) in zip(served, orders, as_arrays(unseen), strict=True):

        def added(theta):
            return 0.7 * (theta - end)

        theta = (
            exact(end, x, y, 1.0, added, 0.7)
            if local_solve == "exact"
            else inexact(end, x, y, 1.0, added, batches, lr=0.3, momentum=0.5)
        )
        np.testing.assert_allclose(found.exp().numpy(), predict(theta, x), rtol=0, atol=1e-9)
    assert algorithm.adapt_work(federation.context("adapt"), seen=True) is None


def test_every_client_takes_part():
    assert GADMM.participation.needs_all_clients
    assert GADMM().collaboration(None, None, None) is None


def test_loss_is_that_of_the_group(client_trainer):
    """Exact solves tell the loss at the minimiser, heads in their phase and tails in theirs."""
    federation = run_rounds(GADMM(0.5, **EXACT), client_trainer, make_clients(SIZES))
    scores = federation.evaluate()
    losses = scores[:, 1] / scores[:, 0]
    assert federation.metrics["loss"] == pytest.approx(float(losses.mean()), abs=1e-12)
