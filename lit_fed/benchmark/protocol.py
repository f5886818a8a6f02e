"""Tuning: the same number of trials for every algorithm, drawn from one seed, judged by validation samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lit_fed.core.seeds import generator

__all__ = ["CUTS", "LEARNING_RATES", "PROTOCOL", "TRIALS", "Point", "chosen", "trial_points"]

PROTOCOL = 2
"""Version of the protocol; records of another one are not compared."""

CUTS = 5
"""Cuts of a task, each with its own training and validation samples and training seed."""

LEARNING_RATES = (0.001, 0.00316, 0.01, 0.0316, 0.1, 0.316, 1.0, 3.16)
"""Learning rates that are tried, the same for all algorithms."""

TRIALS = len(LEARNING_RATES)
"""Trials of each algorithm and task, on cut 0."""

TUNING_SEED = 2026

MOST_SETTINGS = 2
"""Settings of an algorithm that are tuned beside the learning rate."""

Point = dict[str, Any]
"""The learning rate, `lr`, and settings of the algorithm by name."""


def trial_points(space: Mapping[str, Sequence[Any]]) -> list[Point]:
    """The points of all trials: a Latin hypercube, in which each value of a setting comes about equally often.

    Learning rates come in the same order for all algorithms.

    Args:
        space: values of the settings beside the rate, of which the first two are tuned.

    Example:
        >>> len(trial_points({})), trial_points({})[0].keys(), trial_points({"mu": [0.1, 1.0]})[0].keys()
        (8, dict_keys(['lr']), dict_keys(['lr', 'mu']))
    """
    tuned = list(space.items())[:MOST_SETTINGS]
    columns = {name: _column(values, number) for number, (name, values) in enumerate([("lr", LEARNING_RATES), *tuned])}
    return [{name: column[trial] for name, column in columns.items()} for trial in range(TRIALS)]


def _column(values: Sequence[Any], number: int) -> list[Any]:
    """The value of each trial: all values in turn, shuffled."""
    rng = generator(TUNING_SEED, 0, number, "benchmark trials")
    order = rng.permutation(len(values))  # which values come once more than others
    repeated = [values[order[trial % len(values)]] for trial in range(TRIALS)]
    return [repeated[place] for place in rng.permutation(TRIALS)]


def chosen(points: Sequence[Point], scores: Sequence[float | None]) -> Point | None:
    """The point with the highest score on validation samples, the first of equals; None if every trial diverged."""
    held = [(score, -place) for place, score in enumerate(scores) if score is not None and math.isfinite(score)]
    return points[-max(held)[1]] if held else None
