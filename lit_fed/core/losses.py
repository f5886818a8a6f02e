"""Losses that local steps minimise in place of the log-loss.

Symbols:
    C, K    -> classes, outputs of the network
    y       -> labels [...]; soft ones as `Target.soft_labels` gives them
    outputs -> of the network, [..., K]
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad
from torch.nn import functional as F  # noqa: N812 - the name everybody knows

from lit_fed.core.logits import over_classes
from lit_fed.core.targets import Target
from lit_fed.errors import ConfigError

__all__ = ["Criterion", "CrossEntropy", "Loss"]

CLASSES = ("binary", "multiclass", "sequences")
"""Names of the targets that have classes, of which a sample has one."""


class Loss(ABC):
    """What local steps minimise in place of the log-loss of a sample.

    It is for training alone: the gradients of local steps, exact solves and the adaptation of clients before they are
    served. Everything that asks how probable a label is takes the log-loss as it was: the E-step of a mixture, the
    choice of a cluster, validation and test. A weighted or smoothed loss is no −log p(y | x, θ) of any distribution
    over labels, so that exp(−loss) would be no likelihood, and responsibilities from it no posterior. A mixture's
    M-step then minimises Σ q·loss instead of the expected log-likelihood, so that the likelihood need not grow.

    Subclasses are frozen dataclasses of hyper-parameters.
    """

    def __repr__(self) -> str:
        """What checkpoints compare; a dataclass also says its hyper-parameters."""
        return type(self).__name__

    @abstractmethod
    def check(self, target: Target) -> None:
        """Refuse labels that it is not for.

        Raises:
            ConfigError: naming the labels, or the option that does not fit them.
        """

    @abstractmethod
    def losses(self, target: Target, outputs: Tensor, y: Tensor) -> Tensor:
        """Loss of each sample, [...] without the position axis; must run under `torch.func.vmap`."""

    def residual(self, target: Target, outputs: Tensor, y: Tensor) -> Tensor:
        """Gradient of the loss of each sample in its outputs, [..., K]."""
        gradient: Tensor = grad(lambda given: self.losses(target, given, y).sum())(outputs)
        return gradient


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Cross-entropy with weights of classes and smoothed labels, as `torch.nn.functional.cross_entropy` has them.

    A sample's loss is −Σ_c w_c·y'_c·log p_c with y' = (1 − ε)·y + ε/C, the mean over the positions of a sequence. The
    mean over a batch divides by the number of samples, not by the sum of their weights: samples of a rare class then
    count w_c times wherever they are, in small batches and clients too.

    Args:
        weight: w_c ≥ 0 of each class, in the order of the labels; null: all 1.
        label_smoothing: ε, the share of a label that is spread evenly over all classes, in [0, 1).
    """

    weight: tuple[float, ...] | None = None
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(f"--model.loss.label_smoothing is {self.label_smoothing}; give a number in [0, 1)")
        weights = self.weight
        if weights is not None and not (all(0 <= one < math.inf for one in weights) and any(weights)):
            raise ConfigError(
                f"--model.loss.weight is {list(weights)}; give a number >= 0 for each class, one of them above 0"
            )

    def check(self, target: Target) -> None:
        """Refuse labels without classes, and another number of weights than classes.

        Raises:
            ConfigError: naming the labels or the numbers.
        """
        if target.name not in CLASSES:
            raise ConfigError(
                f"--model.loss CrossEntropy is for labels that are classes, and these are {target.name}; leave it out"
            )
        if self.weight is not None and len(self.weight) != target.num_classes:
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
            labels = y if y.is_floating_point() else _one_hot(y, num_classes, outputs)
        labels = (1 - self.label_smoothing) * labels + self.label_smoothing / num_classes
        if self.weight is not None:
            labels = labels * outputs.new_tensor(self.weight)
        each = -(labels * log_prob).sum(-1)
        return each.mean(-1) if target.positions else each


def _one_hot(y: Tensor, num_classes: int, like: Tensor) -> Tensor:
    return (y.unsqueeze(-1) == torch.arange(num_classes, device=y.device)).to(like.dtype)


@dataclass(frozen=True)
class Criterion:
    """A loss for labels of one kind.

    Args:
        loss: the loss.
        target: what is predicted.

    Raises:
        ConfigError: if the loss is not for these labels.
    """

    loss: Loss
    target: Target

    def __post_init__(self) -> None:
        """Refuse labels that the loss is not for."""
        self.loss.check(self.target)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Loss of each sample, [...]."""
        return self.loss.losses(self.target, outputs, y)

    def residual(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Gradient of the loss of each sample in its outputs, [..., K]."""
        return self.loss.residual(self.target, outputs, y)
