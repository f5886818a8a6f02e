import numpy as np
import pytest
import torch
from federated_round import (
    BINARY,
    MULTICLASS,
    REGRESSION,
    Federation,
    as_arrays,
    batch_orders,
    distance,
    flat,
    make_clients,
    make_task,
    reordered,
    run_rounds,
    same_bits,
    small_mlp,
)
from normalised import NormalisedMLP
from references.dfedem_numpy import dfedem_round, expectation, metropolis, predict
from references.logistic import with_bias

from lit_fed.algorithms import DFedEM, FedEM
from lit_fed.core import tree
from lit_fed.core.graphs.mixing import mixing_matrix, second_eigenvalue
from lit_fed.core.graphs.topology import Complete, ErdosRenyi, GraphFile, PathGraph, Ring, Star, TimeVarying, adjacency
from lit_fed.core.local_solver import LocalSolver
from lit_fed.errors import ConfigError
from lit_fed.models import Linear

SIZES = [5, 2, 8, 4]
SOLVERS = [{"lr": 0.5}, {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.05}, {"lr": 0.05, "optimizer": "adam"}]
CHAIN = {"topology": PathGraph(), "mixing": "metropolis"}
EVERYBODY = {"topology": Complete(), "mixing": "uniform"}
ALONE = {"topology": Complete(), "mixing": "identity"}


def rows(federation):
    """The components of all clients, [T, M, d + 1]."""
    leaves = federation.shared.parameters
    return torch.cat([leaves["linear.weight"].flatten(2), leaves["linear.bias"]], dim=2).numpy()


def of_client(federation, one):
    """A client's components, leaves [M, ...]."""
    return tree.index(federation.shared.each, one)


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("options", SOLVERS[:2], ids=str)
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_rounds_are_those_of_the_reference(options, weighting, client_trainer):
    train, test = make_clients(SIZES), make_clients([4, 2, 3, 1], seed=1)
    settings = {"solver": LocalSolver(local_epochs=2, **options), "weighting": weighting, "batch_size": 2}
    federation = Federation(DFedEM(3, **CHAIN), train, trainer=client_trainer, **settings)
    matrix = metropolis(np.eye(4, k=1) + np.eye(4, k=-1))
    assert matrix[0].tolist() == [0.5, 0.5, 0, 0]
    shares = 4 * np.array(SIZES) / sum(SIZES) if weighting == "samples" else None
    weights = np.array(SIZES) if weighting == "samples" else np.ones(4)
    thetas, pis = rows(federation), np.full((4, 3), 1 / 3)
    for _ in range(3):
        orders = batch_orders(federation)
        thetas, pis, nll = dfedem_round(thetas, pis, as_arrays(train), orders, matrix, shares=shares, **options)
        federation.round()
        np.testing.assert_allclose(rows(federation), thetas, rtol=0, atol=1e-10)
        np.testing.assert_allclose(federation.states.mixture.numpy(), pis, rtol=0, atol=1e-10)
        assert federation.metrics["loss"] == pytest.approx(weights @ nll / weights.sum(), abs=1e-10)
    served = zip(federation.predictions(test), thetas, pis, as_arrays(test), strict=True)
    for found, theta, pi, (x, _) in served:
        np.testing.assert_allclose(found.exp().numpy(), predict(theta, pi, x), rtol=0, atol=1e-10)


def test_rounds_of_some_clients_are_those_of_the_reference(client_trainer):
    train = make_clients(SIZES)
    federation = Federation(DFedEM(2, **CHAIN), train, trainer=client_trainer, batch_size=3)
    edges = adjacency(PathGraph(), 4, 0, 0).numpy()
    thetas, pis = rows(federation), np.full((4, 2), 1 / 2)
    for cohort in ([0, 1, 2, 3], [3, 0, 1], [2], [1, 2]):
        orders = [own if one in cohort else None for one, own in enumerate(batch_orders(federation))]
        present = [one in cohort for one in range(4)]
        thetas, pis, _ = dfedem_round(thetas, pis, as_arrays(train), orders, metropolis(edges, present), lr=0.1)
        federation.round(cohort)
        np.testing.assert_allclose(rows(federation), thetas, rtol=0, atol=1e-10)
        np.testing.assert_allclose(federation.states.mixture.numpy(), pis, rtol=0, atol=1e-10)


def test_graphs_may_change_from_round_to_round(client_trainer):
    train, changing = make_clients(SIZES), TimeVarying(ErdosRenyi(0.6), edge_fraction=0.7)
    algorithm = DFedEM(2, topology=changing, mixing="metropolis")
    federation = Federation(algorithm, train, trainer=client_trainer, batch_size=3)
    thetas, pis, seen = rows(federation), np.full((4, 2), 1 / 2), set()
    for round_idx in range(4):
        edges = adjacency(changing, 4, 0, round_idx).numpy()
        seen.add(edges.tobytes())
        orders = batch_orders(federation)
        thetas, pis, _ = dfedem_round(thetas, pis, as_arrays(train), orders, metropolis(edges), lr=0.1)
        federation.round()
        np.testing.assert_allclose(rows(federation), thetas, rtol=0, atol=1e-10)
        assert federation.bits.tolist() == [edges.sum() * 2 * 5 * 64] * 2
    assert len(seen) > 1


# ---------------------------------------------------------------------- limits
@pytest.mark.parametrize(
    ("target", "network", "solver"),
    [
        *((BINARY, Linear, solver) for solver in SOLVERS),
        *((MULTICLASS, small_mlp, solver) for solver in SOLVERS[1:]),
        (REGRESSION, NormalisedMLP, {"lr": 0.1}),
    ],
    ids=lambda one: getattr(one, "__name__", getattr(one, "kind", str(one))),
)
def test_when_all_mix_with_all_it_is_fedem_with_equal_weights(solver, target, network, trainer):
    options = {
        "train": make_clients([5, 3, 8, 4], target=target), "task": make_task(target, network=network),
        "solver": LocalSolver(**solver), "weighting": "uniform", "trainer": trainer,
    }  # fmt: skip
    alone, server = (run_rounds(one, **options) for one in (DFedEM(3, **EVERYBODY), FedEM(3)))
    for one in range(4):
        assert distance(of_client(alone, one), server.shared.models) < 1e-12
    assert distance(alone.shared.mean, server.shared.models) < 1e-12
    assert distance(alone.states.mixture, server.states.mixture) < 1e-12
    assert alone.metrics == pytest.approx(server.metrics, abs=1e-12)
    assert distance(alone.predictions(), server.predictions()) < 1e-12
    unseen = make_clients([5, 2], target=target, seed=9, first_id=4)
    assert distance(alone.predictions(unseen, seen=False), server.predictions(unseen, seen=False)) < 1e-12


@pytest.mark.parametrize("mixing", ["fmmc", "metropolis", "lazy_metropolis", "max_degree"])
@pytest.mark.parametrize("topology", [PathGraph(), Ring(), Star(1), ErdosRenyi(0.6)], ids=repr)
def test_mixing_preserves_the_sum(topology, mixing, trainer):
    train = make_clients([5, 2, 8, 4, 3])
    mixed, kept = (
        run_rounds(DFedEM(2, topology=topology, mixing=how, common_start=False), trainer, train, rounds=1)
        for how in (mixing, "identity")
    )
    assert distance(mixed.shared.mean, kept.shared.mean) < 1e-13
    assert distance(flat(mixed.shared.parameters).sum(0), flat(kept.shared.parameters).sum(0)) < 1e-12
    assert distance(mixed.shared.parameters, kept.shared.parameters) > 1e-2
    assert same_bits(mixed.states, kept.states)


def test_without_steps_clients_agree_as_fast_as_the_matrix_says(trainer):
    algorithm = DFedEM(2, **CHAIN, common_start=False)
    federation = Federation(algorithm, make_clients(SIZES), trainer=trainer, solver=LocalSolver(local_epochs=0))
    slem = second_eigenvalue(mixing_matrix(PathGraph(), "metropolis", 4, 0, 0))
    before = rows(federation)
    mean = before.mean(axis=0)
    for round_idx in range(1, 30):
        federation.round()
        apart = np.linalg.norm(rows(federation) - mean)
        assert apart <= slem**round_idx * np.linalg.norm(before - mean) + 1e-12
    assert apart > 0.5 * slem**30 * np.linalg.norm(before - mean)


def test_samples_weigh_a_clients_loss(trainer):
    """After one step on all samples the mean of the clients is FedEM's, weighted by samples, whatever the graph."""
    solver = LocalSolver(lr=0.4, local_steps=1)
    options = {"train": make_clients(SIZES), "solver": solver, "batch_size": 0, "rounds": 1, "trainer": trainer}
    server = run_rounds(FedEM(3), **options)
    weighted = run_rounds(DFedEM(3, **CHAIN), weighting="samples", **options)
    alike = run_rounds(DFedEM(3, **CHAIN), **options)
    assert alike.weighting == "uniform"
    assert distance(weighted.shared.mean, server.shared.models) < 1e-12
    assert distance(alike.shared.mean, server.shared.models) > 1e-3
    assert weighted.metrics["loss"] == pytest.approx(server.metrics["loss"], abs=1e-12)


# ---------------------------------------------------------------------- who takes part
def test_whose_neighbours_are_absent_trains_alone(client_trainer):
    """On a chain 0 - 1 - 2 - 3 client 0 hears of nobody when 1 is away."""
    options = {"train": make_clients(SIZES), "trainer": client_trainer, "rounds": 1, "cohorts": [[0, 2, 3]]}
    chain, alone = (run_rounds(DFedEM(3, **how), **options) for how in (CHAIN, ALONE))
    assert distance(of_client(chain, 0), of_client(alone, 0)) < 1e-14
    assert distance(of_client(chain, 2), of_client(alone, 2)) > 1e-3


@pytest.mark.parametrize(
    ("cohort", "edges"), [([0, 1, 2, 3], 6), ([0, 1, 3], 2), ([1, 2, 3], 4), ([0, 2], 0), ([1], 0)], ids=str
)
def test_all_components_go_along_each_edge_in_both_directions(cohort, edges, client_trainer):
    task = make_task(dtype=torch.float32)
    train = make_clients(SIZES, dtype=torch.float32)
    federation = run_rounds(DFedEM(4, **CHAIN), client_trainer, train, task=task, rounds=1, cohorts=[cohort])
    assert federation.bits.tolist() == [edges * 4 * 5 * 32] * 2


def test_clients_under_other_numbers(tmp_path, client_trainer):
    """The same graph, data and start with other numbers: the results move with the clients."""
    order = torch.tensor([2, 0, 3, 1])  # new client k is the old client order[k]
    new = {old: k for k, old in enumerate(order.tolist())}
    (tmp_path / "edges").write_text("".join(f"{new[one]} {new[one + 1]}\n" for one in range(3)))
    train = make_clients(SIZES)
    renamed = reordered(train, order)
    graph = {"topology": GraphFile(str(tmp_path / "edges")), "mixing": "metropolis"}
    options = {"trainer": client_trainer, "batch_size": 0, "solver": LocalSolver(lr=0.3, local_epochs=2)}
    old, other = (
        run_rounds(DFedEM(2, **how), train=data, **options) for how, data in ((CHAIN, train), (graph, renamed))
    )
    assert distance(tree.index(old.shared.each, order), other.shared.each) < 1e-12
    assert distance(old.states.mixture[order], other.states.mixture) < 1e-12
    predictions = old.predictions()
    assert distance([predictions[one] for one in order.tolist()], other.predictions()) < 1e-12


# ---------------------------------------------------------------------- start and serving
def test_all_clients_start_from_fedems_components():
    federation, server = (Federation(one, make_clients(SIZES)) for one in (DFedEM(3), FedEM(3)))
    for one in range(4):
        assert same_bits(of_client(federation, one), server.shared.models)
    assert federation.states.mixture.tolist() == [[1 / 3] * 3] * 4
    assert federation.states.client_id.tolist() == [0, 1, 2, 3]


def test_clients_may_start_apart():
    federation = Federation(DFedEM(2, common_start=False), make_clients(SIZES))
    components = torch.from_numpy(rows(federation)).flatten(0, 1)
    gaps = torch.cdist(components, components)
    assert (gaps + torch.eye(8) > 0.1).all()
    np.testing.assert_allclose(
        flat(federation.shared.mean.parameters).numpy(),
        flat(tree.map_leaves(lambda leaf: leaf.mean(0), federation.shared.parameters)).numpy(),
        rtol=0,
        atol=1e-15,
    )


@pytest.mark.parametrize("em_steps", [1, 2, 5])
def test_an_unseen_client_takes_e_steps_on_the_mean(em_steps, client_trainer):
    train, unseen = make_clients(SIZES), make_clients([6, 3, 0], seed=2, first_id=4)
    federation = run_rounds(DFedEM(3, **CHAIN, em_steps=em_steps), client_trainer, train)
    mean = rows(federation).mean(axis=0)
    served = federation.serve(unseen, seen=False)
    predictions = federation.predictions(unseen, seen=False)
    for one, (x, y) in enumerate(as_arrays(unseen)[:2]):
        pi = np.full(3, 1 / 3)
        for _ in range(em_steps):
            _, pi, _ = expectation(mean, pi, with_bias(x), y)
        np.testing.assert_allclose(served.mixture[one].numpy(), pi, rtol=0, atol=1e-10)
        np.testing.assert_allclose(predictions[one].exp().numpy(), predict(mean, pi, x), rtol=0, atol=1e-10)
    assert served.mixture[2].tolist() == [1 / 3] * 3
    assert served.client_id.tolist() == [4, 5, 6]


# ---------------------------------------------------------------------- what it tells, and settings
def test_the_picture_is_the_mixing_matrix():
    federation = Federation(DFedEM(**CHAIN), make_clients(SIZES))
    found = federation.algorithm.collaboration(federation.context("train"), federation.shared, federation.states)
    np.testing.assert_allclose(found.numpy(), metropolis(np.eye(4, k=1) + np.eye(4, k=-1)), rtol=0, atol=1e-15)


def test_a_graph_in_two_parts_is_refused_before_training(tmp_path):
    (tmp_path / "edges").write_text("0 1\n2 3\n")
    algorithm = DFedEM(topology=GraphFile(str(tmp_path / "edges")))
    with pytest.raises(ConfigError, match="falls into 2 parts"):
        Federation(algorithm, make_clients(SIZES))


def test_a_rule_that_the_graph_does_not_allow_is_refused_before_training():
    with pytest.raises(ConfigError, match="needs the topology Complete"):
        Federation(DFedEM(topology=Ring(), mixing="uniform"), make_clients(SIZES))
    with pytest.raises(ConfigError, match="makes 4 clients swap models and never agree"):
        Federation(DFedEM(topology=Ring(), mixing="metropolis"), make_clients([2] * 4))
