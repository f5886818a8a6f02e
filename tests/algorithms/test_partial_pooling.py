import itertools

import numpy as np
import pytest
import torch
from federated_round import (
    BINARY,
    REGRESSION,
    Federation,
    NormalisedLinear,
    as_arrays,
    batch_orders,
    flat,
    make_clients,
    make_task,
    small_mlp,
)
from few_classes import close, samples
from few_classes import started as started_classes
from references.logistic import with_bias
from references.mixed_effects_numpy import fitted
from references.partial_pooling_numpy import descend, determined, information, model_of, pooling_round, start
from references.two_layers import BODY, CLASSES, log_softmax, outputs
from torch.autograd.functional import hessian

from lit_fed.algorithms import MixedEffects, PartialPooling
from lit_fed.algorithms.partial_pooling import MOST_ROWS, root
from lit_fed.clients import VectorizedTrainer
from lit_fed.core import tree
from lit_fed.core.likelihood import Likelihood
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.seeds import uniforms
from lit_fed.core.targets import Multiclass, MultiLabel, Sequences, VectorRegression
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
    algorithm = PartialPooling(**settings)
    task = task or make_task(REGRESSION, train.x.shape[1])
    federation = Federation(algorithm, train, task, FULL, trainer or VectorizedTrainer(), batch_size=0)
    for _ in range(rounds):
        federation.round()
    return federation


def served(federation, states=None):
    """Parameters [C, 1, ...] of the models that clients are served."""
    states, ctx = federation.states if states is None else states, federation.context("serve")
    return torch.func.vmap(lambda one: federation.algorithm.served(ctx, federation.shared, one).parameters)(states)


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
    """One client has a single row, and some miss rounds."""
    train, unseen = make_clients(SIZES, 3, target), make_clients([5, 1], 3, target, seed=9, first_id=4)
    problem = (target.kind, scores)
    algorithm = PartialPooling(variance=variance, adapt_epochs=3)
    federation = Federation(
        algorithm, train, make_task(target, 3), LocalSolver(local_epochs=2, **ROUND), client_trainer, batch_size=4
    )
    server, states = start(federation.weights[0].numpy(), 4, SLOPES, target.kind)
    for number, present in enumerate(COHORTS):
        server, states = pooling_round(
            server, states, as_arrays(train), batch_orders(federation), problem, SLOPES, variance=variance,
            now=number, present=present, **ROUND,
        )  # fmt: skip
        federation.round(present)
        close(federation.weights[0], server["theta"], 1e-12)
        close(federation.shared.tau2, server["tau2"], 1e-12)
        close(federation.shared.noise, server["s2"], 1e-12)
    close(flat(served(federation)), [model_of(server, one, SLOPES, len(COHORTS)) for one in states], 1e-12)
    orders = batch_orders(federation, "adapt", LocalWork(epochs=3), unseen)
    adapted = federation.serve(unseen, seen=False)
    for found, rows, client in zip(flat(served(federation, adapted)), orders, as_arrays(unseen), strict=True):
        theta = descend(server, server["theta"], server["tau2"], client, rows, problem, SLOPES, **ROUND)
        close(found, theta, 1e-12)


@pytest.mark.parametrize("leaves", ["*", "head"])
def test_rounds_of_a_network_are_those_of_the_reference(leaves, client_trainer):
    federation, clients = started_classes(PartialPooling(leaves), client_trainer, epochs=2, solver=ROUND)
    parts = HEAD if leaves == "head" else [slice(0, BODY - 5), slice(BODY - 5, BODY), *HEAD]
    server, states = start(federation.weights[0].numpy(), 3, parts, "classes")
    network_cohorts = [None, [0, 2], None, [1]]
    for number, present in enumerate(network_cohorts):
        server, states = pooling_round(
            server, states, clients, batch_orders(federation), ("classes", outputs), parts, now=number,
            present=present, signs=signs_of(federation), **ROUND,
        )  # fmt: skip
        federation.round(present)
        close(federation.weights[0], server["theta"], 1e-11)
        close(federation.shared.tau2, server["tau2"], 1e-11)
    test = samples([4, 2, 3], seed=1)
    for found, state, (x, _) in zip(federation.predictions(test), states, as_arrays(test), strict=True):
        close(found, log_softmax(outputs(model_of(server, state, parts, 4), x)), 1e-11)
    unseen = served(federation, federation.serve(samples([6, 3], seed=2, first_id=3), seen=False))
    assert np.abs(flat(unseen)[0].numpy() - server["theta"])[BODY:].max() > 1e-6
    if leaves == "head":
        close(flat(unseen)[:, :BODY], np.tile(server["theta"][:BODY], (2, 1)), 1e-11)  # shared leaves are fixed


# ---------------------------------------------------------------------- closed forms
def test_a_step_of_sgd_is_proximal():
    """argmin ⟨g, θ⟩ + ‖θ − θ_0‖²/(2η) + w/2·‖θ − μ‖², for a pull that explicit steps do not survive."""
    train = panel([5])
    federation = pooled(train)
    federation.solver = LocalSolver(lr=0.3)
    models = tree.map_leaves(lambda leaf: leaf + 1.0, federation.states.models)
    federation.states = federation.states._replace(models=models)
    fixed(federation, 1e-6, 0.5)
    mean = federation.weights[0].numpy()
    (x, y), *_ = as_arrays(train)
    w, theta = 0.5 / (5 * 1e-6), mean + 1
    slope = with_bias(x).T @ (with_bias(x) @ theta - y) / 5
    federation.round()
    close(federation.weights[0], (theta / 0.3 - slope + w * mean) / (1 / 0.3 + w))


@pytest.mark.parametrize("tau2", [0.1, 2.0])
def test_with_fixed_variances_it_is_mean_regularised_learning(tau2):
    """Σ_t (mean loss + λ/2·‖θ_t − θ̄‖²), λ = σ²/(n·τ²), at its minimum, a linear system."""
    train, n, noise = panel([12] * 4), 12, 0.4
    federation, weight = pooled(train), noise / (n * tau2)
    for _ in range(20 if tau2 > 1 else 40):
        fixed(federation, tau2, noise)
        federation.round()
    grams = [(with_bias(x).T @ with_bias(x) / n, with_bias(x).T @ y / n) for x, y in as_arrays(train)]
    system = np.kron(np.eye(4) - 1 / 4, weight * np.eye(3))
    for client, (G, _) in enumerate(grams):
        system[3 * client : 3 * client + 3, 3 * client : 3 * client + 3] += G
    expected = np.linalg.solve(system, np.concatenate([one for _, one in grams])).reshape(4, 3)
    close(federation.weights[0], expected.mean(0), 1e-6)
    fixed(federation, tau2, noise)
    close(flat(served(federation)), expected, 1e-6)


def test_learned_variances_are_those_of_maximum_likelihood():
    """Of a linear regression: the same as `MixedEffects`, without any approximation."""
    train = panel()
    federation = pooled(train, rounds=20)
    exact = fitted(as_arrays(train), rounds=40, random="slopes", estimate="ml")
    close(federation.weights[0], exact["mean"], 1e-4)
    close(federation.shared.tau2, [exact["var"][0], exact["var"][-1]], 1e-4)
    close(federation.shared.noise, exact["s2"], 1e-4)
    closed = Federation(MixedEffects("slopes", "ml"), train, federation.task)
    for _ in range(40):
        closed.round()
    close(federation.shared.tau2, closed.shared.tau2[0], 1e-4)


def test_without_the_information_variances_collapse():
    """Where every coefficient counts as determined, few rows pull a client ever closer to the mean."""
    train = panel([5] * 30, deviations=(0.5, 0.5, 0.5))
    rows = [(with_bias(x), y) for x, y in as_arrays(train)]
    mean, tau2 = np.zeros(3), 0.1
    for _ in range(60):
        prior = 0.49 / max(tau2, 1e-12)
        each = [np.linalg.solve(X.T @ X + prior * np.eye(3), X.T @ y + prior * mean) for X, y in rows]
        mean, tau2 = np.mean(each, 0), np.var(each, 0).mean()
    learned = pooled(train, rounds=25).shared.tau2
    assert tau2 < 1e-6
    assert (learned > 0.1).all()


# ---------------------------------------------------------------------- the information
def test_directions_estimate_the_information_of_several_outputs():
    """Of one sample: over all directions the mean of the outer products is its Fisher information."""
    rng = np.random.default_rng(0)
    theta, x = rng.normal(size=BODY + 18), rng.normal(size=(1, 4))
    every = [np.array([signs]) for signs in itertools.product([-1.0, 1.0], repeat=CLASSES)]
    each = [information("classes", outputs, theta, x, signs) for signs in every]
    close(np.mean(each, 0), information("classes", outputs, theta, x), 1e-12)


def test_positions_and_several_labels_have_the_information_of_their_mean_loss():
    """The outer product over all signs is the Hessian of the loss by the outputs."""
    rng = torch.Generator().manual_seed(0)
    for target, shape, y in (
        (Sequences(3, ignore_index=-100), (2, 3), torch.tensor([1, -100])),
        (Sequences(3), (2, 3), torch.tensor([1, 2])),
        (MultiLabel(3), (3,), torch.tensor([1, 0, 1])),
        (VectorRegression(3), (3,), torch.tensor([0.5, 0.1, 2.0], dtype=torch.float64)),
        (Multiclass(4), (4,), torch.tensor(2)),
        (BINARY, (1,), torch.tensor(1)),
    ):
        given = torch.randn(shape, generator=rng, dtype=torch.float64)
        size = given.numel()
        exact = hessian(lambda out, target=target, y=y: target.losses(out, y), given)
        found = torch.zeros(size, size, dtype=torch.float64)
        for signs in itertools.product([-1.0, 1.0], repeat=size):
            one = root(target, given, y, torch.tensor(signs, dtype=torch.float64).view(shape)).flatten()
            found = found + torch.outer(one, one) / 2**size
        close(found, exact.reshape(size, size), 1e-12)


def test_of_many_samples_evenly_spaced_ones_count(client_trainer):
    """A client of copies of its rows is determined as if all were looked at; padding changes nothing."""
    few = make_clients([8, 5], 3, REGRESSION)
    copies = MOST_ROWS // 4
    x, y = few.x[:8].repeat_interleave(copies, 0), few.y[:8].repeat_interleave(copies)
    train = Split.of([(x, y), (few.x[8:], few.y[8:])])
    federation = pooled(train, client_trainer)
    federation.round()
    k = []
    for x, _ in as_arrays(train):
        k.append(determined(with_bias(x).T @ with_bias(x), [0.1, 0.1], 0.5, SLOPES))
    close(federation.shared.sums.determined, np.mean(k, 0))


def test_each_entry_of_a_label_counts():
    """σ² of vectors of two numbers, from residuals of all entries."""
    target = VectorRegression(2)
    federation = Federation(PartialPooling(), make_clients([5, 9], 3, target), make_task(target, 3))
    federation.round()
    k = float(federation.shared.sums.determined.sum())
    assert float(federation.shared.sums.labels) == 2 * 7
    close(federation.shared.noise, federation.shared.sums.squares / (2 * 7 - k), 1e-12)


# ---------------------------------------------------------------------- cohorts
def test_cohorts_estimate_what_all_clients_do():
    """A fifth of the clients in each round: variances within their sampling error, though a cohort has only eight."""
    rng = np.random.default_rng(1)
    train = panel(rng.integers(8, 20, 40).tolist(), seed=2)
    whole, parts = pooled(train, rounds=15), pooled(train)
    found = []
    for number in range(80):
        parts.round(rng.permutation(40)[:8].tolist())
        if number >= 40:
            found.append([*parts.shared.tau2.tolist(), float(parts.shared.noise)])
    exact = [*whole.shared.tau2.tolist(), float(whole.shared.noise)]
    assert np.abs(np.mean(found, 0) / exact - 1).max() < 0.15
    assert np.abs(np.std(found, 0) / exact).max() < 0.25


# ---------------------------------------------------------------------- who is served what
def test_a_client_without_rows_is_served_the_mean(client_trainer):
    train = panel([12, 9])
    empty = train.x[:0], train.y[:0]
    train = Split.of([train.client(0)[:2], empty, train.client(1)[:2]])
    federation = pooled(train, client_trainer, rounds=3)
    unseen = Split.of([empty])
    unseen.first_id = 3
    mean = federation.weights[0]
    close(flat(served(federation))[1], mean, 1e-15)
    close(flat(served(federation, federation.serve(unseen, seen=False)))[0], mean, 1e-15)
    assert float((flat(served(federation))[[0, 2]] - mean).abs().min()) > 1e-6


def test_until_a_client_is_sampled_it_is_served_the_mean():
    federation = pooled(panel([6, 4, 9]))
    for cohort in ([0, 1], [0]):
        federation.round(cohort)
    close(flat(served(federation))[2], federation.weights[0], 1e-15)
    federation.round([2])
    assert float((flat(served(federation))[0] - federation.weights[0]).abs().min()) > 1e-6


def test_a_model_moves_along_with_the_mean_that_it_missed():
    """A third of the way for the rounds in which it took part, of three; all of it if it never did."""
    federation = pooled(panel([6, 4, 9]))
    federation.round([0, 1])
    before, at = flat(served(federation))[0], federation.states.mean.parameters
    for _ in range(2):
        federation.round([1, 2])
    moved = federation.weights[0] - flat(tree.index(at, slice(0, 1)))[0]
    close(flat(served(federation))[0], before + 2 / 3 * moved, 1e-14)


def test_an_unseen_client_with_the_rows_of_a_seen_one_gets_its_model():
    train = panel()
    federation = pooled(train, rounds=20, adapt_epochs=200)
    twin = Split.of([train.client(2)[:2]])
    twin.first_id = 8
    close(flat(served(federation, federation.serve(twin, seen=False)))[0], flat(served(federation))[2], 1e-6)


@pytest.mark.parametrize("factor", [20.0, 1e12], ids=["the loss grows", "it is no number"])
def test_unseen_clients_whose_steps_are_too_long_are_served_the_mean(client_trainer, factor):
    """A step of SGD diverges where the loss bends more than 2/η: at η = 0.3 where inputs are large."""
    train = panel()
    federation = pooled(train, client_trainer, rounds=5, adapt_epochs=100 if factor > 1e6 else 3)
    x, y = train.client(2)[:2]
    unseen = Split.of([(x, y), (factor * x, y)])
    unseen.first_id = 8
    own, stayed = flat(served(federation, federation.serve(unseen, seen=False)))
    close(stayed, federation.weights[0], 1e-15)
    assert float((own - federation.weights[0]).abs().min()) > 1e-3


def test_bits_are_those_of_models_and_sums():
    """Of a linear model of three inputs: four numbers, weight [2], score and number of each leaf, three numbers."""
    federation = Federation(PartialPooling(), make_clients([5, 3], 3), make_task(BINARY, 3))
    federation.round()
    assert federation.bits.tolist() == [2 * 64 * (4 + 2 + 4 + 3), 2 * 64 * (4 + 2 + 1)]


# ---------------------------------------------------------------------- refused
def test_leaves_have_to_be_parameters():
    with pytest.raises(ConfigError, match=r"leaves has 'tail', which matches no trained leaf"):
        Federation(PartialPooling("tail"), make_clients([3]), make_task(network=small_mlp))
    with pytest.raises(ConfigError, match=r"leaves is norm\.running_mean, which matches no parameter; give \*, head"):
        Federation(PartialPooling("norm.running_mean"), make_clients([3]), make_task(network=NormalisedLinear))


def test_labels_without_a_known_information_are_refused():
    class Counts(Likelihood):
        num_outputs = 1

        def log_likelihood(self, outputs, y):
            return y * outputs[..., 0] - outputs[..., 0].exp()

        def predict(self, outputs):
            return outputs.exp()

    with pytest.raises(ConfigError, match=r"that of Counts labels is not known; give another --model\.target"):
        Federation(PartialPooling(), make_clients([3], target=REGRESSION), make_task(Counts(), num_features=4))
