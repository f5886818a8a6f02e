import math

import numpy as np
import pytest
import torch
from federated_round import (
    BINARY,
    REGRESSION,
    Federation,
    as_arrays,
    batch_orders,
    flat,
    make_clients,
    make_task,
    small_mlp,
)
from few_classes import close, hidden, samples
from few_classes import started as started_classes
from references.logistic import with_bias
from references.mixed_effects_numpy import fitted
from references.partial_pooling_numpy import descend, determined, information, model_of, pooling_round, start
from references.two_layers import BODY, CLASSES, log_softmax, outputs

from lit_fed.algorithms import FedAvg, MixedEffects, PartialPooling
from lit_fed.algorithms.partial_pooling import MOST_ROWS
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.seeds import uniforms
from lit_fed.core.targets import Sequences
from lit_fed.core.types import LocalWork, Split
from lit_fed.errors import ConfigError

SIZES, COHORTS = [6, 1, 9, 3], [None, [2, 0], None, [1]]
SLOPES, HEAD = [slice(0, 3), slice(3, 4)], [slice(BODY, BODY + 15), slice(BODY + 15, None)]
ROUND = {"lr": 0.3, "momentum": 0.5}
FULL = LocalSolver(lr=0.3, local_epochs=40)
"""Steps to the minimum, in whole local sets."""


def scores(theta, x):
    return (x @ theta[:-1] + theta[-1])[:, None]


def panel(sizes=(5, 9, 20, 12, 7, 30, 8, 15), seed=0, deviations=(0.5, 0.5, 1.0), noise=0.7):
    """Linear regressions of clients with coefficients (1, -1, 2) on average."""
    rng, clients = np.random.default_rng(seed), []
    for n in sizes:
        theta = np.array([1.0, -1.0, 2.0]) + np.array(deviations) * rng.normal(size=3)
        x = rng.normal(size=(n, 2))
        clients.append((torch.from_numpy(x), torch.from_numpy(x @ theta[:2] + theta[2] + noise * rng.normal(size=n))))
    return Split.of(clients)


def pooled(train, trainer=None, rounds=0, task=None, **settings):
    """A federation of linear regressions whose clients take steps to their minimum."""
    algorithm = PartialPooling(**{"common_rounds": 0} | settings)
    task = task or make_task(REGRESSION, train.x.shape[1])
    federation = Federation(algorithm, train, task, FULL, trainer or VectorizedTrainer(), batch_size=0)
    for _ in range(rounds):
        federation.round()
    return federation


def fixed(federation, tau2, noise):
    """The server's state with these variances."""
    shared = federation.shared
    federation.shared = shared._replace(
        tau2=torch.full_like(shared.tau2, tau2), noise=torch.full_like(shared.noise, noise)
    )


def signs_of(federation):
    """The directions of the coming round, [n, 3] of each client."""
    each = []
    for client, n in enumerate(federation.train.sizes.tolist()):
        numbers = uniforms(federation.seed, federation.round_idx, torch.tensor(client), "directions", n * CLASSES)
        each.append(np.where(numbers.numpy() < 0.5, 1.0, -1.0).reshape(n, CLASSES))
    return each


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("variance", ["leaf", "client"])
@pytest.mark.parametrize("target", [REGRESSION, BINARY], ids=["regression", "binary"])
def test_rounds_are_those_of_the_reference(target, variance, client_trainer):
    """The first round is a common one, and one client has a single row."""
    train, unseen = make_clients(SIZES, 3, target), make_clients([5, 1], 3, target, seed=9, first_id=4)
    problem = (target.kind, scores)
    algorithm = PartialPooling(variance=variance, common_rounds=1, unseen_epochs=3)
    federation = Federation(
        algorithm, train, make_task(target, 3), LocalSolver(local_epochs=2, **ROUND), client_trainer, batch_size=4
    )
    server, states = start(federation.weights[0].numpy(), 4, SLOPES, target.kind)
    for number, present in enumerate(COHORTS):
        server, states = pooling_round(
            server, states, as_arrays(train), batch_orders(federation), problem, SLOPES, variance=variance,
            common=number == 0, present=present, **ROUND,
        )  # fmt: skip
        federation.round(present)
        close(federation.weights[0], server["theta"], 1e-12)
        close(federation.shared.tau2, server["tau2"], 1e-12)
        close(federation.shared.noise, server["s2"], 1e-12)
        close(flat(federation.states.effects), [one["effects"] for one in states], 1e-12)
    served = flat(federation.algorithm.served(federation.context("serve"), federation.shared, federation.states))
    close(served, [model_of(server, one) for one in states], 1e-12)
    orders = batch_orders(federation, "adapt", LocalWork(epochs=3), unseen)
    adapted = federation.serve(unseen, seen=False)
    for effects, rows, client in zip(flat(adapted.effects), orders, as_arrays(unseen), strict=True):
        theta = descend(server, server["theta"], server["tau2"], client, rows, problem, SLOPES, **ROUND)
        close(effects, theta - server["theta"], 1e-12)


@pytest.mark.parametrize("leaves", ["*", "head"])
def test_rounds_of_a_network_are_those_of_the_reference(leaves, client_trainer):
    federation, clients = started_classes(
        PartialPooling(leaves, common_rounds=1), client_trainer, epochs=2, solver=ROUND
    )
    parts = HEAD if leaves == "head" else [slice(0, BODY - 5), slice(BODY - 5, BODY), *HEAD]
    server, states = start(federation.weights[0].numpy(), 3, parts, "classes")
    for number, present in enumerate([None, [0, 2], None]):
        server, states = pooling_round(
            server, states, clients, batch_orders(federation), ("classes", outputs), parts, common=number == 0,
            present=present, signs=signs_of(federation), **ROUND,
        )  # fmt: skip
        federation.round(present)
        close(federation.weights[0], server["theta"], 1e-11)
        close(federation.shared.tau2, server["tau2"], 1e-11)
    test = samples([4, 2, 3], seed=1)
    for found, state, (x, _) in zip(federation.predictions(test), states, as_arrays(test), strict=True):
        close(found, log_softmax(outputs(model_of(server, state), x)), 1e-11)
    start_at, before = server["theta"], slice(0, BODY if leaves == "head" else 0)
    new = samples([6, 3], seed=2, first_id=3)
    served = federation.algorithm.served(
        federation.context("serve"), federation.shared, tree.index(federation.serve(new, seen=False), 0)
    )
    close(flat(served.parameters)[0][before], start_at[before], 1e-11)  # shared leaves are fixed


# ---------------------------------------------------------------------- closed forms
def test_a_step_of_sgd_is_proximal():
    """argmin ⟨g, θ⟩ + ‖θ − θ_0‖²/(2η) + w/2·‖θ − μ‖², for a pull that explicit steps do not survive."""
    train = panel([5])
    federation = pooled(train)
    federation.solver = LocalSolver(lr=0.3)
    federation.states = federation.states._replace(
        effects=tree.map_leaves(lambda leaf: leaf + 1.0, federation.states.effects)
    )
    fixed(federation, 1e-6, 0.5)
    mean = federation.weights[0].numpy()
    (x, y), *_ = as_arrays(train)
    w, theta = 0.5 / (5 * 1e-6), mean + 1
    slope = with_bias(x).T @ (with_bias(x) @ theta - y) / 5
    federation.round()
    close(federation.weights[0], (theta / 0.3 - slope + w * mean) / (1 / 0.3 + w))


@pytest.mark.parametrize("tau2", [0.02, 0.5, 20.0])
def test_with_fixed_variances_it_is_mean_regularised_learning(tau2):
    """Σ_t (mean loss + λ/2·‖θ_t − θ̄‖²), λ = σ²/(n·τ²), at its minimum, a linear system."""
    train, n, noise = panel([12] * 4), 12, 0.4
    federation, weight = pooled(train), noise / (n * tau2)
    for _ in range(40 if tau2 > 0.1 else 300):
        fixed(federation, tau2, noise)
        federation.round()
    grams = [(with_bias(x).T @ with_bias(x) / n, with_bias(x).T @ y / n) for x, y in as_arrays(train)]
    system = np.kron(np.eye(4) - 1 / 4, weight * np.eye(3))
    for client, (G, _) in enumerate(grams):
        system[3 * client : 3 * client + 3, 3 * client : 3 * client + 3] += G
    expected = np.linalg.solve(system, np.concatenate([one for _, one in grams])).reshape(4, 3)
    close(federation.weights[0], expected.mean(0), 1e-6)
    fixed(federation, tau2, noise)
    models = federation.algorithm.served(federation.context("serve"), federation.shared, federation.states)
    close(flat(models.parameters), expected, 1e-6)


def test_learned_variances_are_those_of_maximum_likelihood():
    """Of a linear regression: the same as `MixedEffects`, without any approximation."""
    train = panel()
    federation = pooled(train, rounds=60)
    exact = fitted(as_arrays(train), rounds=60, random="slopes", estimate="ml")
    close(federation.weights[0], exact["mean"], 1e-6)
    close(federation.shared.tau2, [exact["var"][0], exact["var"][-1]], 1e-6)
    close(federation.shared.noise, exact["s2"], 1e-6)
    closed = Federation(MixedEffects("slopes", "ml"), train, federation.task)
    for _ in range(60):
        closed.round()
    close(federation.shared.tau2, closed.shared.tau2[0], 1e-6)


def test_without_the_information_variances_collapse():
    """With V = 0 every coefficient counts, and a client with few rows is pulled to the mean for good."""
    train = panel([3] * 12, deviations=(0.3, 0.3, 0.3))
    clients, problem = as_arrays(train), ("regression", scores)
    federation, leaves = pooled(train), [slice(0, 2), slice(2, 3)]
    server, _ = start(federation.weights[0].numpy(), 12, leaves, "regression")
    for _ in range(60):
        exact = []
        for x, y in clients:
            prior = server["s2"] / np.repeat(server["tau2"], [2, 1])
            X = with_bias(x)
            exact.append(np.linalg.solve(X.T @ X + np.diag(prior), X.T @ y + prior * server["theta"]))
        moved = np.array(exact) - np.mean(exact, 0)
        rest = [((y[:, None] - scores(one, x)) ** 2).sum() for one, (x, y) in zip(exact, clients, strict=True)]
        server |= {"theta": np.mean(exact, 0), "s2": np.sum([np.diag(np.ones(1)) * 0]) + 0.49}
        server["tau2"] = np.array([(moved[:, leaf] ** 2).mean() for leaf in leaves])
        assert len(rest) == 12
    for _ in range(60):
        federation.round()
        federation.shared = federation.shared._replace(noise=torch.full_like(federation.shared.noise, 0.49))
    assert (server["tau2"] < 0.2 * federation.shared.tau2.numpy()).all()
