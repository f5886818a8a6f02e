"""Averages of FedEM and D-FedEM, and first rounds of mixtures, against formulas in NumPy."""

import numpy as np
import pytest
import torch
from federated_round import (
    Federation,
    as_arrays,
    batch_orders,
    distance,
    make_clients,
    run_rounds,
    same_bits,
)
from references import fedem_starts_numpy as reference
from references.dfedem_numpy import metropolis

from lit_fed.algorithms import DFedEM, FedAvg, FedEM
from lit_fed.core import tree
from lit_fed.core.graphs.topology import PathGraph
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.mixtures.starts import Annealing, Clustering, FarthestClients, Restarts, SplitAndMerge
from lit_fed.core.seeds import torch_generator
from lit_fed.core.types import LocalWork
from lit_fed.errors import ConfigError

SIZES = [5, 2, 8, 4]
COHORTS = [[0, 1, 2, 3], [2, 0], [1, 3, 2], [0, 3], [1, 2], [3, 0, 1]]
AVERAGES = ["samples", "responsibility", "rescaled"]
SOLVER = {"lr": 0.3, "momentum": 0.5, "weight_decay": 0.02}

STARTS = {
    "none": None,
    "annealing": Annealing(4, first=0.2),
    "annealing by client": Annealing(4, by_client=True),
    "clustering": Clustering(3),
    "restarts": Restarts(2, 2),
    "farthest clients": FarthestClients(2),
    "an unused component": SplitAndMerge(2, 2, unused=1.0),
    "two components alike": SplitAndMerge(2, 2, unused=0.0, alike=0.0, spread=0.5),
    "nothing to exchange": SplitAndMerge(2, 2, unused=0.0, alike=1.0),
}


def uniform(num_clients, num_models):
    return np.full((num_clients, num_models), 1 / num_models)


class Reference:
    """A run of the reference beside one of ours.

    Args:
        federation: of one component or more, before its first round.
        start: its start.
        options: of `mixture_round`.
    """

    def __init__(self, federation, start, **options):
        self.federation, self.start, self.options = federation, start, options
        self.thetas, self.clients = federation.weights.numpy(), as_arrays(federation.train)
        self.pis = uniform(len(self.clients), len(self.thetas))
        self.best, self.seen = (np.inf, None), []

    def e_step(self, round_idx, cohort):
        """The E-step of a round."""
        start = self.start
        if start is None or round_idx >= start.length(len(self.thetas)):
            return reference.exact
        if isinstance(start, Annealing):
            return reference.annealed(start.first ** (1 - round_idx / start.num_rounds), start.by_client)
        if isinstance(start, FarthestClients):
            chosen = reference.worst_explained(self.thetas, cohort, self.clients, max(round_idx, 1))
            self.seen.append(chosen)
            return reference.of_one_client(chosen, round_idx)
        return reference.clustered if isinstance(start, Clustering) else reference.exact

    def round(self, cohort):
        start, round_idx, before = self.start, self.federation.round_idx, self.thetas
        begun = start is not None and round_idx < start.length(len(self.thetas))
        farthest = begun and isinstance(start, FarthestClients)
        epochs = start.local_epochs if farthest else self.federation.solver.local_epochs
        orders = batch_orders(self.federation, work=LocalWork(epochs=epochs))
        self.thetas, self.pis, (nll, *told) = reference.mixture_round(
            before,
            self.pis,
            cohort,
            self.clients,
            orders,
            self.e_step(round_idx, cohort),
            **self.options | ({"total": None} if farthest else {}),
        )
        if farthest:
            self.pis = uniform(*self.pis.shape)
        if begun and isinstance(start, Restarts) and (round_idx + 1) % start.num_rounds == 0:
            self.restart(nll, before, (round_idx + 1) // start.num_rounds)
        if begun and isinstance(start, SplitAndMerge) and (round_idx + 1) % start.every == 0:
            self.exchange(told, round_idx)
        return nll

    def restart(self, nll, before, tries):
        """Keep the better components; begin anew, or with the best of all."""
        self.best = min(self.best, (nll, before), key=lambda pair: pair[0])
        self.seen.append(nll)
        fresh = Federation(FedEM(len(before)), self.federation.train, seed=self.federation.seed + tries)
        self.thetas = fresh.weights.numpy() if tries < self.start.tries else self.best[1]
        self.pis = uniform(*self.pis.shape)

    def exchange(self, told, round_idx):
        drawn = torch_generator(self.federation.seed, round_idx, 0, "split")
        noise = torch.randn((1, 4), generator=drawn, dtype=torch.float64)[0].numpy()  # of the weights, which come first
        settings = (self.start.unused, self.start.alike, self.start.spread)
        self.thetas, kind = reference.split_and_merge(self.thetas, *told, *settings, noise)
        self.seen.append(kind)
        if kind:
            self.pis = uniform(*self.pis.shape)


def both(start, client_trainer, average, cohorts=COHORTS, **options):
    """Our run and that of the reference, compared after each round."""
    settings = {"min_weight": options.pop("min_weight", 0.0)}
    federation = Federation(
        FedEM(3, average=average, start=start, **settings), make_clients(SIZES), solver=LocalSolver(**SOLVER),
        trainer=client_trainer, batch_size=3, num_rounds=len(cohorts), **options,
    )  # fmt: skip
    total = sum(SIZES) if options.get("aggregation") == "stale_fill" else None
    other = Reference(federation, start, how=average, least=settings["min_weight"], total=total, **SOLVER)
    for cohort in cohorts:
        nll = other.round(cohort)
        federation.round(cohort)
        np.testing.assert_allclose(federation.weights.numpy(), other.thetas, rtol=0, atol=1e-10)
        assert federation.metrics["loss"] == pytest.approx(nll, abs=1e-10)
        for found, pi, (x, _) in zip(federation.predictions(), other.pis, other.clients, strict=True):
            np.testing.assert_allclose(
                found.exp().numpy(), reference_prediction(other.thetas, pi, x), rtol=0, atol=1e-10
            )
    return federation, other


def reference_prediction(thetas, pi, x):
    positive = reference.sigmoid(reference.with_bias(x) @ thetas.T) @ pi
    return np.stack([1 - positive, positive], axis=1)


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("average", AVERAGES)
def test_rounds_are_those_of_the_reference(average, start, client_trainer):
    federation, other = both(STARTS[start], client_trainer, average)
    kinds = {"an unused component": "unused", "two components alike": "alike", "nothing to exchange": ""}
    if start in kinds:
        assert other.seen == [kinds[start]] * 2
    if start == "farthest clients":
        assert len(set(other.seen)) > 1
        assert int(federation.shared.chosen) == -1
    assert start in kinds or federation.metrics["loss"] > 0


@pytest.mark.parametrize("start", ["none", "annealing", "clustering", "farthest clients", "an unused component"])
@pytest.mark.parametrize("average", AVERAGES)
def test_absent_clients_are_filled_in(average, start, client_trainer):
    both(STARTS[start], client_trainer, average, COHORTS[:5], aggregation="stale_fill")


@pytest.mark.parametrize("start", ["none", "annealing", "clustering", "restarts"])
@pytest.mark.parametrize("average", AVERAGES[:2])
def test_clients_may_send_components_of_large_weight_alone(average, start, client_trainer):
    both(STARTS[start], client_trainer, average, min_weight=0.3)


@pytest.mark.parametrize("tries", [1, 3])
def test_the_best_try_goes_on(tries, client_trainer):
    everybody = [[0, 1, 2, 3]] * (tries + 1)
    _, other = both(Restarts(tries, 1), client_trainer, "responsibility", everybody)
    assert other.best[0] == min(other.seen)
    assert len(set(other.seen)) == tries


def test_a_try_also_ends_in_a_round_without_clients(client_trainer):
    """It counts with the likelihood of its latest round that has some, and the best of all goes on."""
    federation = Federation(FedEM(3, start=Restarts(2, 2)), make_clients(SIZES), trainer=client_trainer, num_rounds=6)
    begun, losses = [], []
    for cohort in ([0, 1, 2, 3], [0, 1, 2, 3], [1, 2], []):
        begun.append(federation.shared.models)
        federation.round(cohort)
        losses.append(federation.metrics["loss"])
    best, least, _ = federation.shared.kept
    assert int(federation.shared.exchanges) == 2
    assert float(least) == pytest.approx(min(losses[1:3]))
    assert same_bits(best, begun[1] if losses[1] < losses[2] else begun[3])
    assert same_bits(federation.shared.models, best)
    federation.round([])
    assert same_bits(federation.shared.models, best)


def test_a_try_without_clients_is_not_the_best(client_trainer):
    federation = Federation(FedEM(3, start=Restarts(2, 1)), make_clients(SIZES), trainer=client_trainer, num_rounds=3)
    begun = federation.shared.models
    federation.round()
    federation.round([])
    assert float(federation.shared.kept[1]) == pytest.approx(federation.metrics["loss"])
    assert same_bits(federation.shared.models, begun)


def test_draws_count_as_clients(client_trainer):
    both(Clustering(2), client_trainer, "responsibility", [[0, 2, 2], [1, 0, 1], [3, 3, 2]])


# ---------------------------------------------------------------------- exchanges
def test_absent_clients_forget_their_weights_after_an_exchange(client_trainer):
    start = SplitAndMerge(2, 1, unused=1.0)
    federation = Federation(FedEM(3, start=start), make_clients(SIZES), trainer=client_trainer, num_rounds=3)
    federation.round([0, 1, 2, 3])
    fitted = federation.states.mixture
    assert distance(fitted, torch.full_like(fitted, 1 / 3)) > 1e-3
    federation.round([0, 1])
    assert int(federation.shared.exchanges) == 1
    fresh = Federation(FedEM(3), make_clients(SIZES))
    fresh.shared = fresh.shared._replace(models=federation.shared.models)
    assert distance(federation.predictions(), fresh.predictions()) < 1e-12  # of clients that were absent, too
    federation.round([2, 3])
    fresh.round_idx = 2
    fresh.round([2, 3])
    assert distance(federation.states.mixture[2:], fresh.states.mixture[2:]) < 1e-12


@pytest.mark.parametrize("name", ["annealing", "clustering", "restarts", "farthest clients", "an unused component"])
def test_after_the_start_a_run_is_exact_em(name, client_trainer):
    """Where components were exchanged, clients also begin with fresh momentum."""
    begin, train = STARTS[name], make_clients(SIZES)
    length = begin.length(3)
    solver = LocalSolver(momentum=0.5, persist_optimizer=bool(begin.reports))
    options = {"trainer": client_trainer, "num_rounds": length + 2, "solver": solver}
    started = Federation(FedEM(3, average="responsibility", start=begin), train, **options)
    for _ in range(length):
        started.round()
    plain = Federation(FedEM(3, average="responsibility"), train, **options, round_idx=length)
    plain.shared = plain.shared._replace(models=started.shared.models)
    if not begin.reports:  # else all weights are uniform again
        plain.states = plain.states._replace(mixture=started.states.mixture)
    for _ in range(2):
        started.round()
        plain.round()
    assert same_bits(started.shared.models, plain.shared.models)
    assert same_bits(started.states.mixture, plain.states.mixture)


def test_farthest_clients_train_with_fresh_moments(client_trainer):
    """Every round exchanges a component, and the phase in which clients are asked leaves the optimizer as it is."""
    solvers = (LocalSolver("adam", persist_optimizer=keeps) for keeps in (True, False))
    kept, fresh = (
        run_rounds(FedEM(3, start=FarthestClients(2)), client_trainer, make_clients(SIZES), solver=one)
        for one in solvers
    )
    assert same_bits(kept.shared.models, fresh.shared.models)
    assert any(float(leaf.abs().max()) > 0 for leaf in tree.leaves(kept.optimizers))


@pytest.mark.parametrize("start", [Annealing(2), Clustering(2), SplitAndMerge(1, 2)], ids=repr)
@pytest.mark.parametrize("average", AVERAGES)
def test_one_component_is_fedavg(average, start, client_trainer):
    settings = {"train": make_clients(SIZES), "solver": LocalSolver(**SOLVER), "cohorts": COHORTS[:3]}
    mixed, plain = (
        run_rounds(one, client_trainer, **settings) for one in (FedEM(1, average=average, start=start), FedAvg())
    )
    assert distance(mixed.shared.models, plain.shared.models) < 1e-12
    assert distance(mixed.predictions(), plain.predictions()) < 1e-12


def test_an_asked_client_sends_one_number(client_trainer):
    """Then one client sends its model, all others nothing, and each says so in a bit per component."""
    federation = Federation(FedEM(3, average="samples", start=FarthestClients()), make_clients(SIZES))
    federation.trainer = client_trainer
    federation.round()
    models = 3 * 5 * 64
    assert federation.bits.tolist() == [4 * 64 + 5 * 64 + 4 * 3, 2 * 4 * models]
    tried = run_rounds(FedEM(3, average="samples", start=Restarts()), client_trainer, make_clients(SIZES), rounds=1)
    assert tried.bits.tolist() == [4 * (models + 64), 4 * models]  # what the server keeps is not sent


# ---------------------------------------------------------------------- without a server
PEER_STARTS = ["none", "annealing", "annealing by client", "clustering"]


@pytest.mark.parametrize("start", PEER_STARTS)
@pytest.mark.parametrize("average", ["clients", "responsibility"])
def test_peers_are_those_of_the_reference(average, start, client_trainer):
    begin, train = STARTS[start], make_clients(SIZES)
    algorithm = DFedEM(2, topology=PathGraph(), mixing="metropolis", average=average, start=begin)
    federation = Federation(algorithm, train, solver=LocalSolver(**SOLVER), trainer=client_trainer, batch_size=3)
    clients, edges = as_arrays(train), np.eye(4, k=1) + np.eye(4, k=-1)
    leaves = federation.shared.parameters
    thetas = torch.cat([leaves["linear.weight"].flatten(2), leaves["linear.bias"]], dim=2).numpy()
    pis, shares = uniform(4, 2), uniform(4, 2)
    driver = Reference(run_rounds(FedEM(2), None, train, rounds=0), begin)
    for round_idx, cohort in enumerate(COHORTS):
        orders, before = batch_orders(federation), thetas.copy()
        for t in cohort:
            x, y = clients[t]
            q, pi, share = driver.e_step(round_idx, cohort)(pis[t], -np.log(reference.likelihoods(before[t], x, y)), t)
            thetas[t] = reference.trained(before[t], q, x, y, orders[t], **SOLVER)
            pis[t], shares[t] = pi, (pi if average == "responsibility" else 1) if share is None else share
        matrix = metropolis(edges, [t in cohort for t in range(4)])
        mass = (matrix @ shares)[..., None]
        by_shares = np.einsum("ij,jm,jmd->imd", matrix, shares, thetas) / np.where(mass > 0, mass, 1)
        thetas = np.where(mass > 0, by_shares, np.einsum("ij,jmd->imd", matrix, thetas))
        federation.round(cohort)
        leaves = federation.shared.parameters
        found = torch.cat([leaves["linear.weight"].flatten(2), leaves["linear.bias"]], dim=2).numpy()
        np.testing.assert_allclose(found, thetas, rtol=0, atol=1e-10)
        np.testing.assert_allclose(federation.states.mixture.numpy(), pis, rtol=0, atol=1e-10)
        by = shares if average == "responsibility" or start == "clustering" else np.ones((4, 2))  # also of absent ones
        mean = np.einsum("tm,tmd->md", by, thetas) / np.maximum(by.sum(0), 1e-300)[:, None]
        mean = np.where(by.sum(0)[:, None] > 0, mean, thetas.mean(0))
        leaves = federation.shared.mean.parameters
        found = torch.cat([leaves["linear.weight"].flatten(1), leaves["linear.bias"]], dim=1).numpy()
        np.testing.assert_allclose(found, mean, rtol=0, atol=1e-10)


@pytest.mark.parametrize("start", [Restarts(), FarthestClients(), SplitAndMerge()], ids=lambda one: type(one).__name__)
def test_peers_have_no_server_to_report_to(start):
    with pytest.raises(ConfigError, match="DFedEM has none; give Annealing or Clustering"):
        DFedEM(start=start)


# ---------------------------------------------------------------------- settings
@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Annealing, {"first": 0.0}), (Annealing, {"first": 1.5}), (Annealing, {"num_rounds": 0}),
        (Clustering, {"num_rounds": 0}), (Restarts, {"tries": 0}), (Restarts, {"num_rounds": 0}),
        (FarthestClients, {"local_epochs": 0}), (SplitAndMerge, {"every": 0}), (SplitAndMerge, {"times": 0}),
        (SplitAndMerge, {"unused": 1.5}), (SplitAndMerge, {"alike": -0.1}), (SplitAndMerge, {"spread": 0.0}),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_settings_are_named(kind, wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ConfigError, match=rf"--model\.algorithm\.start\.{name} is {value}"):
        kind(**wrong)


@pytest.mark.parametrize("some", [{"min_weight": 0.1}, {"most_components": 2}], ids=str)
def test_rescaled_steps_need_all_components(some):
    with pytest.raises(ConfigError, match=r"average is rescaled, for which clients send all components"):
        FedEM(average="rescaled", **some)


def test_auto_follows_what_is_around():
    assert FedEM(average="auto").settled(["compression"]).average == "responsibility"
    for fact in ("privacy", "robust", "ef21", "average", "deployed"):
        assert FedEM(average="auto").settled([fact]).average == "samples"
        assert FedEM(average="responsibility").settled([fact]).average == "responsibility"


@pytest.mark.parametrize("some", [{"min_weight": 0.5}, {"most_components": 1}], ids=str)
def test_a_start_that_chooses_components_is_not_thinned_out(some):
    whole, thinned = (
        run_rounds(FedEM(3, start=FarthestClients(1), **options), None, make_clients([5, 2, 8]), rounds=3)
        for options in ({}, some)
    )
    assert distance(whole.shared.models, thinned.shared.models) < 1e-12
