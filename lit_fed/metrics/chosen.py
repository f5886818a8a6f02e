"""User-defined metrics, computed client by client.

A metric holds the predictions of one client at a time and is reset for the next one. It may need all predictions of a
client, as areas under curves do, but only one number per client is kept.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lit_fed.core.likelihood import Likelihood
from lit_fed.core.targets import Target
from lit_fed.core.types import Leaves
from lit_fed.metrics.scores import USUAL, ClientScores, client_statistics, summarise
from lit_fed.system.names import lies_below
from lit_fed.system.packages import imported_later

if TYPE_CHECKING:
    import torchmetrics
    import torchmetrics.retrieval.base
    import torchmetrics.text
else:
    torchmetrics = imported_later("torchmetrics")

__all__ = ["Add", "ChosenMetrics", "ClientMeter", "ClientMetric", "quiet"]


Add = Callable[[int, Tensor, Tensor], None]


class ClientMetric:
    """A metric of one client at a time.

    torchmetrics gives 0 for the area under the curve of a class that a client lacks, and most clients lack many
    classes. So areas are averaged here over the classes where they are defined. Correlations and R² of constants, 0 or
    huge in torchmetrics, are undefined. Macro averages leave out a class that is ignored, which torchmetrics counts
    as 0 where it is predicted, and the background if it is not included.

    Args:
        name: key in the results.
        metric: the metric; this object takes ownership.
        target: the prediction target.
        background: whether macro averages of counts include class 0.

    Attributes:
        averages: whether values of classes are averaged here.
        reason: why the metric was undefined for some client.
    """

    def __init__(self, name: str, metric: torchmetrics.Metric, target: Target, *, background: bool = True) -> None:
        self.name, self.metric, self.target = name, metric, target
        self.larger_is_better: bool | None = metric.higher_is_better
        metric.distributed_available_fn = _alone  # each client is evaluated on one rank
        self._one_column = target.kind == "binary" and not type(metric).__name__.startswith("Multiclass")
        self._is_perplexity = isinstance(metric, torchmetrics.text.Perplexity)
        self._is_curve, self._average = isinstance(metric, _curves()), getattr(metric, "average", None)
        self._is_library = lies_below(type(metric).__module__, "torchmetrics")
        self._ranks = isinstance(metric, torchmetrics.retrieval.base.RetrievalMetric)
        self._left_out: set[int] = set() if background else {0}
        ignored: Any = getattr(metric, "ignore_index", None)
        wrong = isinstance(metric, torchmetrics.classification.MulticlassStatScores) and self._average == "macro"
        if (wrong or not background) and ignored in range(target.num_classes):
            self._left_out.add(ignored)
        self.averages = (self._is_curve and self._average in ("macro", "weighted")) or bool(self._left_out)
        if self.averages:
            metric.average = "none"
        self.reason, self._failure = "", ""
        self._count = self._positives = torch.zeros((), dtype=torch.int64)
        self._ranges: list[tuple[Tensor, Tensor]] = []

    @property
    def is_accuracy(self) -> bool:
        """Whether it equals accuracy, as micro averages over classes do."""
        metric: Any = self.metric
        plain = type(metric) in _shares() and metric.top_k == 1 and metric.ignore_index is None
        return plain and self._average == "micro"

    @property
    def adds_up(self) -> bool:
        """Whether its state consists of a few numbers, which those of other clients can be merged with."""
        held: Any = self.metric.metric_state
        few = all(isinstance(one, Tensor) for one in held.values())
        return few and self.metric.full_state_update is False and not self._is_curve

    def state(self) -> Tensor:
        """The numbers of the current client's state, [S] float64; NaN if the metric is undefined for its samples."""
        held: Any = self.metric.metric_state
        numbers = torch.cat([one.double().flatten() for one in held.values()])
        return torch.full_like(numbers, torch.nan) if self._failure else numbers

    def of_states(self, states: Tensor) -> float:
        """The metric over the samples of several clients together, from their `state`, [n, S]; NaN if one is."""
        held: Any = self.metric.metric_state
        if bool(states.isnan().any()):
            return float("nan")
        for numbers in states:
            parts = [
                part.view(old.shape) if old.is_floating_point() else part.long().view(old.shape)
                for part, old in zip(numbers.split([one.numel() for one in held.values()]), held.values(), strict=True)
            ]
            self.metric.merge_state(dict(zip(held, parts, strict=True)))
        return self.take()

    def update(self, shown: Tensor, labels: Tensor, owner: Tensor | None = None) -> None:
        """Add samples of the current client.

        Args:
            shown: from `Target.shown`, [n, C] or [n].
            labels: [n], or [n, C] for multilabel targets.
            owner: clients of the samples, [n], whose queries differ; None: one.
        """
        shown, labels = self._in_units(shown), self._in_units(labels)
        if self._is_curve:
            self._add_classes(labels)
        self._add_ranges(shown, labels)
        try:
            self.metric.update(*self.facing(shown, labels, owner))
        except (ValueError, RuntimeError) as error:  # the metric is undefined for these samples
            self._failure = str(error)

    def _in_units(self, values: Tensor) -> Tensor:
        """Standardised values in the units of the labels; those of metrics that square them stay without the mean."""
        scale = self.target.label_scale
        if scale is None or not isinstance(self.metric, _squaring()):
            return self.target.in_units(values)
        return scale[1] * values

    def facing(self, shown: Tensor, labels: Tensor, owner: Tensor | None = None) -> tuple[Tensor, ...]:
        """Predictions and labels for the metric, of two classes the probability of the second; of rankings queries."""
        if self._is_perplexity:
            return shown.log()[None], labels[None]
        queries: tuple[Tensor, ...] = (self.target.queries(labels),) if self._ranks else ()
        if queries and owner is not None:
            queries = (torch.unique(torch.stack([owner, *queries]), dim=1, return_inverse=True)[1],)
        if self._is_library and isinstance(self.target, Likelihood):
            shown, labels = self.target.compared(shown, labels)
        if self._ranks and labels.is_floating_point() and bool((labels == labels.round()).all()):
            labels = labels.long()  # which metrics of relevances 0 and 1 need
        return (shown[:, 1] if self._one_column else shown).contiguous(), labels.contiguous(), *queries

    def _add_ranges(self, shown: Tensor, labels: Tensor) -> None:
        """Track minimum and maximum of values that must not be constant."""
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

    def of_all(self, shown: Tensor, labels: Tensor, owner: Tensor) -> float:
        """The metric over the samples of several clients together; see `update`."""
        reason = self.reason
        with quiet():
            self.update(shown, labels, owner)
            number = self.take()
        self.reason = reason
        return number

    def take(self) -> float:
        """Return the current client's value, NaN if undefined, and reset for the next client."""
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
        if self._left_out:
            return self._without_left_out()
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

    def _without_left_out(self) -> float:
        """The mean over the classes that torchmetrics averages, without ignored ones and the background."""
        counts: Any = self.metric
        if isinstance(counts, torchmetrics.classification.MulticlassJaccardIndex):
            kept = counts.confmat.sum(0) + counts.confmat.sum(1) > 0
        else:
            kept = (counts.tp + counts.fp + counts.fn > 0) | (counts.top_k > 1)
        kept[[*self._left_out]] = False
        if not kept.any():
            self._failure = "its labels and predictions are all ignored or background"
            return float("nan")
        found: Tensor = counts.compute()
        return float(found[kept].double().mean())


class ChosenMetrics:
    """User-defined metrics of a run; none by default.

    Args:
        metrics: the metrics, with different names.
        target: the prediction target.

    Attributes:
        said: warnings already printed in this run.
        logged: names of what the steps of a module of its own log, whose direction is unknown.
    """

    def __init__(self, metrics: list[ClientMetric], target: Target) -> None:
        self.metrics, self.target = metrics, target
        self.said: set[str] = set()
        self.logged: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    @property
    def names(self) -> list[str]:
        """Their keys in the results."""
        return [*(one.name for one in self.metrics), *self.logged]

    @property
    def directions(self) -> dict[str, bool | None]:
        """Whether larger is better, by the name of each measured metric, the chosen ones first; None: unknown."""
        chosen: dict[str, bool | None] = {one.name: one.larger_is_better for one in self.metrics}
        chosen |= dict.fromkeys(self.logged)
        return chosen | {name: USUAL.get(name, False) for name in (self.target.metric, "loss")}

    def meter(self, num_clients: int, add: Add | None = None) -> ClientMeter:
        """Sums of these metrics over this many clients; `add` gets all predictions."""
        return ClientMeter(self, num_clients, add)

    @property
    def pooled(self) -> list[str]:
        """Names of the metrics that are measured over the samples of all clients together.

        Predictions at positions are too many to be held: there it is the metrics whose states add up.
        """
        return [one.name for one in self.metrics if one.adds_up or not self.target.positions]

    def shown(self, prediction: Tensor) -> Tensor:
        """Predictions [..., C] from `Target.mix` as the metrics see them, on the CPU."""
        shown = self.target.shown(prediction.detach().float().cpu())
        return shown if self.target.continuous else shown.clamp(max=1)  # torchmetrics takes values above 1 for logits

    def of_all(self, shown: Tensor, labels: Tensor, owner: Tensor) -> dict[str, float]:
        """Each metric of the samples of several clients together, `<name>_pooled`; {} without samples.

        Args:
            shown: from `shown`, [n, ...].
            labels: [n, ...].
            owner: client of each sample, [n].
        """
        each = [one for one in self.metrics if one.name in self.pooled] if len(owner) else []
        if self.target.positions:
            owner = owner.unsqueeze(1).expand(labels.shape)
        some = self.counted(shown, labels, owner)
        return {f"{one.name}_pooled": one.of_all(*some) for one in each}

    def counted(self, shown: Tensor, labels: Tensor, *others: Tensor) -> list[Tensor]:
        """Predictions [n, …], labels [n, …] and others like labels; of positions [n, L, …] those that count."""
        parts = [shown, labels, *others]
        if self.target.positions:
            parts = [one.flatten(0, 1) for one in parts]
        if self.target.ignored is not None:
            parts = [one[parts[1] != self.target.ignored] for one in parts]
        return parts

    def states(self) -> Tensor:
        """The current client's states of the metrics that add up, [S] float64."""
        return torch.cat([one.state() for one in self.metrics if one.adds_up])

    def of_states(self, states: Tensor) -> dict[str, float]:
        """The metrics that add up over samples of several clients together, `<name>_pooled`, from `states` [n, S]."""
        adding = [one for one in self.metrics if one.adds_up]
        with quiet():
            parts = states.split([len(one.state()) for one in adding], dim=1)
            return {f"{one.name}_pooled": one.of_states(part) for one, part in zip(adding, parts, strict=True)}

    def statistics(self, scores: ClientScores) -> dict[str, float]:
        """The reported statistics over clients, by key: `summarise`, and `client_statistics` of each metric.

        `<name>_undefined` is the number of clients with samples but without a value; other statistics leave them out.
        If it is unknown whether larger is better, there is no worst client. {} if no client has samples.
        """
        results = summarise(scores, self.target.metric)
        for one in self.metrics if results else ():
            column = scores.metrics[one.name]
            defined = column.isfinite()
            weight = scores.samples.masked_fill(~defined, 0)
            results |= client_statistics(column, weight, one.name, larger_is_better=one.larger_is_better)
            results[f"{one.name}_undefined"] = float((scores.held & ~defined).sum())
        for name in self.logged if results else ():
            defined = scores.metrics[name].isfinite()  # a step logs what the steps of other splits do not
            weight = scores.samples.masked_fill(~defined, 0)
            results |= client_statistics(scores.metrics[name], weight, name, larger_is_better=None)
        return results


class ClientMeter:
    """Computes metrics of clients from streamed predictions.

    Args:
        chosen: the metrics.
        num_clients: C.
        add: gets the number of a client, 0 … C − 1, some of its predictions and their labels, or with positions the
            states of its metrics [1, S] and a label that means nothing; None: no collection.
    """

    def __init__(self, chosen: ChosenMetrics, num_clients: int, add: Add | None = None) -> None:
        self._chosen, self._add = chosen, add
        self._values = torch.full((num_clients, len(chosen.metrics)), float("nan"), dtype=torch.float64)
        self._row: int | None = None  # current client
        self._counts = False  # whether it has a sample or position that counts
        self._done: set[int] = set()

    def add(self, rows: Tensor, prediction: Tensor, y: Tensor, mask: Tensor) -> None:
        """Add predictions of clients; all samples of a client come before those of the next.

        Args:
            rows: positions of the clients, [c].
            prediction: from `Target.mix`, [c, N, ...].
            y: labels, [c, N] or [c, N, L].
            mask: 0 for padding, [c, N].
        """
        target, shown = self._chosen.target, self._chosen.shown(prediction)
        labels, held = y.cpu(), mask.cpu() > 0
        with quiet():
            for position, row in enumerate(rows.tolist()):
                self._turn_to(row)
                some, their = self._chosen.counted(*(one[position][held[position]] for one in (shown, labels)))
                self._counts = self._counts or len(their) > 0
                for one in self._chosen.metrics:
                    one.update(some, their)
                if self._add is not None and not target.positions:
                    self._add(row, some, their)

    def values(self) -> Leaves:
        """Values of all clients by the name of the metric, [C] float64; NaN if undefined."""
        with quiet():
            self._turn_to(None)
        return dict(zip((one.name for one in self._chosen.metrics), self._values.unbind(1), strict=True))

    def _turn_to(self, row: int | None) -> None:
        """Store the values of the current client if another one begins."""
        if row == self._row:
            return
        assert row not in self._done, "a client's predictions come before those of the next one"
        if self._row is not None:
            if self._add is not None and self._chosen.target.positions and self._counts:
                self._add(self._row, self._chosen.states()[None], torch.zeros(1, dtype=torch.int64))
            self._values[self._row] = torch.tensor([one.take() for one in self._chosen.metrics], dtype=torch.float64)
            self._done.add(self._row)
        self._row, self._counts = row, False


def _curves() -> tuple[type[torchmetrics.Metric], ...]:
    """Base classes of all ranking metrics, which compare samples of a class with all others."""
    kinds = torchmetrics.classification
    return (
        kinds.BinaryPrecisionRecallCurve, kinds.MulticlassPrecisionRecallCurve, kinds.MultilabelPrecisionRecallCurve
    )  # fmt: skip


def _squaring() -> tuple[type[torchmetrics.Metric], ...]:
    """Metrics that a constant does not change, but the rounding of its square in their sums of squares would."""
    kinds = torchmetrics.regression
    return (
        kinds.R2Score, kinds.ExplainedVariance, kinds.RelativeSquaredError, kinds.PearsonCorrCoef,
        kinds.ConcordanceCorrCoef,
    )  # fmt: skip


def _precisions() -> tuple[type[torchmetrics.Metric], ...]:
    """Ranking metrics that are defined if all samples are of one class."""
    kinds = torchmetrics.classification
    return kinds.BinaryAveragePrecision, kinds.MulticlassAveragePrecision, kinds.MultilabelAveragePrecision


def _spreads() -> tuple[type[torchmetrics.Metric], ...]:
    """Metrics that divide by the spread of labels (the first also of predictions) without NaN for a spread of 0."""
    kinds = torchmetrics.regression
    return kinds.SpearmanCorrCoef, kinds.R2Score, kinds.ExplainedVariance, kinds.RelativeSquaredError


def _shares() -> tuple[type[torchmetrics.Metric], ...]:
    """Class metrics whose micro averages equal accuracy: each error is a miss of one class and a hit of another."""
    kinds = torchmetrics.classification
    return (
        kinds.MulticlassAccuracy, kinds.MulticlassPrecision, kinds.MulticlassRecall, kinds.MulticlassF1Score,
        kinds.MulticlassFBetaScore,
    )  # fmt: skip


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress torchmetrics' warnings about single clients; undefined values are counted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _alone(*_: Any) -> bool:
    return False
