"""Results of clients by name, statistics over clients, as papers report them, and outliers among clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.core.types import Leaves

__all__ = [
    "STATISTICS",
    "USUAL",
    "ClientScores",
    "Statistic",
    "client_statistics",
    "outlier",
    "reserved_keys",
    "summarise",
]

USUAL = {"accuracy": True, "mse": False, "loss": False}
"""The loss and the metrics of the usual targets, which need not be chosen, and whether larger is better.

Statistics of them over clients are in `STATISTICS`.
"""


def reserved_keys(metric: str) -> frozenset[str]:
    """Keys of results that nothing logged may take: of the loss and `metric`, with all statistics."""
    return frozenset(f"{name}{suffix}" for name in (*USUAL, metric) for suffix in STATISTICS) | {"num_test", "samples"}


class ClientScores(NamedTuple):
    """Results of C clients, float64.

    Example:
        >>> scores = ClientScores.of_rows(torch.tensor([[4.0, 2.0, 3.0, 0.9, 0.1]]), num_components=2)
        >>> scores.hits, scores.mixture
        (tensor([3.]), tensor([[0.9000, 0.1000]]))
    """

    samples: Tensor  # [C], number of samples that count
    loss: Tensor  # [C], sum over the samples
    hits: Tensor  # [C], sum over the samples of hits, or of the target's error, such as squared errors
    mixture: Tensor  # [C, M], weights of the components; M = 0 without a mixture
    metrics: Leaves  # chosen metrics by name, [C]; NaN where undefined

    @classmethod
    def of_rows(cls, rows: Tensor, num_components: int = 0, names: Sequence[str] = ()) -> ClientScores:
        """Views of a table with a row for each client.

        Args:
            rows: samples, loss, hits, M mixture weights, K chosen metrics, [C, 3 + M + K].
            num_components: M.
            names: names of the K chosen metrics.
        """
        samples, loss, hits, *others = rows.unbind(1)
        metrics = dict(zip(names, others[num_components:], strict=True))
        return cls(samples, loss, hits, rows[:, 3 : 3 + num_components], metrics)

    def rows(self) -> Tensor:
        """The table of `of_rows`, [C, 3 + M + K]."""
        columns = (*self[:3], *self.mixture.unbind(1), *self.metrics.values())
        return torch.stack(columns, dim=1)

    @property
    def held(self) -> Tensor:
        """Whether a client has samples, [C]."""
        return self.samples > 0

    def means(self, metric: str) -> Leaves:
        """Each client's metrics by name, [C]; NaN without samples.

        Args:
            metric: name of the mean of the hits, such as `accuracy` or `mse`.
        """
        count = self.samples.clamp(min=1)
        means = {metric: self.hits / count, "loss": self.loss / count, **self.metrics}
        return {name: column.masked_fill(~self.held, float("nan")) for name, column in means.items()}

    def columns(self, metric: str) -> dict[str, list[float]]:
        """Columns of a table of clients: `num_test`, and the `means`."""
        means = {name: column.tolist() for name, column in self.means(metric).items()}
        return {"num_test": self.samples.long().tolist(), **means}

    def weights(self, names: Sequence[str] = ()) -> dict[str, list[float]]:
        """Columns `pi_m` of mixture weights, or with these names in place of numbers; {} without a mixture."""
        each = zip(names or range(self.mixture.shape[1]), self.mixture.T, strict=True)
        return {f"pi_{name}": column.tolist() for name, column in each}


class Statistic(NamedTuple):
    """A statistic over clients of a metric."""

    heading: str  # of its column
    meaning: str  # as the documentation has it
    of: Callable[[Tensor, Tensor], Tensor] | None  # values and weights [T] float64 → []; None: see `ChosenMetrics`
    worst_first: bool = False  # order of the values; a metric without a direction has no such statistic
    larger_is_better: bool | None = None  # None: as of the metric
    in_its_unit: bool = True  # whether its unit is that of the metric
    digits: int = 4  # behind the point
    printed: bool = False  # whether it is a column of the table of a run
    compared: bool = False  # whether it is a column of `compare`


STATISTICS = {
    "": Statistic(
        "mean", "mean over clients, weighted by their samples",
        lambda values, weights: (values * weights).sum() / weights.sum(), printed=True, compared=True,
    ),
    "_decile": Statistic(
        "worst decile", "the max(1, ⌊T/10⌋)-th worst of T clients",
        lambda values, _: values[max(1, len(values) // 10) - 1], worst_first=True, printed=True, compared=True,
    ),
    "_worst": Statistic(
        "worst client", "the worst client", lambda values, _: values[0], worst_first=True, printed=True
    ),
    "_std": Statistic(
        "standard deviation", "standard deviation over clients", lambda values, _: values.std(correction=0),
        larger_is_better=False,
    ),
    "_unweighted": Statistic("plain mean", "plain mean over clients", lambda values, _: values.mean()),
    "_pooled": Statistic("pooled", "the metric of the samples of all clients together", None, printed=True),
    "_undefined": Statistic(
        "undefined", "number of clients with samples but without a value", None, larger_is_better=False,
        in_its_unit=False, digits=0, printed=True, compared=True,
    ),
}  # fmt: skip
"""The statistics, by the end of their key: that of `accuracy` with `_std` is `accuracy_std`.

Those without a function are of chosen metrics alone. `larger_is_better/…` in summary.json has no statistics: their
direction follows from that of the metric and this table.
"""


def client_statistics(
    values: Tensor, num_samples: Tensor, name: str, *, larger_is_better: bool | None = True
) -> dict[str, float]:
    """The statistics over clients of a metric, by key.

    Args:
        values: the metric of each client, [T].
        num_samples: test samples, the weights, [T]; clients without samples are left out.
        name: name of the metric, such as `accuracy`.
        larger_is_better: direction of the metric; None: unknown, and what needs the worst clients is left out.

    Example:
        >>> import torch
        >>> client_statistics(torch.tensor([0.5, 1.0]), torch.tensor([1, 3]), "accuracy")["accuracy"]
        0.875
    """
    held = num_samples > 0
    if not held.any():
        return {}
    values, weights = values[held].double(), num_samples[held].double()
    ordered, order = values.sort(descending=larger_is_better is False)
    return {
        f"{name}{suffix}": float(one.of(ordered, weights[order]) if one.worst_first else one.of(values, weights))
        for suffix, one in STATISTICS.items()
        if one.of is not None and not (one.worst_first and larger_is_better is None)
    }


def summarise(scores: ClientScores, metric: str = "accuracy") -> dict[str, float]:
    """`loss`, and `accuracy` or an error such as `mse` with the statistics of `client_statistics`.

    Args:
        scores: results of the clients.
        metric: name of the mean of the hits; smaller is better unless it is `accuracy`.
    """
    if not scores.held.any():
        return {}
    results = {"loss": float(scores.loss.sum() / scores.samples.sum())}
    values = scores.means(metric)[metric]
    return results | client_statistics(values, scores.samples, metric, larger_is_better=metric == "accuracy")


FACTOR = 1e6
"""Ratio of value and median above which a value counts as an outlier."""


def outlier(values: Tensor, floor: float = 0.0) -> tuple[int, float, float] | None:
    """The largest value, if it is more than `FACTOR` times the median.

    Args:
        values: value of each client, at least 0, [T].
        floor: lower limit of the median; if the median is still 0, there is no outlier.

    Returns:
        Position, value and (lower) median, or None.

    Example:
        >>> import torch
        >>> outlier(torch.tensor([2.0, 1e8, 1.0]))
        (1, 100000000.0, 2.0)
    """
    values = values.double()
    position, median = int(values.argmax()), max(float(values.median()), floor)
    largest = float(values[position])
    return (position, largest, median) if largest > FACTOR * median > 0 else None
