import math
import warnings

import networkx as nx
import numpy as np
import pytest
import torch
from running import run
from scipy.optimize import linprog
from stochastic import check_mixing

from lit_fed.core.graphs.fastest_mixing import Jumps, certified, fastest_mixing, lower_bound
from lit_fed.core.graphs.mixing import second_eigenvalue, weights_of

GRAPHS = {
    "two": nx.path_graph(2),
    "path": nx.path_graph(7),
    "odd cycle": nx.cycle_graph(9),
    "star": nx.star_graph(6),
    "grid": nx.convert_node_labels_to_integers(nx.grid_2d_graph(3, 5)),
    "barbell": nx.barbell_graph(5, 2),
    "random": nx.gnp_random_graph(25, 0.4, seed=1),
    "tree": nx.balanced_tree(2, 3),
    "complete": nx.complete_graph(6),
}


def edges_of(graph):
    return torch.from_numpy(nx.to_numpy_array(graph, nodelist=sorted(graph)))


def fmmc_slem(graph):
    return second_eigenvalue(fastest_mixing(edges_of(graph)))


@pytest.mark.parametrize("n", [2, 3, 5, 8, 20])
def test_a_path_has_edges_of_one_half(n):
    """For n = 2 the best weights, 1/2 and 1/2, agree at once."""
    assert fmmc_slem(nx.path_graph(n)) == pytest.approx(math.cos(math.pi / n), abs=1e-7)
    expected = edges_of(nx.path_graph(n)) / 2
    expected[0, 0] = expected[-1, -1] = 0.5
    torch.testing.assert_close(fastest_mixing(edges_of(nx.path_graph(n))), expected, rtol=0, atol=1e-3)


def test_the_path_of_five():
    assert fmmc_slem(nx.path_graph(5)) == pytest.approx(0.8090, abs=5e-5)


@pytest.mark.parametrize("n", [4, 6, 10, 20])
def test_an_even_cycle(n):
    """Edges 1/(3 - cos(2π/n)): the second eigenvalue and the smallest one are then of one modulus."""
    edge, cosine = 1 / (3 - math.cos(2 * math.pi / n)), math.cos(2 * math.pi / n)
    expected = 1 - 2 * edge * (1 - cosine)
    assert expected == pytest.approx(4 * edge - 1)
    assert fmmc_slem(nx.cycle_graph(n)) == pytest.approx(expected, abs=1e-5)


def test_the_cycle_of_four():
    matrix = fastest_mixing(edges_of(nx.cycle_graph(4)))
    expected = (edges_of(nx.cycle_graph(4)) + torch.eye(4)) / 3
    torch.testing.assert_close(matrix, expected, rtol=0, atol=1e-4)
    assert second_eigenvalue(matrix) == pytest.approx(1 / 3, abs=1e-6)


@pytest.mark.parametrize("n", [3, 6, 15])
def test_a_star(n):
    edges = edges_of(nx.star_graph(n - 1))
    matrix = fastest_mixing(edges)
    assert second_eigenvalue(matrix) == pytest.approx((n - 2) / (n - 1), abs=1e-9)
    torch.testing.assert_close(matrix[0, 1:], torch.full((n - 1,), 1 / (n - 1), dtype=torch.float64))


@pytest.mark.parametrize("n", [2, 5, 40])
def test_everybody_with_everybody_agrees_at_once(n):
    matrix = fastest_mixing(edges_of(nx.complete_graph(n)))
    torch.testing.assert_close(matrix, torch.full_like(matrix, 1 / n), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_mixing_matrix_and_no_slower_than_simple_weights(name):
    edges = edges_of(GRAPHS[name])
    matrix = fastest_mixing(edges)
    check_mixing(matrix, edges)
    for rule in ("metropolis", "lazy_metropolis", "max_degree"):
        assert second_eigenvalue(matrix) <= second_eigenvalue(weights_of(edges, rule)) + 1e-12


@pytest.mark.parametrize("name", GRAPHS)
def test_the_certificate_is_tight(name):
    found = certified(edges_of(GRAPHS[name]))
    assert found.upper == second_eigenvalue(found.matrix)
    assert -1e-12 <= found.upper - found.lower < 1e-5


@pytest.mark.parametrize("name", GRAPHS)
def test_the_dual_point_is_feasible_and_worth_the_bound(name):
    """‖Y‖_* <= 1, Y1 = 0, and the best z of the linear program, without the assignment that the bound takes."""
    edges = edges_of(GRAPHS[name])
    found = certified(edges)
    dual = found.dual.numpy()
    n = len(dual)
    assert np.linalg.svd(dual, compute_uv=False).sum() <= 1 + 1e-9
    assert np.abs(dual.sum(1)).max() < 1e-9
    np.testing.assert_allclose(dual, dual.T, atol=1e-12)
    pairs = np.argwhere(np.triu(edges.numpy() + np.eye(n)) > 0)
    rows = np.zeros((len(pairs), n))
    for row, (i, j) in enumerate(pairs):
        rows[row, i] += 0.5
        rows[row, j] += 0.5
    best = linprog(-np.ones(n), A_ub=rows, b_ub=dual[pairs[:, 0], pairs[:, 1]], bounds=(None, None))
    assert max(0.0, -best.fun) == pytest.approx(found.lower, abs=n * 1e-7)  # its solver may miss each limit by 1e-7
    assert found.lower == pytest.approx(lower_bound(found.dual, edges), abs=1e-9)


def test_any_matrix_gives_a_lower_bound():
    rng = torch.Generator().manual_seed(0)
    edges = edges_of(GRAPHS["grid"])
    best = certified(edges).upper
    for size in (1e-3, 1e-1, 1.0, 100.0):
        noise = size * torch.randn(15, 15, generator=rng, dtype=torch.float64)
        assert 0 <= lower_bound(certified(edges).dual + (noise + noise.T) / 2, edges) <= best + 1e-9


def test_parts_are_solved_alone():
    edges = edges_of(nx.disjoint_union_all([nx.path_graph(3), nx.star_graph(4), nx.empty_graph(1)]))
    matrix = fastest_mixing(edges)
    check_mixing(matrix, edges)
    assert second_eigenvalue(matrix) == pytest.approx(1)
    assert second_eigenvalue(matrix[:3, :3]) == pytest.approx(0.5, abs=1e-6)
    assert second_eigenvalue(matrix[3:8, 3:8]) == pytest.approx(3 / 4, abs=1e-6)
    assert matrix[8, 8] == 1


def test_it_is_the_same_every_time_and_leaves_the_edges_alone():
    edges = edges_of(GRAPHS["random"])
    before = edges.clone()
    assert torch.equal(fastest_mixing(edges), fastest_mixing(edges))
    assert torch.equal(edges, before)


def semidefinite(edges):
    """The optimum by a solver of semidefinite programs, over the edges' weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the solver's own modules, on import and on inaccurate solutions
        import cvxpy as cp

        n = len(edges)
        i, j = np.nonzero(np.triu(edges.numpy()))
        incidence = np.zeros((n, len(i)))
        incidence[i, np.arange(len(i))], incidence[j, np.arange(len(i))] = 1, -1
        weight, slem = cp.Variable(len(i)), cp.Variable()
        rest = np.eye(n) - 1 / n - incidence @ cp.diag(weight) @ incidence.T
        limits = [weight >= 0, np.abs(incidence) @ weight <= 1, rest << slem * np.eye(n), -rest << slem * np.eye(n)]
        return cp.Problem(cp.Minimize(slem), limits).solve()


@pytest.mark.parametrize(("nodes", "probability"), [(12, 0.4), (60, 0.5)])
def test_a_semidefinite_solver_finds_the_same(nodes, probability):
    graph = nx.gnp_random_graph(nodes, probability, seed=3)
    assert nx.is_connected(graph)
    assert fmmc_slem(graph) == pytest.approx(semidefinite(edges_of(graph)), abs=1e-3)


PROGRAM = """
import time
from lit_fed.core.graphs.fastest_mixing import certified
from lit_fed.core.graphs.topology import ErdosRenyi, adjacency
edges = adjacency(ErdosRenyi(0.5), 300, 0, 0)
start = time.process_time()
found = certified(edges)
print(time.process_time() - start, found.upper, found.lower)
"""


def test_300_clients_within_one_per_cent_in_five_seconds(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = run([], script=program)
    assert done.stderr == ""
    seconds, upper, lower = map(float, done.stdout.split())
    assert seconds < 5
    assert upper - lower <= 0.01 * upper
    assert upper < 0.09


def slow_map(size=8):
    """An averaged affine map with a slow direction and its fixed point."""
    rates = torch.linspace(0.5, 0.999, size, dtype=torch.float64)
    fixed = torch.arange(size, dtype=torch.float64)
    return lambda x: fixed + rates * (x - fixed), fixed


def distance_after(steps, jumping):
    image, fixed = slow_map()
    point, jumps = torch.zeros_like(fixed), Jumps()
    for _ in range(steps):
        move = image(point) - point
        point = jumps.next(point, move) if jumping else point + move
    return float((point - fixed).norm())


def test_jumps_arrive_long_before_plain_steps():
    assert distance_after(60, jumping=False) > 1
    assert distance_after(60, jumping=True) < 1e-3


def test_a_jump_that_makes_steps_longer_is_taken_back():
    """Steps of a map that shrinks on one side and turns on the other: after a wrong jump the plain image comes next."""
    jumps, point, plain = Jumps(), torch.ones(3, dtype=torch.float64), None
    for step in range(200):
        move = -0.1 * point * (1 + 0.01 * torch.tensor([step % 3, step % 5, step % 7]))
        plain, point = point + move, jumps.next(point, move)
        if jumps.plain is not None:
            break
    assert not torch.equal(point, plain)
    taken_back = jumps.next(point, torch.full_like(point, 100.0))
    assert torch.equal(taken_back, plain)
    assert jumps.plain is None
    assert jumps.moves == []
