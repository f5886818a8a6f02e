import math

import pytest
import torch
from federated_round import make_context, make_task

from lit_fed.algorithms.fedu import _check_descent, _descent, _largest_eigenvalue, _step_length, laplacian
from lit_fed.core.graphs.topology import Complete, ErdosRenyi, PathGraph, Ring, Star, TimeVarying, adjacency
from lit_fed.core.local_solver import LocalSolver
from lit_fed.errors import ConfigError

CHAIN = torch.tensor([[0.0, 1, 0], [1, 0, 1], [0, 1, 0]], dtype=torch.float64)


def context(num_clients, present=None, steps=4, lr=0.05):
    solver = LocalSolver(lr=lr, local_steps=steps)
    fields = {"num_clients": num_clients, "most_samples": 7, "batch_size": 2, "present": present}
    return make_context(make_task(), solver, **fields)


def test_it_sums_the_differences_from_neighbours():
    x = torch.tensor([1.0, 5, 7], dtype=torch.float64)
    assert (laplacian(CHAIN) @ x).tolist() == [-4, 4 - 2, 2]


def test_edges_of_absent_clients_are_left_out():
    found = laplacian(CHAIN, torch.tensor([True, True, False]))
    assert found.tolist() == [[1, -1, 0], [-1, 1, 0], [0, 0, 0]]
    assert not laplacian(CHAIN, torch.tensor([True, False, True])).any()


@pytest.mark.parametrize(
    ("topology", "num_clients", "expected"),
    [(Complete(), 5, 5), (Star(), 6, 6), (Ring(), 6, 4), (PathGraph(), 4, 2 + math.sqrt(2)), (Complete(), 1, 0)],
    ids=str,
)
def test_largest_eigenvalues_in_closed_form(topology, num_clients, expected):
    for round_idx in (0, 3):
        assert _largest_eigenvalue(topology, num_clients, 0, round_idx) == pytest.approx(expected, abs=1e-12)


def test_a_graph_that_changes_has_its_eigenvalue_in_each_round():
    changing = TimeVarying(ErdosRenyi(0.4))
    found = [_largest_eigenvalue(changing, 6, 0, round_idx) for round_idx in range(4)]
    for round_idx, value in enumerate(found):
        edges = adjacency(changing, 6, 0, round_idx)
        assert value == pytest.approx(float(torch.linalg.eigvalsh(laplacian(edges)).max()), abs=1e-12)
    assert len({round(value, 6) for value in found}) > 1


def test_no_part_of_a_graph_has_a_larger_eigenvalue():
    edges = adjacency(ErdosRenyi(0.5), 9, 1, 0)
    whole = _largest_eigenvalue(ErdosRenyi(0.5), 9, 1, 0)
    rng = torch.Generator().manual_seed(0)
    for _ in range(30):
        present = torch.rand(9, generator=rng) < 0.6
        part = float(torch.linalg.eigvalsh(laplacian(edges, present)).max())
        assert part <= min(whole, int(present.sum())) + 1e-12


@pytest.mark.parametrize("present", [None, [True, False, True, True, True]])
def test_the_step_is_mu_times_k_times_the_weight(present):
    present = None if present is None else torch.tensor(present)
    ctx = context(5, present)
    assert _step_length(ctx, 0.3) == pytest.approx(0.05 * 4 * 0.3)
    matrix = _descent(ctx, Ring(), 0.3)
    expected = torch.eye(5, dtype=torch.float64) - 0.06 * laplacian(adjacency(Ring(), 5, 0, 0), present)
    torch.testing.assert_close(matrix, expected, rtol=0, atol=1e-15)
    torch.testing.assert_close(matrix.sum(0), torch.ones(5, dtype=torch.float64), rtol=0, atol=1e-15)
    if present is not None:
        assert matrix[1].tolist() == [0, 1, 0, 0, 0]


@pytest.mark.parametrize(("count", "bound"), [(5, 2 / (0.2 * 5)), (2, 2 / (0.2 * 2))])
def test_a_step_that_would_diverge_is_refused(count, bound):
    ctx = context(5)
    _check_descent(ctx, Complete(), 0.999 * bound, count)
    with pytest.raises(ConfigError, match=rf"--model\.algorithm\.laplacian_weight is .* below {bound:.3g},"):
        _check_descent(ctx, Complete(), 1.001 * bound, count)


def test_what_takes_no_steps_cannot_diverge():
    _check_descent(context(5, lr=0.0), Complete(), 1e9, 5)
    _check_descent(context(1), Complete(), 1e9, 1)
