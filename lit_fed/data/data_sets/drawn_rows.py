"""A seeded draw of clients, and of persons with all of their rows, from a table."""

from __future__ import annotations

import numpy as np

from lit_fed.core.seeds import generator

__all__ = ["drawn_rows"]


def drawn_rows(
    owner: np.ndarray,
    groups: np.ndarray,
    min_rows: int,
    min_groups: int,
    max_clients: int | None,
    max_rows: int | None,
    seed: int,
) -> np.ndarray:
    """The rows to keep.

    Args:
        owner: client of each row, [n] int.
        groups: person of each row, [n] int.
        min_rows: clients with fewer rows are left out, before and after the draw of rows.
        min_groups: likewise for persons.
        max_clients: number of clients to draw; None: all.
        max_rows: number of rows to draw, in the order of drawn persons; None: all.
        seed: seed of the draws.

    Returns:
        Sorted numbers of rows [m].
    """

    def of_large_clients(kept: np.ndarray) -> np.ndarray:
        (clients, _), sizes = np.unique([owner[kept], groups[kept]], axis=1, return_counts=True)
        rows, persons = np.bincount(clients, sizes, len(owner)), np.bincount(clients, minlength=len(owner))
        large: np.ndarray = kept[((rows >= min_rows) & (persons >= min_groups))[owner[kept]]]
        return large

    kept = of_large_clients(np.arange(len(owner)))
    clients = np.unique(owner[kept])
    if max_clients is not None and max_clients < len(clients):
        clients = generator(seed, 0, 0, "table clients").choice(clients, max_clients, replace=False)
        kept = kept[np.isin(owner[kept], clients)]
    if max_rows is not None and max_rows < len(kept):
        _, person, sizes = np.unique(groups[kept], return_inverse=True, return_counts=True)
        order = generator(seed, 0, 0, "table persons").permutation(len(sizes))
        drawn = order[np.cumsum(sizes[order]) <= max_rows]
        kept = of_large_clients(kept[np.isin(person, drawn)])
    return kept
