"""Clients in a chain, each with a neighbour on either side."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lit_fed.core.seeds import generator

__all__ = ["Chain", "chain"]


class Chain(NamedTuple):
    """A chain of T clients."""

    order: Tensor  # [T] int64, client ids from the first to the last
    heads: Tensor  # [T] bool, whether a client is the first, third, fifth, …
    edges: Tensor  # [T + 1, T] float64 adjacency, 1 for neighbours; a newcomer, in the last row, hears of the last one


@lru_cache(maxsize=4)
def chain(num_clients: int, seed: int, draw: int | None = None) -> Chain:
    """A chain: in the order of the ids, or by the clients' places.

    Args:
        num_clients: number of clients T.
        seed: seed of the training.
        draw: which draw of random places in a square; the chain starts at client 0 and goes on to the nearest client
            that is not in it yet. None: the order of the ids.

    Example:
        >>> chain(3, seed=0).order.tolist(), chain(3, seed=0).heads.tolist()
        ([0, 1, 2], [True, False, True])
    """
    places = None if draw is None else generator(seed, draw, 0, "places").random((num_clients, 2))
    order = torch.arange(num_clients) if places is None else torch.from_numpy(_nearest(places))
    heads = torch.zeros(num_clients, dtype=torch.bool).index_fill_(0, order[::2], True)
    edges = torch.zeros(num_clients + 1, num_clients, dtype=torch.float64)
    edges[-1, order[-1]] = 1
    edges[order[:-1], order[1:]] = edges[order[1:], order[:-1]] = 1
    return Chain(order, heads, edges)


def _nearest(places: np.ndarray) -> np.ndarray:
    """The path from the first of the places [T, 2] to the nearest one left, and so on, [T] int64."""
    left, path = np.arange(1, len(places)), [0]
    while len(left):
        away = np.square(places[left] - places[path[-1]]).sum(1)
        path.append(int(left[away.argmin()]))
        left = np.delete(left, away.argmin())
    return np.array(path, dtype=np.int64)
