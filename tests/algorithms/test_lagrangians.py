"""Rounds of ADMM against derivatives of the augmented Lagrangians that are printed, each a sum over all clients."""

import numpy as np
import pytest
from federated_round import Federation, as_arrays, batch_orders, flat, make_clients
from references.lagrangians_numpy import ascended, chained, path, replaced, sharing, sharing_by_copies
from references.objectives_numpy import argmin, descend, half_square, loss, slope

from lit_fed.algorithms import GADMM, MixtureADMM
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.seeds import generator

SIZES = [5, 2, 8, 3]
COHORTS = [[0, 1, 2, 3], [1], [0, 3, 2], [2, 1]]
EXACT = VectorizedTrainer, None
PLAIN, HEAVY = (
    (SequentialTrainer, {"lr": 0.05}),
    (VectorizedTrainer, {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.05}),
)
ALL = slice(None)


@pytest.fixture(params=[EXACT, PLAIN, HEAVY], ids=["exact", "plain", "heavy"])
def setting(request):
    """A client trainer, and the options of SGD or None for exact x-updates."""
    trainer, options = request.param
    return trainer(), options


def close(found, expected, within=1e-10):
    np.testing.assert_allclose(found.numpy(), np.stack(expected), rtol=0, atol=within)


class Clients:
    """Losses of a federation's clients, and their x-updates: minimisers, or SGD on the objective over the share."""

    def __init__(self, federation, options):
        self.samples, self.options = as_arrays(federation.train), options
        sizes = np.array([len(y) for _, y in self.samples])
        self.shares = len(sizes) * sizes / sizes.sum() if federation.weighting == "samples" else np.ones(len(sizes))

    def fits(self, i=None, rows=ALL):
        """share·f of each client; that of client i on some of its rows."""
        chosen = [rows if one == i else ALL for one in range(len(self.samples))]
        trio = list(zip(self.shares, self.samples, chosen, strict=True))
        return [lambda theta, s=s, x=x, y=y, r=r: s * loss(theta, x[r], y[r]) for s, (x, y), r in trio]

    def update(self, i, lagrangian, start, batches):
        """The new x_i; `lagrangian` is a function of the clients' losses and of x_i."""
        if self.options is None:
            return argmin(lambda theta: lagrangian(self.fits(), theta), start)
        over = lambda theta, rows: lagrangian(self.fits(i, rows), theta) / self.shares[i]  # noqa: E731
        return descend(over, start, batches, **self.options)


# ---------------------------------------------------------------------- MixtureADMM, form by form
def orders_of(federation):
    """Batches of the coming round by client; in form gauss_seidel all but the last of a cohort train in a `turn`."""
    return {name: batch_orders(federation, name) for name in ("train", "turn")}


def one_mixture_round(form, clients, state, cohort, orders, *, lam, rho, beta, rho_i):
    """x-updates, then the copies', z's and those of the multipliers, each from the Lagrangian with what is known."""
    x, copies, ties, z, y = state
    N, old, old_copies = len(x), x, copies
    for i in cohort:
        known = x if form == "gauss_seidel" else old  # the others' models, as of this moment or of the last round

        def lagrangian(fits, theta, i=i, known=known):
            if form == "alternating_prox":
                return fits[i](theta) + lam * half_square(theta - z)
            if form == "copies":
                now = replaced(known, i, theta)
                return sharing_by_copies(fits, now, old_copies, z, y, ties, lam=lam, rho=rho, rho_i=rho_i)
            return sharing(fits, replaced(known, i, theta), z, y, lam=lam, rho=rho)

        turn = "turn" if form == "gauss_seidel" and i != cohort[-1] else "train"
        x = replaced(x, i, clients.update(i, lagrangian, old[i], orders[turn][i]))
    if form == "alternating_prox":
        return x, copies, ties, sum(x) / N, y
    fits = clients.fits()
    if form == "copies":
        tied = {"lam": lam, "rho": rho, "rho_i": rho_i}
        for i in cohort:
            of_copy = lambda c, i=i: sharing_by_copies(fits, x, replaced(old_copies, i, c), z, y, ties, **tied)  # noqa: E731
            copies = replaced(copies, i, argmin(of_copy, copies[i]))
        by_tie = lambda t, i: sharing_by_copies(fits, x, copies, z, y, replaced(ties, i, t), **tied)  # noqa: E731
        ups = {i: ties[i] + beta * slope(lambda t, i=i: by_tie(t, i), ties[i]) for i in cohort}
        ties = [ups.get(i, tie) for i, tie in enumerate(ties)]
    summed = copies if form == "copies" else x
    z = argmin(lambda mean: sharing(fits, summed, mean, y, lam=lam, rho=rho), z)
    y = y + beta * slope(lambda dual: sharing(fits, summed, z, dual, lam=lam, rho=rho), y)
    return x, copies, ties, z, y


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("form", ["alternating_prox", "jacobi", "copies", "gauss_seidel"])
def test_mixture_admm(form, weighting, setting):
    """Exact and inexact x-updates with all clients and with some; one that is absent keeps x_i, x'_i and y_i."""
    trainer, options = setting
    solve = "inexact" if options else "exact"
    algorithm = MixtureADMM(0.7, form, penalty_weight=0.9, dual_step=0.6, copy_weight=4.0, local_solve=solve)
    solver = LocalSolver(local_epochs=2, **(options or {}))
    fields = {"solver": solver, "trainer": trainer, "batch_size": 2, "weighting": weighting}
    federation = Federation(algorithm, make_clients(SIZES), **fields)
    theta, clients = federation.weights[0].numpy(), Clients(federation, options)
    zero = np.zeros_like(theta)
    state = [theta] * 4, [theta] * 4, [zero] * 4, theta, zero
    for cohort in COHORTS:
        state = one_mixture_round(
            form, clients, state, sorted(cohort), orders_of(federation), lam=0.7, rho=0.9, beta=0.6, rho_i=4.0
        )
        federation.round(cohort)
        x, copies, ties, z, y = state
        close(flat(federation.states.models.parameters), x)
        close(federation.weights, [z])
        if form != "alternating_prox":
            close(flat(federation.shared.dual), [y])
        if form == "copies":
            close(flat(federation.states.copy), copies)
            close(flat(federation.states.dual), ties)
    if not options:  # an unseen client minimises its own loss, weighed like the others', near z
        unseen, expected = make_clients([6, 3], seed=2, first_id=4), []
        for x, y in as_arrays(unseen):
            share = 4 * len(y) / sum(SIZES) if weighting == "samples" else 1.0
            near = lambda theta, x=x, y=y, s=share: s * loss(theta, x, y) + 0.7 * half_square(theta - z)  # noqa: E731
            expected.append(argmin(near, z))
        close(flat(federation.serve(unseen, seen=False).models.parameters), expected)


# ---------------------------------------------------------------------- D-GADMM
def one_chain_round(clients, x, terms, order, orders, rho):
    """Heads, then tails with the heads' new models, then the multipliers."""
    for first, group in ((0, "heads"), (1, "tails")):
        before = x
        for i in order[first::2]:

            def lagrangian(fits, theta, i=i, before=before):
                return chained(fits, replaced(before, i, theta), terms, order, rho=rho)

            x = replaced(x, i, clients.update(i, lagrangian, x[i], orders[group][i]))
    return x, ascended(terms, x, order, rho)


@pytest.mark.parametrize(
    ("sizes", "weighting", "every", "duals"),
    [
        ([5, 2, 8, 3, 4, 6], "samples", 3, "warm"),
        ([5, 2, 8, 3, 4, 6], "uniform", 2, "reset"),
        ([4, 1, 7, 3, 2], "samples", 0, "warm"),
        ([4, 1, 7, 3, 2], "uniform", 1, "warm"),
    ],
)
def test_d_gadmm(sizes, weighting, every, duals, setting):
    """Seven rounds; a chain is drawn before round 0, τ, 2τ, …, and a client's multipliers go with it or start again."""
    trainer, options = setting
    algorithm = GADMM(0.7, every, duals, local_solve="inexact" if options else "exact")
    fields = {"solver": LocalSolver(**(options or {})), "trainer": trainer, "batch_size": 2, "weighting": weighting}
    federation = Federation(algorithm, make_clients(sizes), seed=3, **fields)
    num, chains = len(sizes), set()
    theta = flat(federation.states.models.parameters)[0].numpy()
    clients, x, terms, order = Clients(federation, options), [theta] * num, [np.zeros_like(theta)] * num, None
    for t in range(7):
        if every == 0:
            order = list(range(num))
        elif t % every == 0:
            order = path(generator(3, t // every, 0, "places").random((num, 2)))
            terms = [0 * term for term in terms] if duals == "reset" else terms
        chains.add(tuple(order))
        orders = {group: batch_orders(federation, group) for group in ("heads", "tails")}
        x, terms = one_chain_round(clients, x, terms, order, orders, 0.7)
        federation.round()
        close(flat(federation.states.models.parameters), x)
        close(flat(federation.shared.dual), terms)
    assert len(chains) >= {0: 1, 1: 5, 2: 3, 3: 3}[every]
