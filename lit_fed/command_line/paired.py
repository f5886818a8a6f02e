"""The same clients in two groups of runs: their differences, and an interval of the mean difference."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lit_fed.core.seeds import generator
from lit_fed.system.packages import pd

if TYPE_CHECKING:
    from lit_fed.command_line.compare import FinishedRun

__all__ = ["Interval", "bootstrap", "larger_is_better", "mean_difference", "paired"]

DRAWS = 2000
"""Bootstrap samples of an interval."""

INTERVAL = (0.025, 0.975)
"""Quantiles of the bootstrap samples."""

BLOCK = 2**24
"""Upper limit of the numbers that are drawn at a time, and of those that are kept for the next interval."""

TRAINING = (
    "batch_size", "client_fraction", "clients_per_round", "client_sampling", "clients_per_block", "augment", "poison",
)  # fmt: skip
"""Arguments of the data that change neither clients nor their test samples."""


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


def larger_is_better(runs: Sequence[FinishedRun], metric: str) -> bool | None:
    """The direction of a metric, for chosen metrics by their worst clients; None if unknown."""
    if metric in ("accuracy", "mse", "loss"):
        return metric == "accuracy"
    for run in runs:
        values = run.clients.loc[run.clients["population"] == "seen", metric].dropna()
        worst = run.summary.get(f"test/seen/{metric}_worst")
        if worst is not None and values.max() > values.min():
            return bool(abs(worst - values.min()) < abs(worst - values.max()))
    return None


def paired(runs: Sequence[FinishedRun], others: Sequence[FinishedRun], metric: str) -> pd.DataFrame:
    """The clients that two groups of runs have in common: the same data, divided with the same seed.

    Returns:
        Columns `population`, `client`, `division` (number), `samples` of the test, `value` and `other`: means over the
        runs of each group with that division.
    """
    first, second = _by_division(runs, metric), _by_division(others, metric)
    tables = []
    for number, key in enumerate(key for key in first if key in second):
        index = ["population", "client"]
        both = first[key].merge(second[key][[*index, metric]].rename(columns={metric: "other"}), on=index)
        tables.append(both.rename(columns={metric: "value"}).assign(division=number))
    columns = ["population", "client", "division", "samples", "value", "other"]
    table = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=columns)
    return table[columns].dropna(subset=["value", "other"])


def _by_division(runs: Sequence[FinishedRun], metric: str) -> dict[str, pd.DataFrame]:
    """For each division of the data the clients with their mean over runs, in the order of the runs."""
    held: dict[str, list[pd.DataFrame]] = {}
    for run in runs:
        held.setdefault(_division(run), []).append(run.clients)
    tables = {}
    for key, clients in held.items():
        table = pd.concat(clients).assign(client=lambda one: one["client"].astype(str))
        table["samples"] = table.get("num_test", 1)
        groups = table.groupby(["population", "client"], sort=False)
        tables[key] = groups.agg({"samples": "first", metric: "mean"}).reset_index()
    return tables


def _division(run: FinishedRun) -> str:
    """Identity of the clients: arguments of the data, and the numbers of samples."""
    data: dict[str, Any] = run.config.get("data", {})
    kept = {key: value for key, value in data.items() if key not in TRAINING}
    counts = run.clients[[name for name in ("population", "client", "num_train", "num_test") if name in run.clients]]
    return json.dumps([kept, counts.astype(str).to_numpy().tolist()], sort_keys=True)


def mean_difference(table: pd.DataFrame) -> Interval:
    """Mean of value − other, weighted by test samples, with a bootstrap interval over divisions and their clients.

    Args:
        table: result of `paired`, with at least one row; the seeds of the training are no part of the interval.
    """
    parts = []
    for _, rows in table.groupby("division"):
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
