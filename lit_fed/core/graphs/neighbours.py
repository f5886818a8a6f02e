"""Choice of neighbours: tracked losses of other clients' models, their softmax, and ε-greedy selection."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lit_fed.core.context import Context
from lit_fed.core.graphs.peers import draws

__all__ = ["Acquaintance", "Tracking", "closest", "greedy_neighbours", "remember", "stranger"]

Tracking = Literal["ema", "corrected_ema", "accumulated"]
"""Combination of losses over rounds: a moving average from 0, the same with bias correction, or the sum."""


class Acquaintance(NamedTuple):
    """Tracked losses of all clients' models on a client's samples."""

    last: Tensor  # last loss, [T] float64; 0 for an unknown model
    total: Tensor  # moving average or sum of `last` over rounds, [T] float64; 0 for an unknown model
    known: Tensor  # `total` if all losses since the first were 1, [T] float64; 0 for an unknown model
    tracked: Tensor  # losses that determine the weights, [T] float64; 0 for an unknown model
    weights: Tensor  # softmax of −tracked over known models, [T] float64
    client_id: Tensor  # [] int64


def stranger(num_clients: int, client_id: Tensor) -> Acquaintance:
    """The initial state of a client that knows no model: uniform weights."""
    zeros = torch.zeros(num_clients, dtype=torch.float64, device=client_id.device)
    return Acquaintance(
        zeros, zeros.clone(), zeros.clone(), zeros.clone(), torch.full_like(zeros, 1 / num_clients), client_id
    )


def remember(
    memory: Acquaintance, ids: Tensor, losses: Tensor, seen: Tensor, tracking: Tracking, momentum: float
) -> Acquaintance:
    """Update with new losses of some models; the others repeat their last loss.

    Args:
        memory: the state before.
        ids: clients of the models, without duplicates, [k].
        losses: losses of the models, [k] float64.
        seen: mask of valid losses, [k].
        tracking: combination of losses over rounds.
        momentum: weight of the new loss in a moving average.

    Example:
        >>> ids, losses = torch.tensor([0, 2]), torch.tensor([2.0, 3.0]).double()
        >>> new = remember(stranger(3, torch.tensor(0)), ids, losses, torch.ones(2) > 0, "ema", 0.6)
        >>> [round(value, 6) for value in new.tracked.tolist()]
        [1.2, 0.0, 1.8]
    """
    keep, take = (1.0, 1.0) if tracking == "accumulated" else (1 - momentum, momentum)
    last = memory.last.scatter(0, ids, torch.where(seen, losses, memory.last.gather(0, ids)))
    ever = memory.known > 0
    ever = ever.scatter(0, ids, ever.gather(0, ids) | seen)
    total, known = keep * memory.total + take * last, keep * memory.known + take * ever.double()
    tracked = torch.where(ever, total / known, 0.0) if tracking == "corrected_ema" else total
    weights = torch.softmax((-tracked).masked_fill(~ever, -torch.inf), 0)
    weights = torch.where(ever.any(), weights, memory.weights)
    return Acquaintance(last, total, known, tracked, weights, memory.client_id)


def greedy_neighbours(
    ctx: Context, client_id: Tensor, rank: Tensor, count: int, explore_probability: float, *, include_self: bool
) -> tuple[Tensor, Tensor]:
    """ε-greedy choice: the clients of lowest rank, or with `explore_probability` random ones (one coin for all).

    Args:
        ctx: the context; its round and seed determine the coin and break ties.
        client_id: the choosing client.
        rank: rank of each client, [T]; infinite for clients that cannot be chosen.
        count: maximum number of clients, without the client itself if `include_self`.
        explore_probability: ε.
        include_self: whether the client always chooses itself first; otherwise it is ranked like the others.

    Returns:
        Chosen ids [min(count (+ 1), T)], without duplicates, and a mask of those that can be chosen.
    """
    num_clients = len(rank)
    drawn = draws(ctx, "neighbours", num_clients + 1, client_id)
    coin, ties = drawn[:1], drawn[1:]
    anybody = torch.where(rank < torch.inf, torch.zeros_like(rank), rank)
    rank = torch.where(coin < explore_probability, anybody, rank)
    if include_self:
        rank = rank.scatter(0, client_id.clamp(max=num_clients - 1).view(1), torch.full_like(coin, -torch.inf))
    return closest(rank, ties, min(count + include_self, num_clients))


def closest(rank: Tensor, ties: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The clients of lowest rank.

    Args:
        rank: rank of each client, [T]; infinite for clients that cannot be chosen.
        ties: random numbers that break ties, [T].
        count: number of clients, at most T.

    Returns:
        Chosen ids [count], and a mask of those that can be chosen [count].

    Example:
        >>> closest(torch.tensor([2.0, 0.0, 0.0]), torch.tensor([0.1, 0.5, 0.3]), 2)[0].tolist()
        [2, 1]
    """
    shuffled = torch.argsort(ties)
    ids = shuffled[torch.argsort(rank[shuffled], stable=True)][:count]
    return ids, rank.index_select(0, ids) < torch.inf
