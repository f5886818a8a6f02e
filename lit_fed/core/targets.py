"""Targets of a task: kinds of labels with their log-loss, mixed predictions, and losses of labels for local steps.

`infer_target` chooses one of these from the labels; `--model.target` names any of them or a user-defined `Likelihood`.

Symbols:
    B, M, L, K -> samples, models, positions of a sequence, outputs of the network
    C          -> classes
    y          -> labels [...] with any leading axes: [B], [B, M], with positions [B, L], [B, M, L]; several labels of a
                  sample are a vector of C entries, [..., C]
    outputs    -> of the network, [..., K]
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor
from torch.func import grad
from torch.nn import functional as F  # noqa: N812 - the name everybody knows

from lit_fed.errors import ConfigError

__all__ = [
    "CLASSES", "IGNORED", "Binary", "Criterion", "CrossEntropy", "Loss", "MultiLabel", "Multiclass", "Regression",
    "Sequences", "Target", "VectorRegression", "class_probabilities", "logistic_losses",
    "mixed_log_probabilities", "over_classes",
]  # fmt: skip


@dataclass(frozen=True)
class Target(ABC):
    """A prediction target: kind of label, log-likelihood and prediction.

    Args:
        num_classes: C; 1 if labels are numbers; entries of a vector label; 0: taken from the training labels.

    Attributes:
        label_scale: mean and deviation of the training labels if they are standardised: labels, outputs and loss are
            then of (y − mean)/deviation, and `metric` is in the units of y; None: labels are as they were given.
        scalable: whether labels may be standardised.
        kind: name in checkpoints, which store it with `num_classes` and `positions`.
        metric: second result of `score`: the share of hits (`accuracy`), or an error, where smaller is better.
        metrics: metrics of the clients if `--model.metrics` is not given.
        continuous: labels are real numbers instead of the classes 0 … C − 1.
        positions: labels and outputs have a position axis [B, L]; losses are averaged over it.
        vectors: labels are vectors [B, C] with one entry per output; losses are summed over them.
    """

    num_classes: int = 0
    label_scale: tuple[float, float] | None = field(default=None, init=False, repr=False)

    scalable: ClassVar[bool] = False
    kind: ClassVar[str] = ""
    metric: ClassVar[str] = "accuracy"
    metrics: ClassVar[Any] = None
    continuous: ClassVar[bool] = False
    positions: ClassVar[bool] = False
    vectors: ClassVar[bool] = False

    @property
    def ignored(self) -> int | None:
        """The label of ignored positions; None: no position is ignored."""
        return None

    @property
    def partly_labelled(self) -> bool:
        """Whether some positions or values of a label may be ignored."""
        return self.ignored is not None

    def labelled(self, y: Tensor) -> Tensor | None:
        """Mask of the positions that are not ignored, bool [..., L]; None: all."""
        return None

    def counted(self, y: Tensor, mask: Tensor) -> Tensor:
        """The mask of samples [...], with 0 for a sample whose positions [..., L] are all ignored."""
        labelled = self.labelled(y)
        return mask if labelled is None else mask * labelled.any(-1)

    def queries(self, y: Tensor) -> Tensor:
        """The query of each label, [n] int64, for retrieval metrics; here a client's samples are one query."""
        return torch.zeros(len(y), dtype=torch.int64)

    def num_terms(self, y: Tensor) -> int:
        """Number of terms in the mean that is a sample's loss, if none is ignored."""
        return y.shape[1] if self.positions else 1

    def num_positions(self, y: Tensor, mask: Tensor) -> Tensor:
        """Number of positions not ignored in the samples whose mask [N] is 1, [] float64."""
        labelled = self.labelled(y)
        if labelled is None:
            return mask.sum(dtype=torch.float64) * math.prod(y.shape[1:])
        return (labelled.sum(-1) * mask).sum(dtype=torch.float64)

    @property
    def name(self) -> str:
        """Name of the kind of labels in messages, such as `binary` or `sequences`."""
        return type(self).__name__.lower()

    @property
    def num_outputs(self) -> int:
        """Outputs of the network per sample or position, K."""
        return self.num_classes

    @property
    def num_values(self) -> int:
        """Number of values of a class label, which start at 0; meaningless for continuous labels."""
        return self.num_classes

    def output_shape(self, label_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the network's outputs for one sample with labels of this shape: (K,) or (L, K)."""
        return (*label_shape, self.num_outputs) if self.positions else (self.num_outputs,)

    def fitted(self, y: Tensor, num_classes: int | None = None) -> Self:
        """The target with the sizes of the training labels.

        Args:
            y: training labels [n, ...] as returned by `as_labels`.
            num_classes: number of classes, if the data set declares it.

        Raises:
            ConfigError: if the labels do not suit this target.
        """
        axes = int(self.positions or self.vectors)
        if y.ndim != 1 + axes:
            shapes = {0: "[n]", 1: "[n, L]" if self.positions else "[n, C]"}
            raise ConfigError(
                f"--model.target {type(self).__name__} needs labels of shape {shapes[axes]}, and the training labels "
                f"have shape {list(y.shape)}; {OTHER_TARGET}"
            )
        if self.num_classes and not self.vectors:
            return self
        found = y.shape[1] if self.vectors else num_classes or max(2, int(y.max()) + 1 if y.numel() else 0)
        if self.vectors and self.num_classes not in (0, found):
            raise ConfigError(f"--model.target.num_classes is {self.num_classes}, and labels have {found} entries")
        return replace(self, num_classes=found)

    def as_labels(self, y: Tensor) -> Tensor:
        """Labels in the type of this target: float32 if they are continuous, else int64.

        Raises:
            ConfigError: if class labels are not whole numbers.
        """
        if self.continuous:
            return y.float()
        if y.is_floating_point() and not bool((y == y.round()).all()):
            row = int((y != y.round()).flatten(1 if y.ndim > 1 else 0).nonzero()[0, 0])
            raise ConfigError(
                f"--model.target {type(self).__name__} needs classes, and training label {row} is {y[row].tolist()}; "
                f"{OTHER_TARGET}"
            )
        return y.long()

    @property
    def plain(self) -> tuple[Any, ...]:
        """The target for checkpoints and nodes; other options of a `--model.target` are in the settings."""
        known = self.kind or self.name, self.num_classes, self.positions
        return known if self.ignored is None else (*known, self.ignored)

    @staticmethod
    def from_plain(
        kind: str, num_classes: int, positions: bool, ignored: int | None = None, given: Target | None = None
    ) -> Target:
        """The inverse of `plain`, without importing anything.

        Args:
            kind: see the class.
            num_classes: see the class.
            positions: see the class.
            ignored: label of ignored positions.
            given: the target of `--model.target`, with its class and options.

        Raises:
            ConfigError: if there is no such target, or `given` is of another kind.

        Example:
            >>> Target.from_plain("binary", 2, False), Target.from_plain("multiclass", 5, True)
            (Binary(), Sequences(num_classes=5, ignore_index=None))
        """
        sizes: dict[str, Any] = {"num_classes": num_classes} | ({} if ignored is None else {"ignore_index": ignored})
        if given is not None:
            if given.plain[:3:2] != (kind, positions):
                raise ConfigError(f"labels are {kind}, and --model.target is {given.name}; give the same target")
            return replace(given, **sizes) if fields(given)[0].init else given
        for cls in _subclasses(Target):
            if num_classes and (cls.kind, cls.positions) == (kind, positions) and cls.__module__.startswith("lit_fed."):
                target: Target = cls(**sizes) if fields(cls)[0].init else cls()
                return target
        raise ConfigError(
            f"labels are {kind}{' with positions' if positions else ''}, which this version cannot learn without "
            "--model.target"
        )

    def standardised(self, label_scale: tuple[float, float]) -> Self:
        """The target for labels that are standardised by this mean and deviation."""
        target = replace(self)
        vars(target)["label_scale"] = label_scale  # no option, so no argument of the class
        return target

    def in_units(self, values: Tensor) -> Tensor:
        """Labels or predictions of them in the units in which labels were given, as float64 if they were standardised.

        Their mean may be far larger than their deviation, and float32 would round it off.
        """
        if self.label_scale is None:
            return values
        mean, std = self.label_scale
        return mean + std * values.double()

    def guessing_loss(self, y: Tensor) -> float | None:
        """Mean log-loss of predicting the shares, or the mean, of labels [n, …] for every sample; None: unknown."""
        return None

    def over_positions(self, each: Tensor, y: Tensor) -> Tensor:
        """The mean of numbers [..., L] over the positions of a sample, [...]; without positions, the numbers."""
        return each.mean(-1) if self.positions else each

    def for_models(self, y: Tensor, outputs: Tensor) -> Tensor:
        """A view of the labels for each model with outputs [B, M, K] or [B, M, L, K].

        Args:
            y: with a model axis of length 1 or M, [B, 1] or [B, M, L].
            outputs: outputs of the models.
        """
        return y.expand(outputs.shape if self.vectors else outputs.shape[:-1])

    @abstractmethod
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Log-loss of each sample, [...] without the position axis; classes may be those of `soft_labels`."""

    @abstractmethod
    def residual(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Gradient of the loss of each sample with respect to its outputs, [..., K]."""

    @abstractmethod
    def soft_labels(self, outputs: Tensor, y: Tensor, share: Tensor | float) -> Tensor:
        """Labels interpolated towards another model's prediction: share·y + (1 − share)·prediction."""

    @abstractmethod
    def mix(self, weights: Tensor, outputs: Tensor) -> Tensor:
        """Prediction of the mixture of M models with weights [M], from outputs [B, M, K] or [B, M, L, K].

        Returns:
            Log-probabilities [B, C] or [B, L, C], for several labels [B, C, 2]; or the mean [B, 1] or [B, C].
        """

    @abstractmethod
    def score(self, prediction: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and hit (for `mse`: squared error) of each sample, both [B], from the result of `mix`."""

    def as_outputs(self, prediction: Tensor) -> Tensor:
        """Outputs [B, K] or [B, L, K] of a model that alone would predict this, from the result of `mix`."""
        return prediction

    def shown(self, prediction: Tensor) -> Tensor:
        """Predictions for users, from the result of `mix`: probabilities [B(, L), C], or values [B] or [B, C].

        Those of standardised labels are turned into their units by `in_units`.
        """
        return prediction.exp()

    def _entries(self, outputs: Tensor) -> Tensor:
        """The outputs with the axes of the labels: without the last axis unless labels are vectors."""
        return outputs if self.vectors else outputs[..., 0]


class _Bernoulli(Target):
    """Labels 0 or 1, each with a logit log p(1)/p(0); soft labels are probabilities of 1."""

    def guessing_loss(self, y: Tensor) -> float | None:
        share = y.double().mean(0)
        return float(torch.special.entr(torch.stack([share, 1 - share])).sum())

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        losses = logistic_losses(self._entries(outputs), y)
        return losses.sum(-1) if self.vectors else losses

    def residual(self, outputs: Tensor, y: Tensor) -> Tensor:
        return torch.sigmoid(outputs) - (y if self.vectors else y.unsqueeze(-1))

    def soft_labels(self, outputs: Tensor, y: Tensor, share: Tensor | float) -> Tensor:
        return share * y.to(outputs.dtype) + (1 - share) * torch.sigmoid(self._entries(outputs))

    def mix(self, weights: Tensor, outputs: Tensor) -> Tensor:
        """Log-probabilities of 0 and 1, [B, ..., 2]; mixed probabilities are at least the smallest normal number."""
        return mixed_log_probabilities(weights.unsqueeze(-1) if self.vectors else weights, self._entries(outputs))

    def as_outputs(self, prediction: Tensor) -> Tensor:
        logit = prediction[..., 1] - prediction[..., 0]
        return logit if self.vectors else logit.unsqueeze(-1)

    def score(self, prediction: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Log-loss and hit; ties predict 0. For vectors, the sum of the losses and the share of hits."""
        negative, positive = prediction.unbind(-1)
        loss, hit = -torch.where(y > 0, positive, negative), ((positive > negative) == (y > 0)).to(positive.dtype)
        return (loss.sum(-1), hit.mean(-1)) if self.vectors else (loss, hit)


class _Gaussian(Target):
    """Real numbers ŷ with unit variance; soft labels are means."""

    metric = "mse"
    continuous = True

    def guessing_loss(self, y: Tensor) -> float | None:
        return 0.5 * float(y.double().var(0, correction=0).sum())

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        square = (self._entries(outputs) - y).square()
        return 0.5 * (square.sum(-1) if self.vectors else square)

    def residual(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs - (y if self.vectors else y.unsqueeze(-1))

    def soft_labels(self, outputs: Tensor, y: Tensor, share: Tensor | float) -> Tensor:
        return share * y + (1 - share) * self._entries(outputs)

    def mix(self, weights: Tensor, outputs: Tensor) -> Tensor:
        """The mixed mean, [B, 1] or [B, C]."""
        return (weights.view(1, -1, 1) * outputs).sum(1)

    def score(self, prediction: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Half the squared distance, and the squared error; for vectors the mean of the squared errors."""
        square = (self._entries(prediction) - y).square()
        return (0.5 * square.sum(-1), square.mean(-1)) if self.vectors else (0.5 * square, square)

    def shown(self, prediction: Tensor) -> Tensor:
        """The predicted values, [B] or [B, C]."""
        return self._entries(prediction)


@dataclass(frozen=True)
class Binary(_Bernoulli):
    """Classes 0 and 1, and one logit: log p(1)/p(0). Soft labels are probabilities of class 1, [...]."""

    num_classes: int = field(default=2, init=False, repr=False)

    kind = "binary"

    @property
    def num_outputs(self) -> int:
        return 1


@dataclass(frozen=True)
class Multiclass(Target):
    """Classes 0 … C − 1, and a logit for each. Soft labels are probabilities of all of them, [..., C]."""

    kind = "multiclass"

    def guessing_loss(self, y: Tensor) -> float | None:
        labelled = self.labelled(y)
        counts = torch.bincount((y if labelled is None else y[labelled]).flatten()).double()
        return float(torch.special.entr(counts / counts.sum()).sum())

    def for_models(self, y: Tensor, outputs: Tensor) -> Tensor:
        """Soft labels [B, 1, C] have the same axis of classes as outputs."""
        return y.expand(outputs.shape if y.is_floating_point() else outputs.shape[:-1])

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Cross-entropies."""
        log_prob = over_classes(torch.log_softmax, outputs)
        if y.is_floating_point():
            return -(y * log_prob).sum(-1)
        # same numbers as F.cross_entropy, whose decomposition under vmap loads SymPy, which takes a second
        return -log_prob.gather(-1, y.unsqueeze(-1)).squeeze(-1)

    def residual(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The predicted probabilities minus y as probabilities."""
        labels = y if y.is_floating_point() else _one_hot(y, self.num_classes, outputs)
        return over_classes(torch.softmax, outputs) - labels

    def soft_labels(self, outputs: Tensor, y: Tensor, share: Tensor | float) -> Tensor:
        """Probabilities [..., C]."""
        return share * _one_hot(y, self.num_classes, outputs) + (1 - share) * over_classes(torch.softmax, outputs)

    def mix(self, weights: Tensor, outputs: Tensor) -> Tensor:
        """Log-probabilities [B, C], with positions [B, L, C]."""
        shape = (1, -1, *[1] * (outputs.ndim - 2))
        return torch.logsumexp(weights.log().view(shape) + over_classes(torch.log_softmax, outputs), dim=1)

    def score(self, prediction: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Log-loss and hit; ties predict the first class."""
        loss = -prediction.gather(-1, y.unsqueeze(-1)).squeeze(-1)
        return loss, (prediction.argmax(-1) == y).to(loss.dtype)


IGNORED = -100
"""Label of positions that do not count, as in PyTorch."""


@dataclass(frozen=True)
class Sequences(Multiclass):
    """A class for each position of a sequence; a sample's loss and hit are the means over its labelled positions.

    A sample without a labelled position counts nowhere. Client weights count the others, unless `--model.weighting
    positions` is given.

    Args:
        num_classes: C; 0: taken from the training labels.
        ignore_index: label of ignored positions; null: -100 if some client's labels contain it.
    """

    ignore_index: int | None = None

    positions = True

    @property
    def ignored(self) -> int | None:
        return self.ignore_index

    def labelled(self, y: Tensor) -> Tensor | None:
        """Positions whose label is not `ignore_index`; for soft labels, those that are not all 0."""
        if self.ignore_index is None:
            return None
        return y.sum(-1) > 0 if y.is_floating_point() else y != self.ignore_index

    def fitted(self, y: Tensor, num_classes: int | None = None) -> Self:
        kept = y if self.ignore_index is None else torch.where(y == self.ignore_index, 0, y)
        return super().fitted(kept, num_classes)

    def _known(self, y: Tensor) -> Tensor:
        """Labels with class 0 at ignored positions."""
        labelled = self.labelled(y)
        return y if labelled is None or y.is_floating_point() else torch.where(labelled, y, 0)

    def over_positions(self, each: Tensor, y: Tensor) -> Tensor:
        labelled = self.labelled(y)
        if labelled is None:
            return each.mean(-1)
        return torch.where(labelled, each, 0).sum(-1) / labelled.sum(-1).clamp(min=1)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropies."""
        return self.over_positions(self.position_losses(outputs, y), y)

    def position_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy of each position, [...]; arbitrary at ignored positions."""
        return super().losses(outputs, self._known(y))

    def residual(self, outputs: Tensor, y: Tensor) -> Tensor:
        """1/L times the gradients of the positions."""
        each, labelled = super().residual(outputs, self._known(y)), self.labelled(y)
        if labelled is None:
            return each / outputs.shape[-2]
        return torch.where(labelled.unsqueeze(-1), each, 0) / labelled.sum(-1).clamp(min=1)[..., None, None]

    def soft_labels(self, outputs: Tensor, y: Tensor, share: Tensor | float) -> Tensor:
        """Probabilities [..., L, C]; all 0 at ignored positions."""
        soft, labelled = super().soft_labels(outputs, y, share), self.labelled(y)
        return soft if labelled is None else soft * labelled.unsqueeze(-1)

    def score(self, prediction: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Mean log-loss and share of hits."""
        loss, hit = super().score(prediction, self._known(y))
        return self.over_positions(loss, y), self.over_positions(hit, y)


@dataclass(frozen=True)
class Regression(_Gaussian):
    """A number ŷ with unit variance: the log-loss is ½(ŷ − y)² up to a constant, which is omitted."""

    num_classes: int = field(default=1, init=False, repr=False)

    scalable = True
    kind = "regression"

    def score(self, prediction: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        loss, square = super().score(prediction, y)
        return loss, square if self.label_scale is None else square * self.label_scale[1] ** 2


@dataclass(frozen=True)
class MultiLabel(_Bernoulli):
    """C labels per sample, each 0 or 1 with a logit: independent Bernoulli variables, given the inputs.

    A sample's likelihood is the product over its labels, p(y | x, θ) = Π_c p_c^y_c · (1 − p_c)^(1 − y_c). Its log-loss
    is the sum of the C logistic losses, not the mean, so an E-step weighs components by the joint likelihood of all
    labels of a sample. Gradients grow with C.

    Labels that are independent in each component are dependent in a mixture. A mixture predicts the marginal of each
    label, Σ_m π_m p_mc. Evaluations report the sum over labels of the log-losses of these marginals; with one component
    this is the joint log-loss. The accuracy is the share of correct labels, not of samples with all labels correct.
    Soft labels are probabilities of 1, [..., C].

    Args:
        num_classes: C.
    """

    kind = "multilabel"
    vectors = True

    @property
    def num_values(self) -> int:
        return 2

    def shown(self, prediction: Tensor) -> Tensor:
        """The probability of each label [B, C]; they need not sum to 1."""
        return prediction[..., 1].exp()


@dataclass(frozen=True)
class VectorRegression(_Gaussian):
    """C numbers per sample, ŷ, each with unit variance: the log-loss is ½‖ŷ − y‖² up to a constant, which is omitted.

    The loss is the sum over entries, since their likelihoods multiply; the metric `mse` is the mean.

    Args:
        num_classes: C, the number of entries of a label.
    """

    kind = "vector_regression"
    vectors = True


OTHER_TARGET = (
    "give another --model.target: Binary, Multiclass, Sequences (a class for each position), MultiLabel, Regression, "
    "VectorRegression, Poisson (counts), LogNormal (amounts), or a Likelihood of your own"
)


def _subclasses(parent: type[Any]) -> Iterator[type[Any]]:
    """All subclasses of a class, each ahead of its own subclasses."""
    for cls in parent.__subclasses__():
        yield cls
        yield from _subclasses(cls)


# ---------------------------------------------------------------------- arithmetic of logits
def over_classes(function: Callable[[Tensor, int], Tensor], outputs: Tensor) -> Tensor:
    """`torch.softmax` or `torch.log_softmax` over the last axis, faster if samples are contiguous in memory.

    PyTorch processes rows of few classes one by one, but vectorises over long rows of samples: twenty times faster.
    """
    if outputs.ndim > 1 and outputs.stride(0) == 1 < outputs.stride(-1):
        return function(outputs.movedim(0, -1), -2).movedim(-1, 0)
    return function(outputs, -1)


def logistic_losses(logit: Tensor, y: Tensor) -> Tensor:
    """Log-loss of each label (0, 1 or a probability of 1) under logits log p(1)/p(0); all [...]."""
    if y.is_floating_point():
        return -y * F.logsigmoid(logit) - (1 - y) * F.logsigmoid(-logit)
    one = y[..., :1] if y.ndim and not y.stride(-1) else y  # labels that all models share
    return -_log_sigmoid(logit * torch.where(one > 0, 1.0, -1.0))


def _log_sigmoid(logit: Tensor) -> Tensor:
    """`F.logsigmoid` in the memory layout of its input; PyTorch would first transpose inputs with samples last."""
    if logit.ndim > 1 and logit.stride(0) == 1 < logit.stride(-1):
        return F.logsigmoid(logit.movedim(0, -1)).movedim(-1, 0)
    return F.logsigmoid(logit)


def mixed_log_probabilities(weights: Tensor, logit: Tensor) -> Tensor:
    """Log-probabilities of 0 and 1, [B, ..., 2], under a mixture of logits [B, M, ...] with broadcast weights."""
    if logit.shape[1] == 1:
        both = torch.stack([F.logsigmoid(-logit[:, 0]), F.logsigmoid(logit[:, 0])])
    else:  # two sums of probabilities are exact on both sides and far cheaper than two log-sum-exps
        mixed = torch.stack([(weights * torch.sigmoid(part)).sum(1) for part in (-logit, logit)])
        both = mixed.clamp(min=torch.finfo(mixed.dtype).tiny).log()
    return both.movedim(0, -1)


# ---------------------------------------------------------------------- other losses for local steps
CLASSES = ("binary", "multiclass", "sequences", "segmentation")
"""Names of the targets that have classes, of which a sample has one."""

INVERSE_FREQUENCY = "inverse_frequency"
"""Weights of classes that are learned from the training labels."""


class Loss(ABC):
    """A loss that local steps minimise in place of the log-loss of a sample.

    It is used in training only: in the gradients of local steps, exact solves and adaptation before serving. The
    E-step of a mixture, the choice of a cluster, validation and test keep the log-loss. A weighted or smoothed loss is
    not −log p(y | x, θ) of any distribution over labels: exp(−loss) would be no likelihood, and responsibilities from
    it no posterior. A mixture's M-step then minimises Σ q·loss instead of the expected log-likelihood, so the
    likelihood need not grow.

    Subclasses are frozen dataclasses of hyper-parameters.

    Attributes:
        in_e_step: use the loss also to compare models, as in the E-step of a mixture.
        counts_classes: the loss needs the number of training labels of each class.
    """

    in_e_step: bool = False
    counts_classes: bool = False

    def __repr__(self) -> str:
        """Identity compared by checkpoints; a dataclass includes its hyper-parameters."""
        return type(self).__name__

    @abstractmethod
    def check(self, target: Target) -> None:
        """Refuse labels that do not suit this loss.

        Raises:
            ConfigError: naming the labels, or the option that does not fit them.
        """

    def fitted(self, class_counts: Tensor | None) -> Loss:
        """The loss with its weights; `class_counts` is None unless it `counts_classes`.

        Args:
            class_counts: training labels of each class, of all clients together, [C] int64.
        """
        return self

    @abstractmethod
    def losses(self, target: Target, outputs: Tensor, y: Tensor) -> Tensor:
        """Loss of each sample, [...] without the position axis; must run under `torch.func.vmap`."""

    def residual(self, target: Target, outputs: Tensor, y: Tensor) -> Tensor:
        """Gradient of the loss of each sample with respect to its outputs, [..., K]."""
        gradient: Tensor = grad(lambda given: self.losses(target, given, y).sum())(outputs)
        return gradient


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Cross-entropy with class weights and label smoothing, as in `torch.nn.functional.cross_entropy`.

    A sample's loss is −Σ_c w_c·y'_c·log p_c with y' = (1 − ε)·y + ε/C, averaged over the positions of a sequence. The
    mean over a batch divides by the number of samples, not by the sum of their weights, so a sample of class c counts
    w_c times in every batch and client.

    Args:
        weight: w_c ≥ 0 of each class, in the order of the labels; or `inverse_frequency`, min(1, n/(C·n_c)) for n_c of
            the n training labels of all clients, so that a class without a label has weight 1; null: all 1.
        label_smoothing: ε, the share of a label that is spread evenly over all classes, in [0, 1).
        in_e_step: use this loss also in the E-step of a mixture and in the choice of a cluster, as the official code
            of FedEM does for Shakespeare. The responsibilities are then no posterior.
    """

    weight: tuple[float, ...] | Literal["inverse_frequency"] | None = None
    label_smoothing: float = 0.0
    in_e_step: bool = field(default=False, repr=False)  # checkpoints compare the target separately

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(f"--model.loss.label_smoothing is {self.label_smoothing}; give a number in [0, 1)")
        weights = self.weight
        if weights is None or weights == INVERSE_FREQUENCY:
            return
        if isinstance(weights, str) or not (all(0 <= one < math.inf for one in weights) and any(weights)):
            raise ConfigError(
                f"--model.loss.weight is {weights if isinstance(weights, str) else list(weights)}; give a number >= 0 "
                f"for each class, one of them above 0, or {INVERSE_FREQUENCY}"
            )

    @property
    def counts_classes(self) -> bool:  # type: ignore[override]
        return self.weight == INVERSE_FREQUENCY

    def fitted(self, class_counts: Tensor | None) -> CrossEntropy:
        """The loss with weights from these counts, if `weight` is `inverse_frequency`.

        Example:
            >>> CrossEntropy("inverse_frequency").fitted(torch.tensor([6, 2, 0])).weight
            (0.4444444444444444, 1.0, 1.0)
        """
        if class_counts is None or not self.counts_classes:
            return self
        even = int(class_counts.sum()) / len(class_counts)
        return replace(self, weight=tuple(min(1.0, even / max(count, 1)) for count in class_counts.tolist()))

    def check(self, target: Target) -> None:
        """Refuse labels without classes, and a number of weights other than that of the classes.

        Raises:
            ConfigError: naming the labels or the numbers.
        """
        if target.name not in CLASSES:
            raise ConfigError(
                f"--model.loss CrossEntropy is for labels that are classes, and these are {target.name}; leave it out"
            )
        if isinstance(self.weight, tuple) and len(self.weight) != target.num_classes:
            raise ConfigError(
                f"--model.loss.weight has {len(self.weight)} numbers, and there are {target.num_classes} classes; give "
                "one for each"
            )

    def losses(self, target: Target, outputs: Tensor, y: Tensor) -> Tensor:
        """Weighted cross-entropies to the smoothed labels."""
        if target.name == "binary":
            logit, num_classes = outputs[..., 0], 2
            log_prob = torch.stack([F.logsigmoid(-logit), F.logsigmoid(logit)], -1)
            positive = y.to(outputs.dtype)
            labels = torch.stack([1 - positive, positive], -1)
        else:
            num_classes = target.num_classes
            log_prob = over_classes(torch.log_softmax, outputs)
            labels = class_probabilities(target, y, outputs)
        labels = (1 - self.label_smoothing) * labels + self.label_smoothing / num_classes
        if isinstance(self.weight, tuple):
            labels = labels * outputs.new_tensor(self.weight)
        each = -(labels * log_prob).sum(-1)
        return target.over_positions(each, y)


def class_probabilities(target: Target, y: Tensor, outputs: Tensor) -> Tensor:
    """Labels as probabilities of classes, [..., C]; all 0 at ignored positions."""
    return y if y.is_floating_point() else _one_hot(y, target.num_classes, outputs)


def _one_hot(y: Tensor, num_classes: int, like: Tensor) -> Tensor:
    return (y.unsqueeze(-1) == torch.arange(num_classes, device=y.device)).to(like.dtype)


@dataclass(frozen=True)
class Criterion:
    """A loss combined with the target of its labels.

    Args:
        loss: the loss.
        target: the target.

    Raises:
        ConfigError: if the loss does not suit these labels.
    """

    loss: Loss
    target: Target

    def __post_init__(self) -> None:
        """Refuse labels that do not suit the loss."""
        self.loss.check(self.target)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Loss of each sample, [...]."""
        return self.loss.losses(self.target, outputs, y)

    def residual(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Gradient of the loss of each sample with respect to its outputs, [..., K]."""
        return self.loss.residual(self.target, outputs, y)
