"""Replacements of missing numbers in a table, learned from sums over clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

__all__ = ["Imputation", "learned_fills", "summed"]

Imputation = Literal["mean", "median", "most_frequent", "constant"]
"""Replacement of missing values; for texts the column's most frequent one, or no category at all."""


def summed(messages: Sequence[np.ndarray]) -> np.ndarray[Any, Any]:
    """The server's sum of one array from each client."""
    total: np.ndarray[Any, Any] = np.sum(messages, axis=0)
    return total


def learned_fills(impute: Imputation, clients: Sequence[np.ndarray]) -> np.ndarray:
    """Replacements of missing numbers, from sums over clients: no row leaves its client.

    Args:
        impute: `mean`, from the number and sum of values; `median`, by bisection on the number of values up to a
            bound (the mean of the two in the middle); `most_frequent`, from the counts of each value (of equally
            frequent ones the smallest).
        clients: numbers of each client, [n_t, W] float64, NaN where missing.

    Returns:
        One number for each column, [W] float64; NaN where no client has a value.
    """
    count = summed([(~np.isnan(x)).sum(0) for x in clients])
    with np.errstate(invalid="ignore"):
        if impute == "mean":
            return np.asarray(summed([np.nansum(x, axis=0) for x in clients]) / count)
        if impute == "median":
            keys = [_ordered(x) for x in clients]
            middle = (_smallest(keys, (count + 1) // 2), _smallest(keys, count // 2 + 1))
            return np.where(count > 0, np.mean(middle, axis=0), np.nan)
    fills = np.full(len(count), np.nan)
    for column in np.flatnonzero(count):
        values = [x[:, column] for x in clients]
        counts = sum((Counter(x[~np.isnan(x)].tolist()) for x in values), Counter[float]())
        fills[column] = min(counts, key=lambda one: (-counts[one], one))
    return fills


LAST = np.iinfo(np.int64).max


def _ordered(x: np.ndarray) -> np.ndarray:
    """Whole numbers in the order of these float64, NaN last."""
    bits = np.ascontiguousarray(x, dtype=np.float64).view(np.int64)
    return np.where(np.isnan(x), LAST, np.where(bits < 0, -(bits & LAST), bits))


def _smallest(keys: Sequence[np.ndarray], rank: np.ndarray) -> np.ndarray:
    """The value of each rank, from 1, in its column: clients tell how many of their values are at most a bound."""
    low, high = np.full(len(rank), -LAST), np.full(len(rank), LAST)
    while (low < high).any():
        bound = (low >> 1) + (high >> 1) + (low & high & 1)  # their sum may be no int64
        enough = summed([(one <= bound).sum(0) for one in keys]) >= rank
        low, high = np.where(enough, low, np.minimum(bound + 1, high)), np.where(enough, bound, high)
    return np.where(low < 0, -low | np.iinfo(np.int64).min, low).view(np.float64)
