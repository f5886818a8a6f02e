"""The one client among many whose numbers decide every mean."""

from __future__ import annotations

from torch import Tensor

__all__ = ["outlier"]

FACTOR = 1e6
"""A value that is more than so many times the median is taken for a mistake."""


def outlier(values: Tensor, floor: float = 0.0) -> tuple[int, float, float] | None:
    """The largest value, if it is more than `FACTOR` times the median.

    Args:
        values: one of each client, at least 0, [T].
        floor: medians below it count as this; where that is 0 too, nothing is an outlier.

    Returns:
        Position, value and median (of two values the smaller), or None.

    Example:
        >>> import torch
        >>> outlier(torch.tensor([2.0, 1e8, 1.0]))
        (1, 100000000.0, 2.0)
    """
    values = values.double()
    position, median = int(values.argmax()), max(float(values.median()), floor)
    largest = float(values[position])
    return (position, largest, median) if largest > FACTOR * median > 0 else None
