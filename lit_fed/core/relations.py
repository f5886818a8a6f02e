"""Related linear tasks: their models, and a covariance Σ of the models, of trace 1, for each of K outputs.

In the dual of min_W Σ_t loss_t(w_t) + λ/2·tr(W Σ⁻¹ Wᵀ) task t has a vector b_t, and the models are W = (1/λ)·B·Σ.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.graphs.peers import Peers, place, same_start
from lit_fed.core.solvers.affine_networks import from_columns, to_columns
from lit_fed.core.types import ModelState

__all__ = ["Related", "add_changes", "learned_relations", "overlap", "reach_of", "related_columns", "unrelated"]


class Related(NamedTuple):
    """What the server knows of T tasks with K outputs."""

    peers: Peers  # w_t, leaves [T, 1, ...]
    combined: Tensor  # b_t, [T, K, d + 1] float64
    sigma: Tensor  # Σ, [K, T, T] float64
    damping: Tensor  # ρ, [K] float64


def unrelated(models: ModelState, num_tasks: int) -> Related:
    """Tasks with models of zeros, and Σ = I/T."""
    models = tree.zeros_like(models)
    combined = to_columns(models.parameters).double().repeat(num_tasks, 1, 1)
    sigma = _independent(num_tasks).repeat(combined.shape[1], 1, 1)
    return Related(same_start(models, num_tasks), combined, sigma, overlap(sigma))


def reach_of(tasks: Related, task: Tensor, weight: float) -> Tensor:
    """What the model of a task moves with b_t in its own problem, ρ·Σ_tt/λ for each output, [K] float64.

    Args:
        tasks: all of them.
        task: its number, []; one from T on is a new task, which is unrelated: 1/(λT).
        weight: λ.
    """
    own = tasks.sigma.diagonal(dim1=1, dim2=2)
    num_tasks = own.shape[1]
    known = tasks.damping * own.index_select(1, task.clamp(max=num_tasks - 1).view(1))[:, 0]
    return torch.where(task < num_tasks, known, 1 / num_tasks) / weight


def add_changes(tasks: Related, which: Tensor, changes: Tensor, weight: float, epsilon: float | None = None) -> Related:
    """The tasks after changes of some b_t; the models follow.

    Args:
        tasks: before.
        which: whose b_t have changed, [C].
        changes: Δb_t, [C, K, d + 1].
        weight: λ.
        epsilon: of `learned_relations`, to learn Σ from the new models; None leaves it.
    """
    combined = tasks.combined.index_add(0, which, changes.double())
    sigma, damping = tasks.sigma, tasks.damping
    if epsilon is not None:
        sigma = learned_relations(related_columns(sigma, combined, weight), epsilon)
        damping = overlap(sigma)
    columns = related_columns(sigma, combined, weight).unsqueeze(1)
    models = ModelState(from_columns(columns, tasks.peers.parameters), {})
    everyone = torch.arange(len(columns), device=columns.device)
    return Related(place(tasks.peers, everyone, models), combined, sigma, damping)


def related_columns(sigma: Tensor, combined: Tensor, weight: float) -> Tensor:
    """W = (1/λ)·B·Σ, [T, K, d + 1].

    Args:
        sigma: Σ, [K, T, T].
        combined: B, [T, K, d + 1].
        weight: λ.
    """
    return (sigma @ combined.transpose(0, 1)).transpose(0, 1) / weight


def learned_relations(columns: Tensor, epsilon: float) -> Tensor:
    """The best Σ for these models, (WᵀW)^½ over its trace, with epsilon·I/T added, [K, T, T].

    The root is taken from the singular values of W: the eigenvalues of WᵀW have lost half of the digits.

    Args:
        columns: W, [T, K, d + 1] float64.
        epsilon: share of I/T, so that Σ has an inverse.
    """
    left, values, _ = torch.linalg.svd(columns.transpose(0, 1), full_matrices=False)  # [K, T, r], [K, r]
    root = (left * values.unsqueeze(1)) @ left.transpose(1, 2)
    trace = values.sum(1).view(-1, 1, 1)
    start = _independent(len(columns)).to(root)
    learned = (root / trace.clamp(min=torch.finfo(root.dtype).tiny) + epsilon * start) / (1 + epsilon)
    return torch.where(trace > 0, learned, start)


def overlap(sigma: Tensor) -> Tensor:
    """ρ = max_t Σ_s |Σ_ts| / Σ_tt, [K]: how much the steps of all tasks at once have to be damped.

    Example:
        >>> overlap(torch.tensor([[[0.5, -0.25], [-0.25, 0.5]]])).tolist()
        [1.5]
    """
    return (sigma.abs().sum(2) / sigma.diagonal(dim1=1, dim2=2)).amax(1)


def _independent(num_tasks: int) -> Tensor:
    return torch.eye(num_tasks, dtype=torch.float64) / num_tasks
