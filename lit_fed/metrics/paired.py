"""The same clients under two trainings: their differences, and an interval of the mean difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from lit_fed.core.seeds import generator
from lit_fed.system.packages import pd

__all__ = ["Interval", "bootstrap", "mean_difference", "paired"]

DRAWS = 2000
"""Bootstrap samples of an interval."""

INTERVAL = (0.025, 0.975)
"""Quantiles of the bootstrap samples."""

BLOCK = 2**24
"""Upper limit of the numbers that are drawn at a time, and of those that are kept for the next interval."""


class Interval(NamedTuple):
    """A mean, and its confidence interval; as a text in percent."""

    mean: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        return f"{100 * self.mean:+.2f} [{100 * self.low:+.2f}, {100 * self.high:+.2f}]"


def paired(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """The clients of two tables that both have a value, in the order of the first.

    Args:
        first: columns `division` (of the data into clients), `population`, `client`, `samples` of the test and `value`.
        second: likewise.

    Returns:
        The columns of the first, and `other`, the value in the second.

    Example:
        >>> one = {"division": 0, "population": "seen", "client": ["ann", "bob"], "samples": 1, "value": [0.5, 0.7]}
        >>> other = one | {"client": ["bob", "ann"], "value": [0.5, None]}
        >>> paired(pd.DataFrame(one), pd.DataFrame(other))[["client", "value", "other"]].to_numpy().tolist()
        [['bob', 0.7, 0.5]]
    """
    index = ["division", "population", "client"]
    both = first.merge(second[[*index, "value"]].rename(columns={"value": "other"}), on=index)
    return both.dropna(subset=["value", "other"])


def mean_difference(table: pd.DataFrame) -> Interval:
    """Mean of value − other, weighted by test samples, with a bootstrap interval over divisions and their clients.

    Args:
        table: result of `paired`, with at least one row; the seeds of the training are no part of the interval.
    """
    parts = []
    for _, rows in table.groupby("division", sort=False):
        difference = rows["value"].to_numpy(float) - rows["other"].to_numpy(float)
        parts.append((difference, rows["samples"].to_numpy(float).clip(min=1)))
    return bootstrap(parts)


def bootstrap(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> Interval:
    """Mean of the parts' weighted means: parts are drawn with replacement, and within each its values.

    Args:
        parts: values and weights of each part, both [n]; at least one part with at least one value.
    """
    sizes = tuple(len(values) for values, _ in parts)
    number = len(sizes)
    draws = iter(_kept(sizes) if number * DRAWS * sum(sizes) <= BLOCK else _drawn(sizes))
    means = np.empty((number, number * DRAWS))  # of each part, one for each place that it may be drawn for
    for mean, (values, weight) in zip(means, parts, strict=True):
        for rows in _blocks(len(values), number):
            counts = next(draws)
            mean[rows] = counts @ (values * weight) / (counts @ weight)
    places = np.arange(number)[:, None], np.arange(DRAWS)
    low, high = np.quantile(means.reshape(number, number, DRAWS)[(next(draws), *places)].mean(0), INTERVAL)
    return Interval(float(np.mean([one @ weight / weight.sum() for one, weight in parts])), float(low), float(high))


def _blocks(size: int, number: int) -> list[slice]:
    """The bootstrap samples of a part with this many values, a few at a time."""
    total, step = number * DRAWS, max(1, BLOCK // size)
    return [slice(start, min(start + step, total)) for start in range(0, total, step)]


def _drawn(sizes: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Counts [b, n] of the drawn values, part by part and block by block; last the drawn parts [parts, DRAWS]."""
    rng = generator(0, 0, 0, "benchmark bootstrap")
    for size in sizes:
        for rows in _blocks(size, len(sizes)):
            count = rows.stop - rows.start
            drawn = rng.integers(size, size=(count, size)) + size * np.arange(count)[:, None]
            yield np.bincount(drawn.ravel(), minlength=count * size).reshape(count, size).astype(float)
    yield rng.integers(len(sizes), size=(len(sizes), DRAWS))


@lru_cache(maxsize=2)  # the pairs of a benchmark's task have the same clients
def _kept(sizes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    return tuple(_drawn(sizes))
