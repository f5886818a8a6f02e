from dataclasses import dataclass

import networkx as nx
import pytest
import torch
from federated_round import distance, flat, make_clients, make_context, make_task, perturbed, same_bits
from normalised import NormalisedMLP
from stochastic import check_mixing
from torch.func import vmap

from lit_fed.core import tree
from lit_fed.core.graphs.mixing import (
    check_agreement,
    gossip,
    initial_peers,
    mixing_matrix,
    restrict,
    second_eigenvalue,
    traffic,
    weights_of,
)
from lit_fed.core.graphs.peers import combine, put_models
from lit_fed.core.graphs.topology import (
    Bipartite,
    Complete,
    ErdosRenyi,
    Grid,
    PathGraph,
    Ring,
    Star,
    TimeVarying,
    Topology,
    adjacency,
    two_colours,
)
from lit_fed.errors import ConfigError

RULES = ["fmmc", "metropolis", "lazy_metropolis", "max_degree", "best_constant", "identity"]
GRAPHS = [Complete(), Ring(), PathGraph(), Grid(), ErdosRenyi(), Bipartite()]
PAIRS = [(graph, rule) for graph in GRAPHS for rule in RULES]
PAIRS = [pair for pair in PAIRS if pair not in ((ErdosRenyi(), "best_constant"), (Bipartite(), "best_constant"))]
"""Where degrees differ much, the best constant makes weights negative."""


@dataclass(frozen=True)
class Pairs(Topology):
    """Each even client with the next one."""

    def graph(self, num_clients, seed, round_idx):
        return nx.from_edgelist((one, one + 1) for one in range(0, num_clients, 2))


def matrix_of(rows):
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize(("graph", "rule"), PAIRS, ids=str)
@pytest.mark.parametrize("num_clients", [1, 2, 3, 10])
def test_all_rules_give_mixing_matrices(rule, graph, num_clients):
    matrix = mixing_matrix(graph, rule, num_clients, 0, 0)
    assert matrix.shape == (num_clients, num_clients)
    check_mixing(matrix, adjacency(graph, num_clients, 0, 0))


THIRD = 1 / 3


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("metropolis", [[0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5]]),
        ("lazy_metropolis", [[2 / 3, THIRD, 0], [THIRD, THIRD, THIRD], [0, THIRD, 2 / 3]]),
        ("max_degree", [[0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5]]),
        ("best_constant", [[0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5]]),  # 2/(3 + 1)
        ("fmmc", [[0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5]]),
        ("identity", [[1, 0, 0], [0, 1, 0], [0, 0, 1]]),
    ],
)
def test_a_path_of_three(rule, expected):
    found = mixing_matrix(PathGraph(), rule, 3, 0, 0)
    torch.testing.assert_close(found, matrix_of(expected), rtol=0, atol=1e-6)


def test_the_fastest_weights_are_not_those_of_metropolis():
    """On a cycle of four the best edges weigh 1/(3 − cos 90°) = 1/3; Metropolis gives them 1/2."""
    found = mixing_matrix(Ring(), "fmmc", 4, 0, 0)
    expected = (adjacency(Ring(), 4, 0, 0) + torch.eye(4, dtype=torch.float64)) / 3
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    assert second_eigenvalue(found) == pytest.approx(1 / 3, abs=1e-6)


def test_weights_follow_the_larger_degree():
    edges = adjacency(Star(), 4, 0, 0)  # and an edge between two leaves
    edges = edges.clone()
    edges[1, 2] = edges[2, 1] = 1
    found = weights_of(edges, "metropolis")
    torch.testing.assert_close(found[1], matrix_of([1 / 3, 1 / 6, 1 / 2, 0]))
    torch.testing.assert_close(weights_of(edges, "lazy_metropolis")[1], matrix_of([1 / 4, 5 / 12, 1 / 3, 0]))
    torch.testing.assert_close(weights_of(edges, "max_degree")[1], matrix_of([1 / 3, 1 / 3, 1 / 3, 0]))


def test_uniform_weights():
    found = mixing_matrix(Complete(), "uniform", 5, 0, 0)
    torch.testing.assert_close(found, torch.full((5, 5), 0.2, dtype=torch.float64))
    assert second_eigenvalue(found) == pytest.approx(0, abs=1e-12)
    with pytest.raises(ConfigError, match="uniform, which needs the topology Complete"):
        mixing_matrix(Ring(), "uniform", 5, 0, 0)


def test_the_best_constant_can_be_too_large():
    """On a star 2/(n + 1), of which the centre gives n - 1 away."""
    with pytest.raises(ConfigError, match="best_constant gives this graph negative weights"):
        mixing_matrix(Star(), "best_constant", 6, 0, 0)


def test_the_best_constant_is_the_best():
    edges = adjacency(Ring(), 7, 0, 0)
    best = weights_of(edges, "best_constant")
    for constant in torch.linspace(0.05, 0.5, 30, dtype=torch.float64):
        other = edges * constant + torch.eye(7, dtype=torch.float64) * (1 - 2 * constant)
        assert second_eigenvalue(best) <= second_eigenvalue(other) + 1e-12


def test_second_eigenvalues():
    assert second_eigenvalue(torch.eye(3, dtype=torch.float64)) == pytest.approx(1)
    assert second_eigenvalue(torch.ones(1, 1, dtype=torch.float64)) == pytest.approx(0, abs=1e-12)
    assert second_eigenvalue(matrix_of([[0, 1], [1, 0]])) == pytest.approx(1)


@pytest.mark.parametrize("rule", ["fmmc", "metropolis"])
def test_absent_clients_keep_their_models(rule):
    matrix = mixing_matrix(ErdosRenyi(), rule, 10, 0, 0)
    active = torch.tensor([True] * 6 + [False] * 4)
    found = restrict(matrix, active)
    check_mixing(found, adjacency(ErdosRenyi(), 10, 0, 0))
    assert torch.equal(found[6:], torch.eye(10, dtype=torch.float64)[6:])
    off = ~torch.eye(10, dtype=torch.bool)
    assert torch.equal(found[:6, :6][off[:6, :6]], matrix[:6, :6][off[:6, :6]])
    torch.testing.assert_close(restrict(matrix, torch.ones(10, dtype=torch.bool)), matrix)


@pytest.mark.parametrize("rule", ["fmmc", "metropolis", "max_degree"])
def test_graphs_that_change_and_fall_apart(rule):
    graph = TimeVarying(Ring(), edge_fraction=0.5)
    matrices = [mixing_matrix(graph, rule, 8, 0, round_idx) for round_idx in range(4)]
    for round_idx, matrix in enumerate(matrices):
        check_mixing(matrix, adjacency(graph, 8, 0, round_idx))
    assert not torch.equal(matrices[0], matrices[1])
    assert max(second_eigenvalue(matrix) for matrix in matrices) == pytest.approx(1)


@pytest.mark.parametrize("rule", RULES)
def test_mixing_keeps_the_mean(rule):
    models = torch.randn(9, 2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mixed = combine(mixing_matrix(Ring(), rule, 9, 0, 0), {"weight": models})["weight"]
    assert float((mixed.mean(0) - models.mean(0)).abs().max()) < 1e-12
    before, after = ((one - one.mean(0)).norm() for one in (models, mixed))
    assert after <= before * second_eigenvalue(mixing_matrix(Ring(), rule, 9, 0, 0)) + 1e-12


SWAPS = [
    (Ring(), 4),
    (Ring(), 10),
    (Ring(), 2),
    (Complete(), 2),
    (Bipartite(1.0), 6),
    (Grid(periodic=True), 16),
    (TimeVarying(Ring(), every=3), 6),
    (TimeVarying(Complete(), edge_fraction=0.5), 2),
]


@pytest.mark.parametrize(("graph", "num_clients"), SWAPS, ids=str)
@pytest.mark.parametrize("rule", ["metropolis", "max_degree"])
def test_graphs_on_which_neighbours_swap_models_are_refused(graph, num_clients, rule):
    """Models of the two halves, +1 and -1 at the start, are as far apart after a hundred rounds."""
    with pytest.raises(ConfigError, match=rf"mixing is {rule}, .* swap models and never agree .*; give lazy_metr"):
        check_agreement(graph, rule, num_clients, 0)
    edges = adjacency(getattr(graph, "topology", graph), num_clients, 0, 0)
    models = torch.where(two_colours(edges), 1.0, -1.0).double()
    for round_idx in range(100):
        models = mixing_matrix(graph, rule, num_clients, 0, round_idx) @ models
    assert float(models.abs().min()) == pytest.approx(1)


@pytest.mark.parametrize("rule", ["fmmc", "lazy_metropolis", "best_constant", "identity"])
@pytest.mark.parametrize(("graph", "num_clients"), SWAPS[:6], ids=str)
def test_all_other_rules_agree_on_them(graph, num_clients, rule):
    check_agreement(graph, rule, num_clients, 0)
    assert rule == "identity" or second_eigenvalue(mixing_matrix(graph, rule, num_clients, 0, 0)) < 0.999


@pytest.mark.parametrize("rule", ["metropolis", "max_degree"])
@pytest.mark.parametrize(
    ("graph", "num_clients"),
    [(Ring(), 9), (Ring(), 1), (PathGraph(), 6), (Star(), 5), (Grid(), 6), (Complete(), 4), (ErdosRenyi(), 10)]
    + [(TimeVarying(Ring(), edge_fraction=0.7), 6), (TimeVarying(ErdosRenyi(0.3)), 8), (TimeVarying(Bipartite()), 4)],
    ids=str,
)  # fmt: skip
def test_graphs_on_which_clients_agree_stand(graph, num_clients, rule):
    check_agreement(graph, rule, num_clients, 0)
    models = torch.arange(float(num_clients)).double()
    for round_idx in range(200):
        models = mixing_matrix(graph, rule, num_clients, 0, round_idx) @ models
    torch.testing.assert_close(models, torch.full_like(models, (num_clients - 1) / 2), rtol=0, atol=1e-3)


def test_a_changing_graph_that_falls_apart_is_not_judged():
    check_agreement(TimeVarying(Pairs()), "metropolis", 4, 0)


def test_a_matrix_is_made_once():
    assert mixing_matrix(Ring(), "metropolis", 9, 0, 0) is mixing_matrix(Ring(), "metropolis", 9, 0, 0)


CHAIN = mixing_matrix(PathGraph(), "metropolis", 4, 0, 0)


def context(present=None, **task):
    present = None if present is None else torch.tensor(present)
    return make_context(make_task(**task), num_clients=4, present=present)


def trained(peers, clients):
    """New models of some clients, leaves [C, M, ...]."""
    return perturbed(tree.index(peers.each, torch.tensor(clients)), 0.3, seed=7)


def test_a_common_start_is_the_tasks():
    ctx = context()
    peers = initial_peers(ctx, 2, common=True)
    for one in range(4):
        assert same_bits(tree.index(peers.each, one), ctx.task.init(2, 0))
    assert same_bits(peers.mean, ctx.task.init(2, 0))


def test_clients_may_start_apart():
    peers = initial_peers(context(network=NormalisedMLP), 2, common=False)
    rows = flat(peers.parameters).view(8, -1)
    assert (torch.cdist(rows, rows) + torch.eye(8) > 0.1).all()
    mean = tree.map_leaves(lambda leaf: leaf.double().mean(0).to(leaf.dtype), peers.each)
    assert distance(peers.mean, mean) < 1e-14
    again = initial_peers(context(network=NormalisedMLP), 2, common=False)
    assert same_bits(peers, again)


def test_all_train_and_mix():
    ctx = context(network=NormalisedMLP)
    peers = initial_peers(ctx, 2, common=False)
    models = trained(peers, [0, 1, 2, 3])
    after = gossip(ctx, peers, torch.arange(4), models, CHAIN)
    expected = tree.map_leaves(lambda leaf: torch.tensordot(CHAIN, leaf.double(), 1).to(leaf.dtype), models)
    assert distance(after.each, expected) < 1e-14
    assert distance(after.mean, tree.map_leaves(lambda leaf: leaf.double().mean(0).to(leaf.dtype), after.each)) < 1e-14


def test_what_an_absent_client_would_give_stays_at_home():
    ctx = context([True, True, False, True])
    peers = initial_peers(ctx, 2, common=False)
    models = trained(peers, [0, 1, 3])
    after = gossip(ctx, peers, torch.tensor([0, 1, 3]), models, CHAIN)
    assert same_bits(tree.index(after.each, 2), tree.index(peers.each, 2))
    assert distance(tree.index(after.each, 3), tree.index(models, 2)) < 1e-15  # its only neighbour is absent
    first, second = (tree.index(models, one) for one in (0, 1))
    half = tree.map_leaves(lambda a, b: (a + b) / 2, first, second)
    assert distance(tree.index(after.each, 0), half) < 1e-15


def test_running_statistics_may_be_left_out():
    peers = initial_peers(context(network=NormalisedMLP), 1, common=False)
    models = trained(peers, [0, 1, 2, 3])
    matrix = 3 * CHAIN - 2 * torch.eye(4, dtype=torch.float64)  # with negative entries
    kept, mixed = (put_models(peers, torch.arange(4), models, matrix, mix_buffers=flag) for flag in (False, True))
    assert same_bits(kept.buffers, models.buffers)
    assert same_bits(kept.parameters, mixed.parameters)
    assert distance(kept.buffers, mixed.buffers) > 1e-3


@pytest.mark.parametrize(
    ("present", "neighbours"), [(None, [3, 1, 1, 1]), ([True, True, False, True], [2, 1, 1, 1])], ids=str
)
def test_traffic_is_one_message_to_each_neighbour_present(present, neighbours):
    ctx = context(present)
    value = ctx.task.init(2, 0)
    ids = torch.arange(4)
    expected = [count * 2 * 5 * 64 for count in neighbours]
    assert [float(traffic(ctx, Star(0), value, one)) for one in ids] == expected
    assert vmap(lambda one: traffic(ctx, Star(0), value, one))(ids).tolist() == expected
    assert traffic(ctx, Star(0), value, ids[0]).dtype == torch.float64


def test_without_a_graph_a_message_goes_to_the_server():
    ctx = context([True, False, False, False])
    value = ctx.task.init(2, 0)
    found = vmap(lambda one: traffic(ctx, None, value, one))(torch.arange(4))
    assert found.tolist() == [2 * 5 * 64] * 4
    assert found.dtype == torch.float64


def test_an_unseen_client_has_some_traffic():
    ctx, unseen_client = context(), make_clients([3], first_id=9).client(9).client_id
    assert traffic(ctx, Star(0), ctx.task.init(1, 0), unseen_client).isfinite()
