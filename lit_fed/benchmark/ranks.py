"""Average ranks of algorithms over tasks, and by how much they have to differ.

Demsar. "Statistical Comparisons of Classifiers over Multiple Data Sets". JMLR 7 (2006), Section 3.2.2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import rankdata, studentized_range

__all__ = ["average_ranks", "critical_difference"]

LEVEL = 0.05

Scores = Mapping[str, float]
"""The score of each algorithm on a task, the same algorithms on all tasks; larger is better."""


def average_ranks(sources: Mapping[str, Sequence[Scores]]) -> tuple[dict[str, float], float]:
    """Average ranks of the algorithms, best first, and their critical difference.

    Args:
        sources: the tasks of each source of data; a source counts once, with the mean of its tasks' ranks.

    Example:
        >>> one, other = {"a": 3, "b": 2, "c": 1}, {"a": 1, "b": 2, "c": 3}
        >>> average_ranks({"x": [one, one, one], "y": [other]})[0]
        {'a': 2.0, 'b': 2.0, 'c': 2.0}
    """
    names = sorted(next(iter(sources.values()))[0])
    each = [
        np.mean([rankdata([-scores[name] for name in names]) for scores in tasks], axis=0) for tasks in sources.values()
    ]
    means = np.mean(each, axis=0).round(9)  # pages show the same digits whatever the order of the sum
    ranks = zip(names, means.tolist(), strict=True)
    return dict(sorted(ranks, key=lambda one: one[1])), critical_difference(len(names), len(each))


def critical_difference(algorithms: int, tasks: int) -> float:
    """By how much average ranks of k algorithms on N tasks have to differ: q_α·sqrt(k(k + 1)/(6N)), Nemenyi's test."""
    quantile = studentized_range.ppf(1 - LEVEL, algorithms, math.inf) / math.sqrt(2)
    return float(quantile * math.sqrt(algorithms * (algorithms + 1) / (6 * tasks)))
