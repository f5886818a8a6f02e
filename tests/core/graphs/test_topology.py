import math

import networkx as nx
import pytest
import torch

from lit_fed.core.graphs import topology
from lit_fed.core.graphs.topology import (
    Bipartite,
    Complete,
    ErdosRenyi,
    GraphFile,
    Grid,
    PathGraph,
    RandomGeometric,
    Ring,
    Star,
    TimeVarying,
    adjacency,
    two_colours,
)
from lit_fed.errors import ConfigError

ALL = [Complete(), Ring(), PathGraph(), PathGraph(shuffled=True), Star(), Star(centre=1), Grid(), Grid(periodic=True),
       ErdosRenyi(), RandomGeometric(), Bipartite(), TimeVarying(), TimeVarying(Ring(), 2)]  # fmt: skip
RANDOM = [PathGraph(shuffled=True), ErdosRenyi(0.4), RandomGeometric(0.4), Bipartite()]


@pytest.mark.parametrize("one", ALL, ids=str)
@pytest.mark.parametrize("num_clients", [2, 3, 12, 13])
def test_connected_without_loops_over_all_clients(one, num_clients):
    graph = one.graph(num_clients, 0, 0)
    assert sorted(graph) == list(range(num_clients))
    assert nx.is_connected(graph)
    assert nx.number_of_selfloops(graph) == 0


@pytest.mark.parametrize("one", [one for one in ALL if one != Star(centre=1)], ids=str)
def test_a_single_client_has_no_edges(one):
    assert torch.equal(adjacency(one, 1, 0, 0), torch.zeros(1, 1, dtype=torch.float64))


@pytest.mark.parametrize(
    ("one", "num_clients", "edges"),
    [
        (Complete(), 7, 21),
        (Ring(), 2, 1),
        (Ring(), 3, 3),
        (Ring(), 8, 8),
        (PathGraph(), 8, 7),
        (PathGraph(shuffled=True), 8, 7),
        (Star(), 8, 7),
        (Grid(), 12, 17),  # 3 rows of 4
        (Grid(), 7, 6),  # one row
        (Grid(periodic=True), 12, 24),
        (Grid(periodic=True), 4, 4),  # both ways round a side of two are one edge
        (ErdosRenyi(1.0), 7, 21),
        (RandomGeometric(1.5), 7, 21),
        (Bipartite(1.0), 7, 12),
    ],
)
def test_numbers_of_edges(one, num_clients, edges):
    assert one.graph(num_clients, 0, 0).number_of_edges() == edges
    assert adjacency(one, num_clients, 0, 0).sum() == 2 * edges


def test_who_is_joined():
    assert set(PathGraph().graph(4, 0, 0).edges) == {(0, 1), (1, 2), (2, 3)}
    assert set(Star(centre=2).graph(4, 0, 0).edges) == {(0, 2), (1, 2), (2, 3)}
    assert set(Grid().graph(6, 0, 0).edges) == {(0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5)}
    assert all((a + b) % 2 == 1 for a, b in Bipartite(0.7).graph(11, 0, 0).edges)


def test_neighbours_in_a_square_are_near():
    graph = RandomGeometric(0.5).graph(20, 0, 0)
    for a in graph:
        for b in set(graph) - {a}:
            distance = math.dist(graph.nodes[a]["pos"], graph.nodes[b]["pos"])
            assert graph.has_edge(a, b) == (distance <= 0.5)


def test_edges_come_with_their_probability():
    graph = ErdosRenyi(0.3).graph(100, 0, 0)
    assert 0.3 * 4950 - 4 * 33 < graph.number_of_edges() < 0.3 * 4950 + 4 * 33


@pytest.mark.parametrize("one", RANDOM, ids=str)
def test_seed_and_round_name_the_draw(one):
    def edges(seed, round_idx):
        return {frozenset(edge) for edge in one.graph(20, seed, round_idx).edges}

    assert edges(0, 3) == edges(0, 3)
    assert edges(0, 3) != edges(1, 3)
    assert edges(0, 3) != edges(0, 4)


@pytest.mark.parametrize("one", [ErdosRenyi(0.01), RandomGeometric(0.02), Bipartite(0.01)], ids=str)
def test_probabilities_too_small_to_connect(one, monkeypatch):
    monkeypatch.setattr(topology, "DRAWS", 5)
    with pytest.raises(ConfigError, match=r"topology\.(edge_probability|radius) is 0.0\d: none of 5 graphs of 30"):
        one.graph(30, 0, 0)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: ErdosRenyi(0), "edge_probability is 0;"),
        (lambda: ErdosRenyi(1.5), r"edge_probability is 1\.5;"),
        (lambda: Bipartite(-1), "edge_probability is -1;"),
        (lambda: RandomGeometric(0), "radius is 0;"),
        (lambda: Star(-1), "centre is -1;"),
        (lambda: Star(5).graph(5, 0, 0), "centre is 5;.*5 clients"),
        (lambda: TimeVarying(every=0), "every is 0;"),
        (lambda: TimeVarying(edge_fraction=0), "edge_fraction is 0;"),
        (lambda: TimeVarying(edge_fraction=1.1), r"edge_fraction is 1\.1;"),
    ],
)
def test_wrong_settings_are_refused_by_name(make, named):
    with pytest.raises(ConfigError, match=r"--model\.algorithm\.topology\." + named):
        make()


def graph_file(tmp_path, text):
    path = tmp_path / "graph.txt"
    path.write_text(text)
    return GraphFile(str(path))


def test_a_graph_from_a_file(tmp_path):
    graph = graph_file(tmp_path, "# triangle and a tail\n0 1\n1 2\n2 0\n2 2\n3 2  # twice\n2 3\n").graph(4, 0, 0)
    assert {tuple(sorted(edge)) for edge in graph.edges} == {(0, 1), (1, 2), (0, 2), (2, 3)}


@pytest.mark.parametrize(
    ("text", "named"), [("0 1\n1 4\n", "names the client 4; the ids of 4 clients"), ("-1 0\n", "names the client -1"),
                        ("0 b\n", "two client ids")]
)  # fmt: skip
def test_wrong_files_are_refused_by_name(tmp_path, text, named):
    with pytest.raises(ConfigError, match=named):
        graph_file(tmp_path, text).graph(4, 0, 0)


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"topology\.path is .*nowhere.txt: No such file"):
        GraphFile(str(tmp_path / "nowhere.txt")).graph(4, 0, 0)


def test_a_graph_in_parts_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="falls into 2 parts"):
        adjacency(graph_file(tmp_path, "0 1\n2 3\n"), 4, 0, 0)


# ------------------------------------------------------------------- matrices
@pytest.mark.parametrize("one", ALL, ids=str)
def test_the_matrix_of_a_graph(one):
    matrix = adjacency(one, 13, 0, 0)
    assert matrix.dtype == torch.float64
    assert torch.equal(matrix, matrix.T)
    assert matrix.diagonal().abs().sum() == 0
    assert {tuple(edge) for edge in matrix.triu().nonzero().tolist()} == {
        tuple(sorted(edge)) for edge in one.graph(13, 0, 0).edges
    }


def test_a_graph_that_stays_is_drawn_once():
    one = ErdosRenyi(0.37)
    assert adjacency(one, 12, 0, 5) is adjacency(one, 12, 0, 0)
    assert adjacency(ErdosRenyi(0.37), 12, 0, 5) is adjacency(one, 12, 0, 0)
    assert not torch.equal(adjacency(one, 12, 1, 0), adjacency(one, 12, 0, 0))


# ---------------------------------------------------------------- time-varying
def test_draws_stay_for_some_rounds():
    one = TimeVarying(ErdosRenyi(0.4), every=3)
    matrices = [adjacency(one, 12, 0, round_idx) for round_idx in range(6)]
    assert torch.equal(matrices[0], matrices[1])
    assert torch.equal(matrices[0], matrices[2])
    assert not torch.equal(matrices[2], matrices[3])
    assert torch.equal(matrices[3], matrices[5])


def test_edges_go_missing_and_together_the_rounds_connect():
    one = TimeVarying(Ring(), edge_fraction=0.5)
    matrices = [adjacency(one, 12, 0, round_idx) for round_idx in range(20)]
    ring = adjacency(Ring(), 12, 0, 0)
    assert all(bool((matrix <= ring).all()) for matrix in matrices)
    assert any(not nx.is_connected(nx.from_numpy_array(matrix.numpy())) for matrix in matrices)
    assert torch.equal(torch.stack(matrices).amax(0), ring)
    kept = float(torch.stack(matrices).sum()) / (20 * 24)
    assert 0.35 < kept < 0.65
    assert not torch.equal(matrices[0], matrices[1])


def test_all_edges_are_there_unless_told():
    assert torch.equal(adjacency(TimeVarying(Ring()), 6, 0, 4), adjacency(Ring(), 6, 0, 0))


# -------------------------------------------------------------------- colours
@pytest.mark.parametrize("one", [PathGraph(), PathGraph(True), Ring(), Star(), Star(3), Grid(), Bipartite()], ids=str)
def test_neighbours_have_different_colours(one):
    matrix = adjacency(one, 12, 0, 0)
    heads = two_colours(matrix)
    assert heads[0]
    assert all(bool(heads[a] != heads[b]) for a, b in matrix.nonzero().tolist())


def test_the_first_of_each_part_is_a_head():
    matrix = torch.zeros(5, 5, dtype=torch.float64)
    matrix[1, 3] = matrix[3, 1] = matrix[2, 4] = matrix[4, 2] = 1
    assert two_colours(matrix).tolist() == [True, True, True, False, False]


@pytest.mark.parametrize("one", [Ring(), Complete()], ids=str)
def test_odd_cycles_have_no_two_colours(one):
    with pytest.raises(ConfigError, match="cycle of odd length"):
        two_colours(adjacency(one, 5, 0, 0))
