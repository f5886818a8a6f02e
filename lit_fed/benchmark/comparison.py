"""Comparisons of records: statistics over clients, and paired differences with bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from lit_fed.benchmark.records import CLOSE, Record
from lit_fed.core.seeds import generator

__all__ = ["Difference", "Row", "cost_to_match", "other_results", "paired", "row_of", "share_worse"]

DRAWS = 2000
"""Bootstrap samples of an interval."""

INTERVAL = (0.025, 0.975)
"""Quantiles of the bootstrap samples."""

CLOSE_CLIENTS = 0.03
"""Mean distance of the clients' scores that another processor may make."""


class Row(NamedTuple):
    """Statistics of a record; means over its cuts, NaN without a value."""

    mean: float  # primary score of seen clients: mean by their samples, or of all samples together
    spread: float  # standard deviation over cuts
    unweighted: float
    decile: float  # the 10th percentile of the clients
    worst: float
    unseen: tuple[float, float, float]  # with 0, 10 and 100 % of their training samples
    pooled: float
    ece: float
    megabytes: float
    seconds: float  # CPU time of a run
    memory: float  # peak, in MB
    diverged: int  # cuts


class Difference(NamedTuple):
    """A paired difference of two records, and its interval."""

    mean: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        return f"{100 * self.mean:+.2f} [{100 * self.low:+.2f}, {100 * self.high:+.2f}]"


def row_of(record: Record) -> Row:
    """The statistics of a record."""
    runs = [run for run in record["runs"] if "test" in run]
    if not runs:
        no = math.nan
        return Row(no, no, no, no, no, (no, no, no), no, no, no, no, no, len(record["runs"]))

    def mean(values: Sequence[float]) -> float:
        held = [one for one in values if one is not None and not math.isnan(one)]
        return sum(held) / len(held) if held else math.nan

    seen = [_scores(run, "seen") for run in runs]
    means = [_primary(record, run, "seen") for run in runs]
    unseen = [[_primary(record, run, f"unseen_{percent}") for run in runs] for percent in (0, 10, 100)]
    return Row(
        mean(means), float(np.std(means)), mean([float(one[0].mean()) for one in seen]),
        mean([float(np.sort(one[0])[max(1, len(one[0]) // 10) - 1]) for one in seen]),
        mean([float(one[0].min()) for one in seen]), (mean(unseen[0]), mean(unseen[1]), mean(unseen[2])),
        mean([run["test"]["seen"]["pooled"] for run in runs]), mean([run["test"]["seen"]["ece"] for run in runs]),
        mean([run["bytes_up"] + run["bytes_down"] for run in runs]) / 1e6,
        mean([run["cpu_seconds"] for run in runs]), mean([run["peak_bytes"] for run in runs]) / 1e6,
        len(record["runs"]) - len(runs),
    )  # fmt: skip


def _scores(run: Mapping, population: str) -> tuple[np.ndarray, np.ndarray]:
    """Scores and samples of the clients whose score is defined."""
    held = run["test"][population]
    score = np.array([math.nan if one is None else one for one in held["score"]])
    number = np.array(held["samples"], dtype=float)
    return score[~np.isnan(score)], number[~np.isnan(score)]


def _primary(record: Record, run: Mapping, population: str) -> float:
    if record["score"] == "pooled":
        pooled = run["test"][population]["pooled"]
        return math.nan if pooled is None else float(pooled)
    return _weighted(*_scores(run, population))


def _weighted(score: np.ndarray, number: np.ndarray) -> float:
    return float(score @ number / number.sum()) if len(score) else math.nan


# ---------------------------------------------------------------------- pairs
def _pairs(first: Record, second: Record, population: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Differences first − second of the same clients and their samples, cut by cut."""
    found = []
    for one, other in zip(first["runs"], second["runs"], strict=True):
        if "test" not in one or "test" not in other:
            continue
        known = dict(zip(other["test"][population]["clients"], other["test"][population]["score"], strict=True))
        held = one["test"][population]
        both = [
            (score - known[name], number)
            for name, score, number in zip(held["clients"], held["score"], held["samples"], strict=True)
            if score is not None and known.get(name) is not None
        ]
        if both:
            found.append((np.array([one[0] for one in both]), np.array([one[1] for one in both], dtype=float)))
    return found


def _pooled_pairs(first: Record, second: Record, population: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Differences first − second of pooled scores, [1], and weights 1, cut by cut."""
    both = [pair for pair in zip(first["runs"], second["runs"], strict=True) if all("test" in one for one in pair)]
    found = [_primary(first, one, population) - _primary(second, other, population) for one, other in both]
    return [(np.array([one]), np.ones(1)) for one in found if not math.isnan(one)]


def share_worse(record: Record, baseline: Record | None, population: str = "seen") -> float:
    """Share of clients whose score is below the one under a baseline, over all cuts; NaN without one."""
    pairs = [] if baseline is None else _pairs(record, baseline, population)
    return float(np.concatenate([one for one, _ in pairs]).__lt__(0).mean()) if pairs else math.nan


def paired(first: Record, second: Record, population: str = "seen") -> Difference | None:
    """Difference first − second of means by samples, with a 95 % bootstrap interval over cuts and clients.

    Cuts are drawn with replacement, and within each the clients. A pooled score has one value for each cut. None if no
    cut has both.
    """
    pairs = (
        _pooled_pairs(first, second, population) if first["score"] == "pooled" else _pairs(first, second, population)
    )
    if not pairs:
        return None
    counts, chosen = _draws(tuple(len(one) for one, _ in pairs))
    means = np.stack(
        [each @ (one * weight) / (each @ weight) for each, (one, weight) in zip(counts, pairs, strict=True)]
    )
    place, draw = np.arange(len(pairs))[:, None], np.arange(DRAWS)
    low, high = np.quantile(means[chosen, place, draw].mean(0), INTERVAL)
    return Difference(float(np.mean([_weighted(*pair) for pair in pairs])), float(low), float(high))


@lru_cache(maxsize=2)  # the pairs of a task have the same clients
def _draws(sizes: tuple[int, ...]) -> tuple[list[np.ndarray], np.ndarray]:
    """Bootstrap samples of cuts with these numbers of clients.

    Returns:
        How often each client is drawn, of each cut for each place that it may be drawn for [cuts, DRAWS, clients], and
        the cuts of each sample [cuts, DRAWS].
    """
    rng, cuts = generator(0, 0, 0, "benchmark bootstrap"), len(sizes)
    counts = []
    for size in sizes:
        drawn = rng.integers(size, size=(cuts * DRAWS, size)) + size * np.arange(cuts * DRAWS)[:, None]
        counts.append(
            np.bincount(drawn.ravel(), minlength=cuts * DRAWS * size).reshape(cuts, DRAWS, size).astype(float)
        )
    return counts, rng.integers(cuts, size=(cuts, DRAWS))


def cost_to_match(record: Record, baseline: Record | None) -> tuple[float, float]:
    """Rounds and MB until the validation score of the baseline's last round is reached; means over the cuts.

    Infinite if a cut never reaches it, NaN without a baseline.
    """
    if baseline is None:
        return math.nan, math.nan
    rounds, sent = [], []
    for run, other in zip(record["runs"], baseline["runs"], strict=True):
        if "curve" not in other:
            continue
        reached = [one for one in run.get("curve", []) if one[1] is not None and one[1] >= other["score"]]
        rounds.append(reached[0][0] if reached else math.inf)
        sent.append(reached[0][2] / 1e6 if reached else math.inf)
    return (float(np.mean(rounds)), float(np.mean(sent))) if rounds else (math.nan, math.nan)


def other_results(run: Mapping[str, Any], again: Mapping[str, Any]) -> str | None:
    """Differences between a run and its repetition beyond rounding; None if they agree.

    Statistics of a population, and the clients' scores one by one, so that exchanged clients are noticed.
    """
    where = f"cut {run['cut']} run again"
    if ("test" in run) != ("test" in again):
        return f"{where} {'did not diverge' if 'test' in again else 'diverged'}"
    for population, held in run.get("test", {}).items():
        other = again["test"][population]
        sides = [{"mean": _weighted(*_scores(one, population))} | one["test"][population] for one in (run, again)]
        for name in ("mean", "pooled", "ece"):
            one, two = (math.nan if side[name] is None else side[name] for side in sides)
            if abs(one - two) > CLOSE or math.isnan(one) != math.isnan(two):
                return f"{where} has {name} {two:.4f} on {population} clients, and it says {one:.4f}"
        gaps = [
            abs(one - two) for one, two in zip(held["score"], other["score"], strict=True) if None not in (one, two)
        ]
        if gaps and sum(gaps) / len(gaps) > CLOSE_CLIENTS:
            return f"{where} has other scores of single {population} clients"
    sent = [one.get("bytes_up", 0) + one.get("bytes_down", 0) for one in (run, again)]
    return (
        None if abs(sent[0] - sent[1]) <= CLOSE * sent[1] else f"{where} sends {sent[1]:.0f} bytes, not {sent[0]:.0f}"
    )
