"""Numbers of all rows in order at each place: what rules by coordinate look at.

Batcher's merge exchange as in Knuth, "The Art of Computer Programming", volume 3, Algorithm 5.2.2M: the same few
comparisons of whole rows whatever they hold, which a processor does many of at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

__all__ = ["sorted_rows", "within"]

MOST_ROWS = 128
"""Beyond it sorting place by place is faster, and on other devices than a CPU it always is."""


@lru_cache
def comparisons(num_rows: int) -> tuple[tuple[int, int], ...]:
    """Pairs i < j of rows of which the smaller number goes to i, one pair after another.

    Example:
        >>> comparisons(3)
        ((0, 2), (0, 1), (1, 2))
    """
    return tuple(_merge_exchange(num_rows))


def _merge_exchange(n: int) -> Iterator[tuple[int, int]]:
    top = 1 << max((n - 1).bit_length() - 1, 0)
    p = top
    while p:
        q, r, d = top, 0, p
        while True:
            yield from ((i, i + d) for i in range(n - d) if i & p == r)
            if q == p:
                break
            d, q, r = q - p, q // 2, p
        p //= 2


def sorted_rows(piece: Tensor) -> list[Tensor]:
    """The smallest number at each place, the second, and so on: m rows [p] of a piece [m, p], which stays as it is."""
    if len(piece) > MOST_ROWS or piece.device.type != "cpu":
        return list(piece.sort(0).values.unbind())
    rows, spare = list(piece.clone().unbind()), torch.empty_like(piece[0])
    for low, high in comparisons(len(rows)):
        first, second = rows[low], rows[high]
        torch.minimum(first, second, out=spare)
        torch.maximum(first, second, out=second)
        rows[low], spare = spare, first
    return rows


def within(piece: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Which numbers [m, p] lie between two rows [p], bounds included: [m, p] bool."""
    return (piece >= low) & (piece <= high)
