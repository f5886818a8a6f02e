"""Forecasts: quantiles of labels [n, steps, channels], trained by the pinball loss.

The pinball loss is the negative log-likelihood of the asymmetric Laplace distribution with location q and scale σ,
p(y) = τ(1 − τ)/σ · exp(−ρ_τ((y − q)/σ)), up to the constant −log(τ(1 − τ)/σ). Koenker, Machado. "Goodness of Fit and
Related Inference Processes for Quantile Regression". JASA 94 (1999), Section 3.2; Yu, Moyeed. "Bayesian Quantile
Regression". Statistics & Probability Letters 54 (2001), Equations 2 and 3. So E-steps have a likelihood. With several
levels it is a composite likelihood: the geometric mean of their densities.

Symbols:
    S, Q -> values of one label (steps times channels, in the order of memory); levels
    τ, q -> level; predicted quantile
    ρ_τ(u) = u·(τ − 1[u < 0]) -> pinball loss
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from lit_fed.core.likelihood import Likelihood
from lit_fed.core.types import Leaves
from lit_fed.errors import ConfigError, check_settings

__all__ = ["Quantiles"]

METRICS = "lit_fed.metrics.forecasts"


@dataclass(frozen=True)
class Quantiles(Likelihood):
    """Quantiles of each value of a label: S·Q outputs, with the Q levels of a value adjacent.

    The loss of a sample is the mean of ρ_τ(y − q)/σ over its values and levels. Local steps minimise it. E-steps
    use it as −log p(y | x, θ_m), or with `position_loss: sum` its sum over the values. A mixture predicts
    Σ_m π_m q_m, the average of its components' quantiles (Vincent average), which keeps the levels in order; its loss
    is that of the mixed likelihood. Predicted levels are sorted (Chernozhukov, Fernández-Val, Galichon. "Quantile and
    Probability Curves Without Crossing". Econometrica 78, 2010).

    Args:
        num_classes: S; 0: taken from the training labels.
        levels: increasing levels τ in (0, 1), including 0.5.
        scale: σ > 0; smaller values make E-steps sharper.
        missing: label that marks missing values, such as -999; null: no value is missing.
    """

    levels: tuple[float, ...] = (0.1, 0.5, 0.9)
    scale: float = 1.0
    missing: float | None = None

    metric = "mae"
    scalable = True

    def __post_init__(self) -> None:
        check_settings(self, {"scale": "> 0"}, "--model.target")
        rising = list(self.levels) == sorted(set(self.levels))
        if not (rising and 0.5 in self.levels and self.levels[0] > 0 and self.levels[-1] < 1):
            raise ConfigError(
                f"--model.target.levels is {list(self.levels)}; give rising numbers in (0, 1), with 0.5 among them"
            )

    @property
    def metrics(self) -> Any:  # the instance has the levels
        """Pinball loss of the predicted quantiles, and coverage of the interval between the outer levels."""
        options = {"levels": self.levels, "missing": self.missing}
        return [
            {name: {"class_path": f"{METRICS}.{cls}", "init_args": options}}
            for name, cls in (("pinball", "PinballLoss"), ("coverage", "IntervalCoverage"))
        ]

    @property
    def num_outputs(self) -> int:
        return self.num_classes * len(self.levels)

    @property
    def partly_labelled(self) -> bool:
        return self.missing is not None

    def fitted(self, y: Tensor, num_classes: int | None = None) -> Self:
        return super(Quantiles, replace(self, num_classes=y.shape[1:].numel())).fitted(y)

    def labelled(self, y: Tensor) -> Tensor | None:
        """Mask of values that are not missing, bool [n, S]; None: all."""
        return None if self.missing is None else y.reshape(len(y), -1) != self.missing

    def counted(self, y: Tensor, mask: Tensor) -> Tensor:
        if self.missing is None:
            return mask
        return mask * (y.reshape(*mask.shape, -1) != self.missing).any(-1)

    def num_terms(self, y: Tensor) -> int:
        return y.shape[1:].numel()

    def log_likelihood(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The mean over values and levels of −ρ_τ((y − q)/σ), without the constant."""
        y = self._values(outputs, y)
        each = pinball(self._quantiles(outputs), y, outputs.new_tensor(self.levels)).mean(-1) / self.scale
        return -self._mean(each, y)

    def predict(self, outputs: Tensor) -> Tensor:
        """The quantiles of each value in increasing order, [..., S, Q]."""
        return self._quantiles(outputs).sort(-1).values

    def error(self, predicted: Tensor, y: Tensor) -> Tensor:
        """Mean absolute error of the median."""
        y = y.reshape(*predicted.shape[:-1])
        error = self._mean((self._median(predicted) - y).abs(), y)
        return error if self.label_scale is None else error * self.label_scale[1]

    def compared(self, shown: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Medians and labels of the values that are not missing, [n·S]."""
        median, y = self._median(shown).flatten(), y.flatten()
        return (median, y) if self.missing is None else (median[y != self.missing], y[y != self.missing])

    def columns(self, shown: Tensor) -> Leaves:
        """The median as `prediction`, and the other levels as `q0.1` and so on."""
        others = {f"q{level:g}": column for level, column in zip(self.levels, shown.unbind(-1), strict=True)}
        del others["q0.5"]
        return {"prediction": self._median(shown)} | others

    def _median(self, quantiles: Tensor) -> Tensor:
        return quantiles[..., self.levels.index(0.5)]

    def _quantiles(self, outputs: Tensor) -> Tensor:
        quantiles: Tensor = outputs.unflatten(-1, (self.num_classes, len(self.levels)))
        return quantiles

    def _values(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Labels [..., S] with the leading axes of outputs [..., K]."""
        return y.reshape(*outputs.shape[:-1], self.num_classes)

    def _mean(self, each: Tensor, y: Tensor) -> Tensor:
        """The mean over values that are not missing, [...]; 0 without any."""
        if self.missing is None:
            return each.mean(-1)
        count = y != self.missing
        mean: Tensor = torch.where(count, each, 0).sum(-1) / count.sum(-1).clamp(min=1)
        return mean


def pinball(quantiles: Tensor, y: Tensor, levels: Tensor) -> Tensor:
    """ρ_τ(y − q) of each level, [..., Q].

    Args:
        quantiles: q, [..., Q].
        y: labels [...].
        levels: τ, [Q].

    Example:
        >>> pinball(torch.tensor([[1.0, 2.0]]), torch.tensor([3.0]), torch.tensor([0.5, 0.9])).tolist()
        [[1.0, 0.8999999761581421]]
    """
    rest = y.unsqueeze(-1) - quantiles
    return torch.maximum(levels * rest, (levels - 1) * rest)
