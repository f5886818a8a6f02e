"""Metrics of the user's choice, computed from the predictions of one client after another.

A metric holds what it knows of one client at a time, its number is kept, and it starts anew with the next client. So it
may look at all predictions of a client at once, as areas under curves do, and still nothing of a client is held beside
one number once its samples are predicted.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lit_fed.core.targets import Target
from lit_fed.metrics.client_table import client_statistics
from lit_fed.system.packages import imported_later

if TYPE_CHECKING:
    import torchmetrics
else:
    torchmetrics = imported_later("torchmetrics")

__all__ = ["ChosenMetrics", "ClientMeter", "ClientMetric", "quiet"]


class ClientMetric:
    """A metric that measures one client at a time.

    For torchmetrics, the area under the curve of a class that a client does not have is 0, and most clients have few of
    many classes. So averages of areas are taken here, over the classes for which there is one. Correlations and R² of
    constants, 0 or huge in torchmetrics, are undefined.

    Args:
        name: its key in the results.
        metric: the metric, which belongs to this object from now on.
        target: what is predicted.

    Attributes:
        averages: numbers of several classes are averaged here.
        reason: why there was no number for some client.
    """

    def __init__(self, name: str, metric: torchmetrics.Metric, target: Target) -> None:
        self.name, self.metric, self.target = name, metric, target
        self.larger_is_better: bool | None = metric.higher_is_better
        metric.distributed_available_fn = _alone  # each client is measured on one rank
        self._one_column = target.kind == "binary" and not type(metric).__name__.startswith("Multiclass")
        self._is_curve, self._average = isinstance(metric, _curves()), getattr(metric, "average", None)
        self.averages = self._is_curve and self._average in ("macro", "weighted")
        if self.averages:
            metric.average = "none"
        self.reason, self._failure = "", ""
        self._count = self._positives = torch.zeros((), dtype=torch.int64)
        self._ranges: list[tuple[Tensor, Tensor]] = []

    @property
    def is_accuracy(self) -> bool:
        """Whether it is the accuracy under another name, as averages over the samples of several classes are."""
        metric: Any = self.metric
        plain = type(metric) in _shares() and metric.top_k == 1 and metric.ignore_index is None
        return plain and self._average == "micro"

    def update(self, shown: Tensor, labels: Tensor) -> None:
        """Add samples of the client under way.

        Args:
            shown: what `Target.shown` gives, [n, C] or [n].
            labels: [n], or [n, C] where a sample has several.
        """
        if self._is_curve:
            self._add_classes(labels)
        self._add_ranges(shown, labels)
        try:
            self.metric.update(*self.facing(shown, labels))
        except (ValueError, RuntimeError) as error:  # what a metric says of samples that it cannot measure
            self._failure = str(error)

    def facing(self, shown: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Predictions as the metric takes them, and labels: of two classes the probability of the second alone."""
        return (shown[:, 1] if self._one_column else shown).contiguous(), labels.contiguous()

    def _add_ranges(self, shown: Tensor, labels: Tensor) -> None:
        """Keep the smallest and largest number of what has to vary."""
        values = [labels] * isinstance(self.metric, _spreads()) + [shown] * isinstance(self.metric, _spreads()[:1])
        if values and len(labels):
            found = [(one.amin(0), one.amax(0)) for one in values]
            before = self._ranges or found
            self._ranges = [
                (torch.minimum(low, a), torch.maximum(high, b))
                for (low, high), (a, b) in zip(found, before, strict=True)
            ]

    def _add_classes(self, labels: Tensor) -> None:
        ignored = getattr(self.metric, "ignore_index", None)
        kept = torch.ones_like(labels, dtype=torch.bool) if ignored is None else labels != ignored
        if self.target.kind == "multilabel":
            count, positives = kept.sum(0), (labels * kept).sum(0)
        else:
            positives = torch.bincount(labels[kept], minlength=self.target.num_classes)
            count = kept.sum()
        if isinstance(self.metric, _curves()[0]):
            positives = positives[1]
        self._count, self._positives = self._count + count, self._positives + positives

    def take(self) -> float:
        """The number of the client under way, NaN where it has none; then the next client begins."""
        number = float("nan")
        if not self._failure:
            try:
                number = self._number()
            except (ValueError, RuntimeError) as error:
                self._failure = str(error)
        self.reason = self._failure or self.reason
        self._failure = ""
        self._count = self._positives = torch.zeros((), dtype=torch.int64)
        self._ranges = []
        self.metric.reset()
        return number

    def _number(self) -> float:
        if any(bool((low == high).any()) for low, high in self._ranges):
            self._failure = "its labels or predictions are constant"
            return float("nan")
        if not self._is_curve:
            return float(self.metric.compute())
        most = self._count if isinstance(self.metric, _precisions()) else self._count - 1
        defined = (self._positives > 0) & (self._positives <= most)
        if not defined.any():
            self._failure = "its samples are of one class"
            return float("nan")
        found: Tensor = self.metric.compute()
        if not self.averages:
            return float(found)
        weight = self._positives[defined] if self._average == "weighted" else torch.ones(int(defined.sum()))
        return float((found[defined].double() * weight).sum() / weight.sum())


class ChosenMetrics:
    """The metrics that a run reports beside its own; none by default.

    Args:
        metrics: the metrics, of different names.
        target: what is predicted.

    Attributes:
        said: what the user was told of them; once in a run is enough.
    """

    def __init__(self, metrics: list[ClientMetric], target: Target) -> None:
        self.metrics, self.target = metrics, target
        self.said: set[str] = set()

    def __len__(self) -> int:
        return len(self.metrics)

    @property
    def names(self) -> list[str]:
        """Their keys in the results."""
        return [one.name for one in self.metrics]

    def meter(self, num_clients: int) -> ClientMeter:
        """What measures some clients, from their predictions."""
        return ClientMeter(self, num_clients)

    def statistics(self, values: Tensor, num_samples: Tensor) -> dict[str, float]:
        """Statistics over clients of each metric, as of `client_statistics`.

        `<name>_undefined` is the number of clients that have samples and no number: they take no part in any other
        statistic. Where it is not known whether larger is better, there is no worst client.

        Args:
            values: of each client and metric, [T, K]; NaN or infinite where undefined.
            num_samples: samples of each client, [T].
        """
        results: dict[str, float] = {}
        if not (num_samples > 0).any():
            return results
        for one, column in zip(self.metrics, values.T, strict=True):
            defined = column.isfinite()
            weight = num_samples.masked_fill(~defined, 0)
            results |= client_statistics(column, weight, one.name, larger_is_better=one.larger_is_better)
            results[f"{one.name}_undefined"] = float(((num_samples > 0) & ~defined).sum())
        return results


class ClientMeter:
    """Measures some clients while their predictions come in.

    Args:
        chosen: the metrics.
        num_clients: C.
    """

    def __init__(self, chosen: ChosenMetrics, num_clients: int) -> None:
        self._chosen = chosen
        self._values = torch.full((num_clients, len(chosen)), float("nan"), dtype=torch.float64)
        self._row: int | None = None  # whose predictions come in
        self._done: set[int] = set()

    def add(self, rows: Tensor, prediction: Tensor, y: Tensor, mask: Tensor) -> None:
        """Add predictions of some clients, each of which gives all its samples before the next one begins.

        Args:
            rows: places of the clients, [c].
            prediction: what `Target.mix` gives, [c, N, ...].
            y: labels, [c, N] or [c, N, L].
            mask: 0 for padding, [c, N].
        """
        target = self._chosen.target
        shown = target.shown(prediction.detach().float().cpu())
        if not target.continuous:
            shown = shown.clamp(max=1)  # rounding; torchmetrics takes what is above 1 for logits
        labels, held = y.cpu(), mask.cpu() > 0
        with quiet():
            for position, row in enumerate(rows.tolist()):
                self._turn_to(row)
                some, their = shown[position][held[position]], labels[position][held[position]]
                if target.positions:
                    some, their = some.flatten(0, 1), their.flatten(0, 1)
                for one in self._chosen.metrics:
                    one.update(some, their)

    def values(self) -> Tensor:
        """The numbers of all clients, [C, K] float64; NaN where a client has none."""
        with quiet():
            self._turn_to(None)
        return self._values

    def _turn_to(self, row: int | None) -> None:
        """Keep the numbers of the client under way, if another one begins."""
        if row == self._row:
            return
        assert row not in self._done, "a client's predictions come before those of the next one"
        if self._row is not None:
            self._values[self._row] = torch.tensor([one.take() for one in self._chosen.metrics], dtype=torch.float64)
            self._done.add(self._row)
        self._row = row


def _curves() -> tuple[type[torchmetrics.Metric], ...]:
    """What all metrics of ranked predictions derive from: they compare the samples of a class with all others."""
    kinds = torchmetrics.classification
    return (
        kinds.BinaryPrecisionRecallCurve, kinds.MulticlassPrecisionRecallCurve, kinds.MultilabelPrecisionRecallCurve
    )  # fmt: skip


def _precisions() -> tuple[type[torchmetrics.Metric], ...]:
    """Those of them that are defined where all samples are of the class."""
    kinds = torchmetrics.classification
    return kinds.BinaryAveragePrecision, kinds.MulticlassAveragePrecision, kinds.MultilabelAveragePrecision


def _spreads() -> tuple[type[torchmetrics.Metric], ...]:
    """What divides by the spread of the labels and says nothing of a spread of 0; the first by that of predictions too.

    The other correlations are NaN there.
    """
    kinds = torchmetrics.regression
    return kinds.SpearmanCorrCoef, kinds.R2Score, kinds.ExplainedVariance, kinds.RelativeSquaredError


def _shares() -> tuple[type[torchmetrics.Metric], ...]:
    """Metrics of classes that over samples are one number: each wrong sample is missed by one class, found by another.

    FBetaScore is one of them for any beta.
    """
    kinds = torchmetrics.classification
    return (
        kinds.MulticlassAccuracy, kinds.MulticlassPrecision, kinds.MulticlassRecall, kinds.MulticlassF1Score,
        kinds.MulticlassFBetaScore,
    )  # fmt: skip


@contextmanager
def quiet() -> Iterator[None]:
    """Keep back the warnings of torchmetrics, which are of one client among many; what is undefined is counted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _alone(*_: Any) -> bool:
    """Whether other ranks know of the same client."""
    return False
