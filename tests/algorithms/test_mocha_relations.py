import numpy as np
import pytest
import torch
from federated_round import MULTICLASS, flat, make_task

from lit_fed.algorithms.mocha import (
    _damping_of,
    _reach_of,
    _related_columns,
    _unrelated,
    _with_changes,
    learned_relations,
)
from lit_fed.core.solvers.linear_models import to_columns


def random_tasks(num_tasks=4):
    tasks = _unrelated(make_task(MULTICLASS).init(1, 0), num_tasks)
    rng = torch.Generator().manual_seed(0)
    changes = torch.randn(num_tasks, 3, 5, generator=rng, dtype=torch.float64)
    return tasks, changes


def test_unrelated_tasks():
    tasks, _ = random_tasks()
    assert torch.equal(tasks.sigma, torch.eye(4, dtype=torch.float64).expand(3, 4, 4) / 4)
    assert tasks.damping.tolist() == [1, 1, 1]
    assert not flat(tasks.peers.parameters).any()
    assert (
        _reach_of(tasks, torch.tensor(2), 0.5).tolist() == _reach_of(tasks, torch.tensor(9), 0.5).tolist() == [0.5] * 3
    )


def test_models_follow_changes_and_relations():
    tasks, changes = random_tasks()
    tasks = _with_changes(tasks, torch.arange(4), changes, 0.5, 0.1)
    tasks = _with_changes(tasks, torch.tensor([1, 3]), changes[:2], 0.5)
    B = changes.clone()
    B[[1, 3]] += changes[:2]
    assert torch.allclose(tasks.combined, B, rtol=0, atol=1e-14)
    for k in range(3):
        W = B[:, k].T @ tasks.sigma[k] / 0.5
        assert torch.allclose(to_columns(tasks.peers.parameters)[:, 0, k].T, W, rtol=0, atol=1e-13)
    mean = to_columns(tasks.peers.parameters).mean(0)
    assert torch.allclose(to_columns(tasks.peers.mean.parameters), mean, rtol=0, atol=1e-14)
    expected = tasks.damping * tasks.sigma[:, 3, 3] / 0.5
    assert torch.equal(_reach_of(tasks, torch.tensor(3), 0.5), expected)


@pytest.mark.parametrize("shape", [(4, 3, 5), (6, 2, 3)])
def test_the_best_covariance_is_the_root_of_the_gram_matrix(shape):
    """Σ minimises tr(W Σ⁻¹ Wᵀ) among those of trace 1: (WᵀW)^½ over its trace."""
    columns = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sigma = learned_relations(columns, 1e-6)
    assert torch.equal(
        learned_relations(torch.zeros(shape), 0.1)[0], torch.eye(shape[0], dtype=torch.float32) / shape[0]
    )
    for k in range(shape[1]):
        W = columns[:, k].T.numpy()
        values, vectors = np.linalg.eigh(W.T @ W)
        root = vectors @ np.diag(np.sqrt(values.clip(0))) @ vectors.T
        expected = (root / np.trace(root) + 1e-6 * np.eye(shape[0]) / shape[0]) / (1 + 1e-6)
        np.testing.assert_allclose(sigma[k].numpy(), expected, rtol=0, atol=1e-7)

        def penalty(matrix, W=W):
            return np.trace(W @ np.linalg.pinv(matrix) @ W.T)

        best = penalty(root / np.trace(root))
        assert best == pytest.approx(np.trace(root) ** 2, rel=1e-6)
        assert best < penalty(np.eye(shape[0]) / shape[0])


def test_damping_bounds_the_interaction():
    """ρ·Σ_t Σ_tt‖v_t‖² is at least the quadratic form of Σ, for any vectors."""
    _, changes = random_tasks()
    sigma = learned_relations(changes, 0.01)
    rho = _damping_of(sigma)
    for seed in range(20):
        v = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        whole = (v * _related_columns(sigma, v, 1.0)).sum((0, 2))
        apart = torch.einsum("ktt,tkd->k", sigma, v.square())
        assert (whole <= rho * apart + 1e-12).all()
