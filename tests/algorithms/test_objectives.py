"""Rounds of algorithms with personal models against steps on the objectives that their papers or codes print.

The references beside this one have their gradients written out, as the algorithms have; here they are
derivatives of the printed sums, so that a slip in the algebra cannot be in both.
"""

import numpy as np
import pytest
import torch
from federated_round import Federation, as_arrays, batch_orders, flat, make_clients
from references.objectives_numpy import argmin, descend, half_square, loss, losses, scores, slope

from lit_fed.algorithms import APFL, Oracle, ProxAvg
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import LocalWork

SIZES = [5, 2, 8, 3]
COHORTS = [[0, 1, 2, 3], [1], [0, 3, 2], [2, 1]]
PLAIN, HEAVY = {"lr": 0.5}, {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.05}
WEIGHTINGS = ["samples", "uniform"]


@pytest.fixture(params=[PLAIN, HEAVY], ids=["plain", "heavy"])
def options(request):
    """Options of SGD."""
    return request.param


def started(algorithm, options, **fields):
    """A federation of clients of several sizes before its first round, and the samples of each."""
    train, trainer = make_clients(SIZES), SequentialTrainer() if options == PLAIN else VectorizedTrainer()
    solver = LocalSolver(local_epochs=2, **(options or {}))
    federation = Federation(algorithm, train, solver=solver, trainer=trainer, batch_size=2, **fields)
    return federation, as_arrays(train)


def unseen_clients():
    return make_clients([6, 3, 1], seed=2, first_id=len(SIZES))


def shares_of(weighting):
    """What each client counts, [N]; the sum is 1."""
    weights = np.array(SIZES, dtype=float) if weighting == "samples" else np.ones(len(SIZES))
    return weights / weights.sum()


def averaged(models, shares, cohort):
    """The mean of the models of a cohort, by their shares."""
    return sum(shares[i] * models[i] for i in cohort) / sum(shares[i] for i in cohort)


def close(found, expected):
    np.testing.assert_allclose(np.asarray(found), np.stack(expected), rtol=0, atol=1e-10)


def fitted(samples):
    """The loss of a model on some rows of these samples."""
    x, y = samples
    return lambda theta, rows: loss(theta, x[rows], y[rows])


def positive(theta, x):
    return 1 / (1 + np.exp(-scores(theta, x)))


def served_as(federation, data, chances):
    """Whether `data` are predicted with these probabilities of the class 1."""
    seen = data.first_id == 0
    for found, expected in zip(federation.predictions(data, seen=seen), chances, strict=True):
        close(found.exp().numpy(), np.stack([1 - expected, expected], axis=1))


# ---------------------------------------------------------------------- personal models near a common one
def near(samples, anchor, weight):
    """f_i(v) + weight/2·‖v − anchor‖²."""
    return lambda theta, rows: fitted(samples)(theta, rows) + weight * half_square(theta - anchor)


def check_unseen_clients(federation, anchor, weight, options):
    """Unseen clients train two passes from the anchor and towards it, which rests."""
    orders = batch_orders(federation, "adapt", LocalWork(epochs=2), unseen_clients())
    pairs = zip(as_arrays(unseen_clients()), orders, strict=True)
    expected = [descend(near(samples, anchor, weight), anchor, own, **options) for samples, own in pairs]
    close(flat(federation.serve(unseen_clients(), seen=False)), expected)
    pairs = zip(expected, as_arrays(unseen_clients()), strict=True)
    served_as(federation, unseen_clients(), [positive(v, x) for v, (x, _) in pairs])


@pytest.mark.parametrize("aggregation", ["renormalised", "stale_fill"])
@pytest.mark.parametrize("options", [PLAIN, HEAVY, None], ids=["plain", "heavy", "exact"], indirect=True)
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_prox_avg(weighting, options, aggregation):
    """With options of SGD, or exact proximal points; with `stale_fill` absent clients count with their own models."""
    algorithm = ProxAvg(0.7, "sgd" if options else "exact", unseen_epochs=2)
    federation, clients = started(algorithm, options or {}, weighting=weighting, aggregation=aggregation)
    shares, z = shares_of(weighting), federation.weights[0].numpy()
    own, everything = [z] * len(SIZES), slice(None)
    for cohort in COHORTS:
        orders = batch_orders(federation)
        for i in cohort:
            objective = near(clients[i], z, 0.7)
            own[i] = (
                descend(objective, own[i], orders[i], **options)
                if options
                else argmin(lambda theta, objective=objective: objective(theta, everything), own[i])
            )
        z = averaged(own, shares, range(len(SIZES)) if aggregation == "stale_fill" else cohort)
        federation.round(cohort)
        close(federation.weights, [z])
        close(flat(federation.states), own)
    if options:
        check_unseen_clients(federation, z, 0.7, options)


# ---------------------------------------------------------------------- one model for each known group
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_oracle(weighting, options):
    """The groups are 2, 0, 2 and 1, and the second cohort has nobody of the first and last."""
    groups = [2, 0, 2, 1]
    federation, clients = started(Oracle(), options, groups=torch.tensor(groups), weighting=weighting)
    shares, thetas = shares_of(weighting), list(federation.weights.numpy())
    for cohort in COHORTS:
        orders = batch_orders(federation)
        sent = {i: descend(fitted(clients[i]), thetas[groups[i]], orders[i], **options) for i in cohort}
        for group in {groups[i] for i in cohort}:
            thetas[group] = averaged(sent, shares, [i for i in cohort if groups[i] == group])
        federation.round(cohort)
        close(federation.weights, thetas)
    test, unseen = make_clients([4, 2, 3, 1], seed=1), make_clients([6, 3, 1, 9], seed=5, first_id=len(SIZES))
    pairs = zip(groups, as_arrays(test), strict=True)
    served_as(federation, test, [positive(thetas[group], x) for group, (x, _) in pairs])
    chosen = [int(np.argmin([losses(theta, x, y).sum() for theta in thetas])) for x, y in as_arrays(unseen)]
    assert len(set(chosen)) > 1
    assert federation.serve(unseen, seen=False).group.tolist() == chosen
    pairs = zip(chosen, as_arrays(unseen), strict=True)
    served_as(federation, unseen, [positive(thetas[group], x) for group, (x, _) in pairs])


# ---------------------------------------------------------------------- a mixture of models, and its share
FIELDS = [
    {"alpha_update": "fixed"},
    {"alpha_update": "first_step", "alpha_lr": 0.7, "alpha_decay": 0.02},
    {"alpha_update": "every_step", "alpha_lr": 0.1},
    {"alpha_update": "every_step", "gradient_factor": False},
]


def mixture_steps(w, v, alpha, samples, batches, fields, *, lr, momentum=0.0, weight_decay=0.0):
    """Steps of w, v and α, all from the values before them: derivatives of f(w) and of f(αv + (1 − α)w)."""
    f, of_w, of_v = fitted(samples), 0.0, 0.0
    for step, rows in enumerate(batches):

        def mixed(v, alpha, w=w, rows=rows):
            return f(alpha * v + (1 - alpha) * w, rows)

        by_v = slope(lambda moved, alpha=alpha, mixed=mixed: mixed(moved, alpha), v)
        if not fields.get("gradient_factor", True):
            by_v = slope(lambda moved, rows=rows: f(moved, rows), alpha * v + (1 - alpha) * w)
        decay = fields.get("alpha_decay", 0.0)
        by_alpha = slope(
            lambda moved, v=v, mixed=mixed, decay=decay: mixed(v, moved) + decay * half_square(moved), alpha
        )
        of_w = momentum * of_w + slope(lambda moved, rows=rows: f(moved, rows), w) + weight_decay * w
        of_v = momentum * of_v + by_v + weight_decay * v
        w, v = w - lr * of_w, v - lr * of_v
        if fields["alpha_update"] == "every_step" or (fields["alpha_update"] == "first_step" and step == 0):
            alpha = np.clip(alpha - fields.get("alpha_lr", lr) * by_alpha, 0, 1)
    return w, v, alpha


@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_apfl(fields, options):
    """Rounds of uneven clients, and then unseen ones, who train v and α from w and the first α, and are served both."""
    federation, clients = started(APFL(0.3, unseen_epochs=2, **fields), options)
    w = federation.weights[0].numpy()
    own, alphas = [w] * len(SIZES), [np.array(0.3)] * len(SIZES)
    for cohort in COHORTS:
        orders, sent = batch_orders(federation), {}
        for i in cohort:
            sent[i], own[i], alphas[i] = mixture_steps(w, own[i], alphas[i], clients[i], orders[i], fields, **options)
        w = averaged(sent, shares_of("uniform"), cohort)
        federation.round(cohort)
        close(federation.weights, [w])
        close(flat(federation.states.personal), own)
        close(federation.states.alpha, alphas)
    assert (np.ptp(alphas) > 1e-3) == (fields["alpha_update"] != "fixed")
    orders = batch_orders(federation, "adapt", LocalWork(epochs=2), unseen_clients())
    pairs = list(zip(as_arrays(unseen_clients()), orders, strict=True))
    trained = [mixture_steps(w, w, np.array(0.3), samples, batches, fields, **options) for samples, batches in pairs]
    served = federation.serve(unseen_clients(), seen=False)
    close(flat(served.personal), [v for _, v, _ in trained])
    close(served.alpha, [alpha for *_, alpha in trained])
    assert (np.ptp(served.alpha.numpy()) > 1e-3) == (fields == FIELDS[2])  # without the factor v goes with w_i
    chances = [positive(a * v + (1 - a) * w, x) for (_, v, a), ((x, _), _) in zip(trained, pairs, strict=True)]
    served_as(federation, unseen_clients(), chances)
    test = make_clients([4, 2, 3, 1], seed=1)
    pairs = zip(own, alphas, as_arrays(test), strict=True)
    served_as(federation, test, [positive(a * v + (1 - a) * w, x) for v, a, (x, _) in pairs])
