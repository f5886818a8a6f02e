"""The same clients under two trainings: their differences, and intervals and p-values of the mean difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from lit_fed.system.packages import pd

__all__ = ["Difference", "Units", "difference", "holm", "mean_difference", "paired", "weighted_mean"]

LEVEL = 0.05
"""Intervals miss the difference with this probability."""


class Difference(NamedTuple):
    """A mean difference, and its interval by Student's distribution; as a text in percent.

    Example:
        >>> print(Difference(0.02, 0.005, 4.0), round(Difference(0.02, 0.005, 4.0).p, 3))
        +2.00 [+0.61, +3.39] 0.016
    """

    mean: float
    error: float  # standard error; infinite if it cannot be estimated
    freedom: float  # degrees of freedom of the error
    comparisons: int = 1  # intervals that hold together with probability 1 − LEVEL, by Bonferroni's inequality

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.mean - self._half

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.mean + self._half

    @property
    def _half(self) -> float:
        if self.error == 0 or math.isinf(self.error):
            return self.error
        return self.error * float(special.stdtrit(self.freedom, 1 - LEVEL / (2 * self.comparisons)))

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0

    @property
    def p(self) -> float:
        """The two-sided p-value of a difference of 0, of this comparison alone."""
        if self.error == 0 or math.isinf(self.error):
            return float(self.mean == 0 or self.error > 0)
        return 2 * float(special.stdtr(self.freedom, -abs(self.mean) / self.error))

    def __str__(self) -> str:
        return f"{100 * self.mean:+.2f} [{100 * self.low:+.2f}, {100 * self.high:+.2f}]"


class Units(NamedTuple):
    """Scores of K repetitions, and what each of n units adds to them: units are clients, or persons."""

    score: np.ndarray  # [K]
    parts: np.ndarray  # [K, n], the influence of each unit on the score, with a sum of about 0; NaN: not there
    weight: np.ndarray  # [K, n], share of each unit in the score


def difference(first: Units, second: Units) -> Difference:
    """The mean of first − second over repetitions, with an interval for other units and other repetitions.

    The same units in all repetitions are crossed with them. Variances are those of two-way clusters (Cameron, Gelbach,
    Miller. Robust Inference with Multiway Clustering. JBES 2011, Section 2.3): that of the repetitions, and what units
    have in common over them, at least 0; with degrees of freedom of Satterthwaite. That training samples of repetitions
    overlap is not accounted for.

    Args:
        first: scores of repetitions and units, at least one of each.
        second: scores of the same ones.
    """
    gap, parts = first.score - second.score, first.parts - second.parts
    held, repetitions, mean = ~np.isnan(parts), len(gap), float(gap.mean())
    number, parts = held.sum(0), np.where(held, parts, 0.0)  # number: repetitions with this unit
    units, weight = int((number > 0).sum()), np.where(held, first.weight, 0.0).mean(0)
    freedom = float(weight.sum() ** 2 / np.square(weight).sum()) - 1  # of as many units of equal weight
    if units < 2 or freedom <= 0:
        return Difference(mean, math.inf, 1.0)
    scale = units / (units - 1)
    of_units = scale * float(np.square(parts.mean(0)).sum())
    if repetitions == 1:
        return Difference(mean, math.sqrt(of_units), freedom)
    of_repetitions = float(gap.var(ddof=1)) / repetitions
    rest = np.where(held, parts - parts.sum(0) / number.clip(min=1), 0.0)
    rest = np.square(np.where(number > 1, rest, parts)).sum(0) * number / (number - 1).clip(min=1)
    residual = scale * float(rest.sum()) / repetitions**2
    if of_units <= residual:
        return Difference(mean, math.sqrt(of_repetitions), repetitions - 1)
    variance = of_repetitions + of_units - residual
    spread = of_units**2 / freedom + (of_repetitions**2 + residual**2 / freedom) / (repetitions - 1)
    return Difference(mean, math.sqrt(variance), variance**2 / spread)


def holm(p: Sequence[float]) -> list[float]:
    """The p-values of several comparisons, corrected by Holm's step-down procedure.

    Example:
        >>> holm([0.04, 0.01, 0.03])
        [0.06, 0.03, 0.06]
    """
    corrected, largest = [0.0] * len(p), 0.0
    for rank, place in enumerate(sorted(range(len(p)), key=lambda one: p[one])):
        largest = max(largest, min(1.0, (len(p) - rank) * p[place]))
        corrected[place] = largest
    return corrected


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


def mean_difference(table: pd.DataFrame) -> Difference:
    """Mean of value − other, weighted by test samples, with an interval over divisions and clients.

    Args:
        table: result of `paired`, with at least one row.
    """
    tables = (table.pivot_table("samples", "division", "client", sort=False),) + tuple(
        table.pivot_table(name, "division", "client", sort=False) for name in ("value", "other")
    )
    weight, value, other = (one.to_numpy(float) for one in tables)
    weight = np.where(np.isnan(value), np.nan, weight.clip(min=1))
    return difference(weighted_mean(value, weight), weighted_mean(other, weight))


def weighted_mean(values: np.ndarray, weight: np.ndarray) -> Units:
    """Means of repetitions over units, [K, n]; NaN: not there."""
    weight = np.where(np.isnan(values), np.nan, weight)
    weight = weight / np.nansum(weight, 1, keepdims=True)
    score = np.nansum(weight * values, 1)
    return Units(score, weight * (values - score[:, None]), weight)
