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
        clients: numbers of each client, [n_t, W] float32, NaN where missing.

    Returns:
        One number for each column, [W] float64; NaN where no client has a value.
    """
    count = summed([(~np.isnan(x)).sum(0) for x in clients])
    with np.errstate(invalid="ignore"):
        if impute == "mean":
            return np.asarray(summed([np.nansum(x.astype(np.float64), axis=0) for x in clients]) / count)
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
    """Whole numbers in the order of these float32, NaN last."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.int32).astype(np.int64)
    return np.where(np.isnan(x), LAST, np.where(bits < 0, -(bits & 0x7FFFFFFF), bits))


def _smallest(keys: Sequence[np.ndarray], rank: np.ndarray) -> np.ndarray:
    """The value of each rank, from 1, in its column: clients tell how many of their values are at most a bound."""
    low, high = np.full(len(rank), -(2**31)), np.full(len(rank), 2**31)
    while (low < high).any():
        bound = (low + high) // 2
        enough = summed([(one <= bound).sum(0) for one in keys]) >= rank
        low, high = np.where(enough, low, np.minimum(bound + 1, high)), np.where(enough, bound, high)
    found = np.where(low < 0, -low | 0x80000000, low).astype(np.uint32).view(np.float32)
    return found.astype(np.float64)
