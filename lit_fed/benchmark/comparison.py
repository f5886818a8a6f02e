"""Comparisons of records: statistics over clients, and paired differences with intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from lit_fed.benchmark.measures import ADAPTED_ON, Scores, primary
from lit_fed.benchmark.records import CLOSE, Record
from lit_fed.metrics.paired import Difference, Units, difference, weighted_mean
from lit_fed.metrics.scores import client_statistics

__all__ = [
    "Row", "cost_to_match", "mean_score", "other_results", "other_score", "paired", "ranked_score", "row_of",
    "share_worse", "units",
]  # fmt: skip

CLOSE_CLIENTS = 0.03
"""Mean distance of the clients' scores that another processor may make."""


class Row(NamedTuple):
    """Statistics of a record; means over its cuts, NaN without a value."""

    mean: float  # primary score of seen clients: mean by their samples, or of all samples together
    spread: float  # standard deviation over cuts, with n − 1; NaN for a single one
    unweighted: float
    decile: float  # the 10th percentile of the clients
    worst: float
    unseen: tuple[float, ...]  # with 0, 10 and 100 % of their training samples
    ece: float
    megabytes: float
    seconds: float  # CPU time of a run
    memory: float  # peak, in MB
    diverged: int  # cuts


def row_of(record: Record) -> Row:
    """The statistics of a record."""
    runs = [run for run in record["runs"] if "test" in run]
    seen = [_statistics(_scores(run, "seen")) for run in runs]
    names = ("score_unweighted", "score_decile", "score_worst")
    unweighted, decile, worst = (_mean([one.get(name) for one in seen]) for name in names)
    return Row(
        mean_score(record, "seen"), _deviation(_primaries(record, "seen")), unweighted,
        decile, worst, tuple(mean_score(record, f"unseen_{percent}") for percent in ADAPTED_ON),
        _mean([run["test"]["seen"]["ece"] for run in runs]),
        _mean([run["bytes_up"] + run["bytes_down"] for run in runs]) / 1e6,
        _mean([run["cpu_seconds"] for run in runs]), _mean([run["peak_bytes"] for run in runs]) / 1e6,
        len(record["runs"]) - len(runs),
    )  # fmt: skip


def ranked_score(record: Record) -> float:
    """What ranks are of: the score of seen clients; a record that diverged on any cut stands behind all others."""
    return -math.inf if any("test" not in run for run in record["runs"]) else mean_score(record, "seen")


def mean_score(record: Record, population: str) -> float:
    """The primary score of a population, a mean over the cuts."""
    return _mean(_primaries(record, population))


def _primaries(record: Record, population: str) -> list[float]:
    return [primary(_scores(run, population), record["score"]) for run in record["runs"] if "test" in run]


def _scores(run: Mapping[str, Any], population: str) -> Scores:
    return Scores(**run["test"][population])


def _statistics(scores: Scores) -> dict[str, float]:
    """Statistics over the clients whose score is defined."""
    held = [pair for pair in zip(scores.score, scores.samples, strict=True) if pair[0] is not None]
    values, number = torch.tensor(held, dtype=torch.float64).reshape(-1, 2).T
    return client_statistics(values, number, "score")


def _mean(values: Sequence[float | None]) -> float:
    held = _defined(values)
    return sum(held) / len(held) if held else math.nan


def _deviation(values: Sequence[float]) -> float:
    held = _defined(values)
    return statistics.stdev(held) if len(held) > 1 else math.nan


def _defined(values: Sequence[float | None]) -> list[float]:
    return [one for one in values if one is not None and not math.isnan(one)]


# ---------------------------------------------------------------------- pairs
def share_worse(record: Record, baseline: Record | None, population: str = "seen") -> float:
    """Share of clients whose score is below the one under a baseline, over all cuts; NaN without one."""
    cuts = [] if baseline is None else _both(record, baseline)
    if not cuts:
        return math.nan
    one, two = (np.array([_scores(run, population).score for run in side], float) for side in zip(*cuts, strict=True))
    held = ~np.isnan(one) & ~np.isnan(two)
    return float((one < two)[held].mean()) if held.any() else math.nan


def _both(first: Record, second: Record) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The runs of the cuts on which neither record diverged."""
    return [each for each in zip(first["runs"], second["runs"], strict=True) if all("test" in one for one in each)]


def paired(first: Record, second: Record, population: str = "seen", comparisons: int = 1) -> Difference | None:
    """Difference first − second of primary scores, with a 95 % interval over cuts and clients.

    A pooled score of fewer than `FEW` clients has an interval over cuts and persons. With several comparisons all
    intervals hold together. None if no cut has both.
    """
    cuts = _both(first, second)
    if not cuts:
        return None
    found = difference(*units(list(zip(*cuts, strict=True)), first["score"], population))
    return None if math.isnan(found.mean) else found._replace(comparisons=max(1, comparisons))


def units(sides: Sequence[Sequence[Mapping[str, Any]]], score: str, population: str) -> list[Units]:
    """Scores of clients, or of persons, in the runs of each side, which are of the same cuts."""
    found = [[_scores(run, population) for run in side] for side in sides]
    return (_pooled if score == "pooled" else _means)(found)


def _means(sides: Sequence[Sequence[Scores]]) -> list[Units]:
    """Means over the clients whose score is defined on all sides."""
    values = np.array([[one.score for one in side] for side in sides], dtype=float)
    values[:, np.isnan(values).any(0)] = math.nan
    weight = np.array([one.samples for one in sides[0]], dtype=float)
    return [weighted_mean(one, weight) for one in values]


def _pooled(sides: Sequence[Sequence[Scores]]) -> list[Units]:
    """Pooled scores, and the influence of clients or persons on them."""
    score = np.array([[one.pooled for one in side] for side in sides], dtype=float)
    influence = np.array([[one.influence for one in side] for side in sides], dtype=float)
    weight = np.full(influence.shape[1:], 1 / influence.shape[2])
    return [Units(one, parts * weight, weight) for one, parts in zip(score, influence, strict=True)]


def cost_to_match(record: Record, baseline: Record | None) -> tuple[float, float]:
    """Rounds and MB until the validation score of the baseline's last round is reached; means over the cuts.

    Infinite if a cut never reaches it, NaN without a baseline.
    """
    if baseline is None:
        return math.nan, math.nan
    rounds, sent = [], []
    for run, other in zip(record["runs"], baseline["runs"], strict=True):
        if other.get("score") is None:  # diverged, or of one class
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
    for population in run.get("test", {}):
        sides = [_scores(one, population) for one in (run, again)]
        for name in ("mean", "pooled", "ece"):
            one, two = (primary(side, "clients") if name == "mean" else getattr(side, name) for side in sides)
            one, two = (math.nan if value is None else value for value in (one, two))
            if abs(one - two) > CLOSE or math.isnan(one) != math.isnan(two):
                return f"{where} has {name} {two:.4f} on {population} clients, and it says {one:.4f}"
        both = zip(sides[0].score, sides[1].score, strict=True)
        gaps = [abs(one - two) for one, two in both if one is not None and two is not None]
        if gaps and sum(gaps) / len(gaps) > CLOSE_CLIENTS:
            return f"{where} has other scores of single {population} clients"
        gaps = [abs(one - two) for one, two in zip(*(side.influence or [] for side in sides), strict=True)]
        if gaps and sum(gaps) / len(gaps) > CLOSE_CLIENTS:
            return f"{where} has other influences of single {population} clients or persons"
    sent = [one.get("bytes_up", 0) + one.get("bytes_down", 0) for one in (run, again)]
    other = abs(sent[0] - sent[1]) > CLOSE * sent[1]
    return f"{where} sends {sent[1]:.0f} bytes, not {sent[0]:.0f}" if other else None


def other_score(trial: int, said: float | None, again: float | None) -> str | None:
    """The difference between a trial's validation score and that of its repetition in words; None if they agree."""
    same = said is again is None or (said is not None and again is not None and abs(again - said) <= CLOSE)
    return None if same else f"trial {trial + 1} run again has {again} on validation samples, and it says {said}"
