"""The Laplacian of a graph, L = D − A with the degrees D: (Lx)_i is the sum of x_i − x_j over the neighbours j of i."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from lit_fed.core.context import Context
from lit_fed.core.errors import ConfigError
from lit_fed.core.graphs.topology import TimeVarying, Topology, adjacency
from lit_fed.core.plan import most_steps

__all__ = ["check_descent", "descent", "laplacian", "largest_eigenvalue", "step_length"]


def laplacian(edges: Tensor, present: Tensor | None = None) -> Tensor:
    """The Laplacian, [T, T] float64.

    Args:
        edges: adjacency, [T, T] float64.
        present: True for the clients that take part, [T]; edges of the others are left out. None: all.

    Example:
        >>> laplacian(torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])).tolist()
        [[1.0, -1.0, 0.0], [-1.0, 2.0, -1.0], [0.0, -1.0, 1.0]]
    """
    kept = edges if present is None else edges * (present[:, None] & present)
    return torch.diag(kept.sum(1)) - kept


@lru_cache(maxsize=8)
def largest_eigenvalue(topology: Topology, num_clients: int, seed: int, round_idx: int) -> float:
    """The largest eigenvalue of the Laplacian of a round's graph; that of a part of its clients is never larger.

    Args:
        topology: the graph.
        num_clients: number of clients T.
        seed: seed of the training.
        round_idx: round, from 0; a graph that does not change is asked for round 0 alone.
    """
    if not isinstance(topology, TimeVarying) and round_idx:
        return largest_eigenvalue(topology, num_clients, seed, 0)
    edges = adjacency(topology, num_clients, seed, round_idx)
    return float(torch.linalg.eigvalsh(laplacian(edges))[-1])


def step_length(ctx: Context, weight: float) -> float:
    """What the K local steps of a round with the learning rate μ come to for a term of this weight: μ·K·weight.

    K is that of the largest client, so that it is the same at both ends of an edge.
    """
    return float(ctx.lr) * most_steps(ctx) * weight


def descent(ctx: Context, topology: Topology, weight: float) -> Tensor:
    """I − μ·K·weight·L of the round's graph between those present, [T, T] float64; rows and columns sum to 1."""
    edges = adjacency(topology, ctx.num_clients, ctx.seed, ctx.round_idx)
    matrix = laplacian(edges, None if ctx.present is None else ctx.present.cpu())
    return torch.eye(len(edges), dtype=torch.float64) - step_length(ctx, weight) * matrix


def check_descent(ctx: Context, topology: Topology, weight: float, count: int) -> None:
    """Refuse a weight with which neighbours would swing about each other ever further: μ·K·weight·λ_max >= 2.

    Args:
        ctx: what every client knows.
        topology: the graph.
        weight: `--model.algorithm.laplacian_weight`.
        count: clients that take part; no eigenvalue of a graph is larger than its number of nodes.

    Raises:
        ConfigError: naming the largest weight.
    """
    largest = min(largest_eigenvalue(topology, ctx.num_clients, ctx.seed, ctx.round_idx), count)
    if step_length(ctx, weight) * largest >= 2:
        raise ConfigError(
            f"--model.algorithm.laplacian_weight is {weight}, with which the models of neighbours would run away from "
            f"each other; give a number below {2 / step_length(ctx, largest):.3g}, or a lower learning rate or fewer "
            "local steps"
        )
