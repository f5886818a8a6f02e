import numpy as np
import pytest
import torch
from federated_round import (
    MULTICLASS,
    REGRESSION,
    Federation,
    as_arrays,
    batch_orders,
    distance,
    flat,
    make_clients,
    make_task,
    run_rounds,
    same_bits,
)
from references.logistic import predict
from references.mocha_numpy import mocha_round, objectives
from scipy.optimize import minimize

from lit_fed.algorithms import MOCHA, mocha
from lit_fed.algorithms.mocha import _damping_of
from lit_fed.clients import VectorizedTrainer
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import LocalWork, Split
from lit_fed.errors import ConfigError
from lit_fed.models import MLP

SIZES = [5, 2, 8, 4]
NEW = np.array([[0.4, 0.2, -0.1, 0.0], [0.2, 0.3, 0.05, 0.02], [-0.1, 0.05, 0.2, 0.01], [0.0, 0.02, 0.01, 0.1]])


def columns(peers):
    """W of binary tasks, [d + 1, T], the bias last."""
    return flat(peers.parameters).T.numpy()


def costs_of(train, samples=False):
    total, sizes = int(train.sizes.sum()), train.sizes.tolist()
    return [len(sizes) / total if samples else 1 / size for size in sizes]


def alphas_of(federation):
    """Signed dual variables of every client."""
    duals, arrays = federation.states.dual[:, 0].numpy(), as_arrays(federation.train)
    return [dual[: len(y)] * (2 * y - 1) for dual, (_, y) in zip(duals, arrays, strict=True)]


def gap_parts(federation):
    options = {"lam": federation.algorithm.regularisation, "costs": costs_of(federation.train)}
    return objectives(alphas_of(federation), federation.shared.sigma[0].numpy(), as_arrays(federation.train), **options)


def with_sigma(federation, sigma):
    """The federation with another Σ from the start."""
    sigma = torch.as_tensor(sigma)[None].double()
    federation.shared = federation.shared._replace(sigma=sigma, damping=_damping_of(sigma))
    return federation


def orders_of(federation):
    work = federation.algorithm.phases(federation.context("plan"), torch.arange(1))[0].work
    return [[int(step[0]) for step in steps] for steps in batch_orders(federation, work=work)]


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("solver", [LocalSolver(local_epochs=2, momentum=0.9), LocalSolver(local_steps=7)])
def test_rounds_are_those_of_the_reference(weighting, solver, client_trainer):
    train, test = make_clients(SIZES), make_clients([4, 2, 3, 1], seed=1)
    algorithm = MOCHA(0.05, rounds_per_relation=2, epsilon=0.02)
    federation = Federation(algorithm, train, solver=solver, trainer=client_trainer, weighting=weighting)
    alphas, sigma = [np.zeros(size) for size in SIZES], np.eye(4) / 4
    for round_idx in range(5):
        alphas, sigma, W = mocha_round(
            alphas, sigma, as_arrays(train), orders_of(federation), lam=0.05,
            costs=costs_of(train, weighting == "samples"), epsilon=0.02 if round_idx % 2 else None,
        )  # fmt: skip
        federation.round()
        np.testing.assert_allclose(columns(federation.shared.peers), W, rtol=0, atol=1e-9)
        np.testing.assert_allclose(federation.shared.sigma[0].numpy(), sigma, rtol=0, atol=1e-9)
        for found, expected in zip(alphas_of(federation), alphas, strict=True):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
    for found, w, (x, _) in zip(federation.predictions(test), W.T, as_arrays(test), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(w, x), rtol=0, atol=1e-9)


def test_sampled_rounds_and_stragglers_are_those_of_the_reference(client_trainer):
    """Absent clients change nothing; those that take fewer steps change less."""
    train = make_clients(SIZES)
    solver = LocalSolver(local_epochs=3, straggler_fraction=0.7)
    federation = with_sigma(Federation(MOCHA(0.05, 0), train, solver=solver, trainer=client_trainer), NEW)
    alphas, taken = [np.zeros(size) for size in SIZES], set()
    for cohort in ([0, 2], [1], [1, 2, 3], [3]):
        orders = orders_of(federation)
        taken |= {len(orders[one]) / SIZES[one] for one in cohort}
        alphas, _, W = mocha_round(
            alphas, NEW, as_arrays(train), orders, lam=0.05, costs=costs_of(train), present=cohort
        )
        before = federation.states
        federation.round(cohort)
        for one in set(range(4)) - set(cohort):
            assert same_bits(tree.index(federation.states, one), tree.index(before, one))
        np.testing.assert_allclose(columns(federation.shared.peers), W, rtol=0, atol=1e-10)
    assert len(taken) > 1


# ---------------------------------------------------------------------- the optimum
@pytest.mark.parametrize("damping", ["as computed", 2.0, 1.0])
def test_the_duality_gap_closes(damping):
    federation = with_sigma(Federation(MOCHA(0.05, 0), make_clients(SIZES), trainer=VectorizedTrainer()), NEW)
    if damping != "as computed":
        federation.shared = federation.shared._replace(damping=torch.tensor([damping], dtype=torch.float64))
    duals = []
    for _ in range(45):
        federation.round()
        primal, dual = gap_parts(federation)
        assert primal - dual > -1e-12
        duals.append(dual)
    assert min(np.diff(duals)) > -1e-12 or damping == 1.0  # which is below the safe value here
    assert primal - dual < 1e-4
    assert duals[0] < duals[-1] - 1e-3


def test_logistic_losses_reach_the_optimum():
    train = make_clients(SIZES)
    federation = run_rounds(MOCHA(0.02, 0, loss="logistic"), VectorizedTrainer(), train, rounds=60)
    for found, (x, y) in zip(columns(federation.shared.peers).T, as_arrays(train), strict=True):
        rows = (2 * y - 1)[:, None] * np.append(x, np.ones((len(x), 1)), 1)
        margins = rows @ found
        slope = -rows.T @ (1 / (1 + np.exp(margins))) / len(y) + 4 * 0.02 * found
        assert np.abs(slope).max() < 1e-9


def test_learned_relations_find_the_groups():
    """Two kinds of clients with opposite labels: alike within a kind, opposed between them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6 * 40, 3))
    y = (x[:, 0] > 0) ^ (np.arange(240) // 40 % 2 == 1)
    train = Split(torch.from_numpy(x), torch.from_numpy(y.astype(np.int64)), torch.arange(7) * 40)
    task = make_task(num_features=3)
    federation = run_rounds(MOCHA(0.001, 5), VectorizedTrainer(), train, rounds=20, task=task)
    sigma = federation.algorithm.collaboration(federation.context("train"), federation.shared, federation.states)
    same = (torch.arange(6)[:, None] - torch.arange(6)) % 2 == 0
    assert (sigma[same] > 0).all()
    assert (sigma[~same] < 0).all()
    assert federation.evaluate()[:, 2].sum() / 240 > 0.97


# ---------------------------------------------------------------------- several classes, clients in another order
def test_classes_are_one_against_the_rest(client_trainer):
    train = make_clients([6, 9], target=MULTICLASS)
    options = {"rounds": 4, "seed": 3}
    whole = run_rounds(MOCHA(0.02, 2), client_trainer, train, task=make_task(MULTICLASS, model_axis="loop"), **options)
    margins = []
    for label in range(3):
        one = run_rounds(
            MOCHA(0.02, 2), client_trainer, Split(train.x, (train.y == label).long(), train.offsets), **options
        )
        assert distance(whole.shared.sigma[label], one.shared.sigma[0]) < 1e-12
        assert distance(whole.shared.combined[:, label], one.shared.combined[:, 0]) < 1e-12
        margins.append([prediction[:, 1] for prediction in one.predictions()])
    for row, prediction in enumerate(whole.predictions()):
        shares = torch.stack([each[row] for each in margins], dim=1).exp()
        assert distance(prediction.exp(), shares / shares.sum(1, keepdim=True)) < 1e-12


def test_clients_under_other_numbers_get_the_same_models(client_trainer):
    """With one sample each, so that the order of coordinate steps does not depend on the number."""
    train, order = make_clients([1] * 5), torch.tensor([3, 0, 4, 1, 2])
    renamed = Split(train.x[order], train.y[order], train.offsets)
    one, other = (run_rounds(MOCHA(0.05, 2), client_trainer, data, rounds=5) for data in (train, renamed))
    assert distance(tree.index(one.shared.peers.each, order), other.shared.peers.each) < 1e-10
    assert distance(one.shared.sigma[:, order][:, :, order], other.shared.sigma) < 1e-10


# ---------------------------------------------------------------------- unseen clients
@pytest.mark.parametrize("size", [3, 12])
def test_an_unseen_client_solves_its_own_problem_around_the_mean(size, client_trainer, monkeypatch):
    """Also where it has more samples than any client of the training."""
    unseen = make_clients([size, 2], seed=7, first_id=4)
    monkeypatch.setattr(mocha, "UNSEEN_EPOCHS", 400)
    federation = run_rounds(MOCHA(0.02, 2), client_trainer, make_clients(SIZES))
    before = tree.map_leaves(torch.clone, federation.shared)
    states = federation.serve(unseen, seen=False)
    assert same_bits(federation.shared, before)
    assert len(states.dual[0, 0]) == max(SIZES)
    x, y = as_arrays(unseen)[0]
    rows = (2 * y - 1)[:, None] * np.append(x, np.ones((len(x), 1)), 1)
    mean, own = flat(federation.shared.peers.mean.parameters)[0].numpy(), flat(states.models)[0].numpy()
    shift, lam = own - mean, 4 * 0.02
    # its dual certificate: the shift is a combination of its samples, and closes the gap
    beta, *_ = np.linalg.lstsq(rows.T / (lam * size), shift, rcond=None)
    assert np.abs(rows.T @ beta / (lam * size) - shift).max() < 1e-9
    primal = np.maximum(0, 1 - rows @ own).mean() + lam / 2 * shift @ shift
    best = minimize(
        lambda w: np.maximum(0, 1 - rows @ w).mean() + lam / 2 * (w - mean) @ (w - mean), own, method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-13, "maxiter": 20000},
    )  # fmt: skip
    assert primal <= best.fun + 1e-7
    (prediction, _) = federation.predictions(unseen, states, seen=False)
    np.testing.assert_allclose(prediction.exp().numpy(), predict(own, x), rtol=0, atol=1e-12)


def test_an_unseen_client_without_training_gets_the_mean(monkeypatch):
    monkeypatch.setattr(mocha, "UNSEEN_EPOCHS", 0)
    unseen = make_clients([6, 3], seed=2, first_id=4)
    federation = run_rounds(MOCHA(), None, make_clients(SIZES))
    states = federation.serve(unseen, seen=False)
    assert same_bits(tree.index(states.models, 1), federation.shared.peers.mean)
    work = federation.algorithm.adapt_work(federation.context("adapt"), seen=False)
    assert work == LocalWork(epochs=0, batch_size=1)
    assert federation.algorithm.adapt_work(federation.context("adapt"), seen=True) is None


# ---------------------------------------------------------------------- traffic and settings
def test_one_model_each_way(client_trainer):
    """And with the model, for each class, how far it may move, in float64."""
    train = make_clients(SIZES, dtype=torch.float32)
    options = {"task": make_task(dtype=torch.float32), "cohorts": [[0, 2, 3]], "rounds": 1}
    federation = run_rounds(MOCHA(), client_trainer, train, **options)
    assert federation.bits.tolist() == [3 * 5 * 32, 3 * (5 * 32 + 64)]
    assert federation.algorithm.num_payloads(federation.context("train"), federation.shared, 3) == 3


def test_the_rate_and_the_batch_size_have_no_effect():
    train = make_clients(SIZES)
    one = run_rounds(MOCHA(), None, train, batch_size=2, solver=LocalSolver(lr=0.7, weight_decay=0.1, momentum=0.9))
    assert same_bits(one.shared, run_rounds(MOCHA(), None, train).shared)


def test_a_client_without_steps_leaves_sigma_as_it_is():
    federation = run_rounds(MOCHA(rounds_per_relation=1), None, make_clients(SIZES), solver=LocalSolver(local_epochs=0))
    assert same_bits(federation.shared.sigma[0], torch.eye(4, dtype=torch.float64) / 4)
    assert not flat(federation.shared.peers.parameters).any()


def test_numbers_and_other_networks_are_refused():
    with pytest.raises(ConfigError, match="MOCHA learns binary and multiclass labels, and these are regression"):
        Federation(MOCHA(), make_clients(SIZES, target=REGRESSION), make_task(REGRESSION))
    with pytest.raises(ConfigError, match=r"MOCHA trains linear models, and MLP is no .*--model\.network Linear"):
        Federation(MOCHA(), make_clients(SIZES), make_task(network=MLP))
