"""Averages by responsibility of FedEM and D-FedEM, and first rounds by clustering, against formulas in NumPy."""

import numpy as np
import pytest
import torch
from federated_round import (
    Federation,
    as_arrays,
    batch_orders,
    distance,
    make_clients,
    make_context,
    make_task,
    run_rounds,
    same_bits,
)
from references import mixture_start_numpy as reference
from references.dfedem_numpy import metropolis

from lit_fed import FederatedModule
from lit_fed.algorithms import DFedEM, FedAvg, FedEM, KNNPer, ResponsibilityDFedEM, ResponsibilityFedEM
from lit_fed.core.graphs.topology import PathGraph
from lit_fed.core.local_solver import LocalSolver
from lit_fed.errors import ConfigError
from lit_fed.rounds import start
from lit_fed.wrappers.mixture_start import Clustering, with_start

SIZES = [5, 2, 8, 4]
COHORTS = [[0, 1, 2, 3], [2, 0], [1, 3, 2], [0, 3], [1, 2], [3, 0, 1]]
SOLVER = {"lr": 0.3, "momentum": 0.5, "weight_decay": 0.02}
STARTS = {"none": None, "clustering": Clustering(3)}
AVERAGES = {"samples": FedEM, "responsibility": ResponsibilityFedEM}
OF_PEERS = {"samples": DFedEM, "responsibility": ResponsibilityDFedEM}


def uniform(num_clients, num_models):
    return np.full((num_clients, num_models), 1 / num_models)


def e_step(start, round_idx):
    """The reference's E-step of a round."""
    return reference.clustered if start is not None and round_idx < start.num_rounds else reference.exact


def both(start, client_trainer, average, cohorts=COHORTS, **options):
    """Compare our run with that of the reference after each round."""
    federation = Federation(
        with_start(AVERAGES[average](3, start=start)), make_clients(SIZES), solver=LocalSolver(**SOLVER),
        trainer=client_trainer, batch_size=3, num_rounds=len(cohorts), **options,
    )  # fmt: skip
    thetas, clients = federation.weights.numpy(), as_arrays(federation.train)
    pis, total = uniform(len(clients), 3), sum(SIZES) if options.get("aggregation") == "stale_fill" else None
    for round_idx, cohort in enumerate(cohorts):
        orders = batch_orders(federation)
        thetas, pis, nll = reference.mixture_round(
            thetas, pis, cohort, clients, orders, e_step(start, round_idx), how=average, total=total, **SOLVER
        )
        federation.round(cohort)
        np.testing.assert_allclose(federation.weights.numpy(), thetas, rtol=0, atol=1e-10)
        assert federation.metrics["loss"] == pytest.approx(nll, abs=1e-10)
        for found, pi, (x, _) in zip(federation.predictions(), pis, clients, strict=True):
            np.testing.assert_allclose(found.exp().numpy(), reference_prediction(thetas, pi, x), rtol=0, atol=1e-10)


def reference_prediction(thetas, pi, x):
    positive = reference.sigmoid(reference.with_bias(x) @ thetas.T) @ pi
    return np.stack([1 - positive, positive], axis=1)


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("aggregation", ["renormalised", "stale_fill"])
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("average", AVERAGES)
def test_rounds_are_those_of_the_reference(average, start, aggregation, client_trainer):
    both(STARTS[start], client_trainer, average, aggregation=aggregation)


def test_draws_count_as_clients(client_trainer):
    both(Clustering(2), client_trainer, "responsibility", [[0, 2, 2], [1, 0, 1], [3, 3, 2]])


@pytest.mark.parametrize("average", AVERAGES)
def test_after_the_start_a_run_is_exact_em(average, client_trainer):
    train, start = make_clients(SIZES), Clustering(3)
    options = {"trainer": client_trainer, "num_rounds": 5, "solver": LocalSolver(momentum=0.5)}
    started = Federation(with_start(AVERAGES[average](3, start=start)), train, **options)
    for _ in range(3):
        started.round()
    plain = Federation(AVERAGES[average](3), train, **options, round_idx=3)
    plain.shared, plain.states = plain.shared._replace(models=started.shared.models), started.states
    for _ in range(2):
        started.round()
        plain.round()
    assert same_bits(started.shared.models, plain.shared.models)
    assert same_bits(started.states.mixture, plain.states.mixture)


@pytest.mark.parametrize("average", AVERAGES)
def test_one_component_is_fedavg(average, client_trainer):
    settings = {"train": make_clients(SIZES), "solver": LocalSolver(**SOLVER), "cohorts": COHORTS[:3]}
    mixture = with_start(AVERAGES[average](1, start=Clustering(2)))
    mixed, plain = (run_rounds(one, client_trainer, **settings) for one in (mixture, FedAvg()))
    assert distance(mixed.shared.models, plain.shared.models) < 1e-12
    assert distance(mixed.predictions(), plain.predictions()) < 1e-12


@pytest.mark.parametrize(("average", "later"), [("samples", 3 * 5 * 64), ("responsibility", 3 * 5 * 64 + 3 * 64)])
def test_in_the_start_a_client_sends_one_component_and_its_number(average, later, client_trainer):
    federation = Federation(with_start(AVERAGES[average](3, start=Clustering(1))), make_clients(SIZES))
    federation.trainer = client_trainer
    federation.round()
    assert federation.bits.tolist() == [4 * (5 * 64 + 2), 4 * 3 * 5 * 64]
    federation.round()
    assert federation.bits.tolist() == [4 * later, 4 * 3 * 5 * 64]


def test_a_start_inside_another_algorithm_is_not_forgotten(client_trainer):
    base = FedEM(2, start=Clustering(2))
    one, other = (
        run_rounds(algorithm, client_trainer, make_clients(SIZES), rounds=3)
        for algorithm in (KNNPer(base=base), with_start(base))
    )
    assert same_bits(one.shared, other.shared)


# ---------------------------------------------------------------------- without a server
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("average", OF_PEERS)
def test_peers_are_those_of_the_reference(average, start, client_trainer):
    begin, train = STARTS[start], make_clients(SIZES)
    algorithm = with_start(OF_PEERS[average](2, topology=PathGraph(), mixing="metropolis", start=begin))
    federation = Federation(algorithm, train, solver=LocalSolver(**SOLVER), trainer=client_trainer, batch_size=3)
    clients, edges = as_arrays(train), np.eye(4, k=1) + np.eye(4, k=-1)
    leaves = federation.shared.parameters
    thetas = torch.cat([leaves["linear.weight"].flatten(2), leaves["linear.bias"]], dim=2).numpy()
    pis, shares = uniform(4, 2), uniform(4, 2)
    for round_idx, cohort in enumerate(COHORTS):
        orders, before = batch_orders(federation), thetas.copy()
        for t in cohort:
            x, y = clients[t]
            q, pi, share = e_step(begin, round_idx)(pis[t], -np.log(reference.likelihoods(before[t], x, y)), t)
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


# ---------------------------------------------------------------------- settings
def test_wrong_settings_are_named():
    with pytest.raises(ConfigError, match=r"--model\.algorithm\.start\.num_rounds is 0"):
        Clustering(0)


def test_a_start_of_another_type_is_refused():
    with pytest.raises(ConfigError, match=r"--model\.algorithm\.start is 'Clustering'; give Clustering\(num_rounds"):
        FederatedModule(FedEM(start="Clustering"))


def test_rounds_without_lightning_begin_with_the_start_too():
    train = make_clients(SIZES)
    federation = start(FedEM(2, start=Clustering(1)), make_task(), train, num_rounds=2)
    assert type(federation.algorithm).__name__ == "StartByClustering"


def test_a_start_as_long_as_the_run_is_said(capsys):
    with_start(FedEM(2, start=Clustering(3))).shared_init(make_context(num_rounds=3))
    assert "takes 3 rounds, and the run has 3: the mixture is never trained" in capsys.readouterr().err
