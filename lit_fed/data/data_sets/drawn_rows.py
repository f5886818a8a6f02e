"""A seeded draw of clients, and of persons with all of their rows, from a table."""

from __future__ import annotations

import numpy as np

from lit_fed.core.seeds import generator

__all__ = ["drawn_rows"]


def drawn_rows(
    owner: np.ndarray,
    groups: np.ndarray | None,
    min_rows: int,
    max_clients: int | None,
    max_rows: int | None,
    seed: int,
) -> np.ndarray:
    """The rows to keep.

    Args:
        owner: client of each row, [n] int.
        groups: person of each row, [n] int; None: each row is a person.
        min_rows: clients with fewer rows are left out, also after the draw of rows.
        max_clients: number of clients to draw; None: all.
        max_rows: number of rows to draw, in the order of drawn persons; None: all.
        seed: seed of the draws.

    Returns:
        Sorted numbers of rows [m].
    """
    kept = _of_large_clients(np.arange(len(owner)), owner, min_rows)
    clients = np.unique(owner[kept])
    if max_clients is not None and max_clients < len(clients):
        clients = generator(seed, 0, 0, "table clients").choice(clients, max_clients, replace=False)
        kept = kept[np.isin(owner[kept], clients)]
    if max_rows is not None and max_rows < len(kept):
        _, person, sizes = np.unique(kept if groups is None else groups[kept], return_inverse=True, return_counts=True)
        order = generator(seed, 0, 0, "table persons").permutation(len(sizes))
        drawn = order[np.cumsum(sizes[order]) <= max_rows]
        kept = _of_large_clients(kept[np.isin(person, drawn)], owner, min_rows)
    return kept


def _of_large_clients(kept: np.ndarray, owner: np.ndarray, min_rows: int) -> np.ndarray:
    sizes = np.bincount(owner[kept], minlength=1)
    large: np.ndarray = kept[sizes[owner[kept]] >= min_rows]
    return large
