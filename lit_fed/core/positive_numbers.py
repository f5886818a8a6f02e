"""Targets of positive numbers: counts, and amounts whose errors are factors."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_fed.core.likelihood import Likelihood
from lit_fed.errors import ConfigError

__all__ = ["LogNormal", "Poisson"]


class _PositiveNumber(Likelihood):
    """A label of one positive number, with one output: the logarithm of what is predicted."""

    num_outputs = 1

    def check(self, y: Tensor) -> None:
        """Refuse labels of another shape, and numbers that are not legal."""
        wrong = ~self.legal(y)
        if y.ndim > 1 or bool(wrong.any()):
            shown = f"have shape {list(y.shape)}" if y.ndim > 1 else f"hold {float(y[wrong][0]):g}"
            raise ConfigError(
                f"--model.target {self.name} needs {self.legal_numbers}, and the training labels {shown}; correct "
                "them, or give --model.target Regression"
            )

    legal_numbers: str

    @abstractmethod
    def legal(self, y: Tensor) -> Tensor:
        """Whether labels are legal numbers, [...] bool."""

    def predict(self, outputs: Tensor) -> Tensor:
        """The exponential of the output."""
        return outputs[..., 0].exp()


@dataclass(frozen=True)
class Poisson(_PositiveNumber):
    """A count y of events with the output log λ: log p(y) = y·log λ − λ − log y!, so that E y = λ.

    `error` is the unit deviance, 2·(y·log(y/λ) − y + λ), whose mean is 0 for perfect predictions.
    """

    metric = "deviance"
    legal_numbers = "counts 0, 1, 2, …, one for each sample"

    def legal(self, y: Tensor) -> Tensor:
        return (y >= 0) & (y == y.round())

    def log_likelihood(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The log-probability of the count."""
        log_rate = outputs[..., 0]
        return y * log_rate - log_rate.exp() - torch.lgamma(y + 1)

    def residual(self, outputs: Tensor, y: Tensor) -> Tensor:
        """λ − y."""
        return outputs.exp() - y.unsqueeze(-1)

    def error(self, predicted: Tensor, y: Tensor) -> Tensor:
        """The unit deviance."""
        deviance: Tensor = 2 * (torch.special.xlogy(y, y / predicted) - y + predicted)
        return deviance

    def guessing_loss(self, y: Tensor) -> float | None:
        y = y.double()
        rate = y.mean()
        return float(rate - torch.special.xlogy(rate, rate) + torch.lgamma(y + 1).mean())


@dataclass(frozen=True)
class LogNormal(_PositiveNumber):
    """An amount y > 0, such as a cost or a concentration, with log y normal about the output, of unit variance.

    Its log-loss is ½(log y − output)², up to terms without the output. Predicts the median, exp(output).
    """

    metric = "msle"
    legal_numbers = "numbers above 0, one for each sample"

    def legal(self, y: Tensor) -> Tensor:
        return y > 0

    def log_likelihood(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Minus half the squared distance of the logarithms."""
        return -0.5 * (y.log() - outputs[..., 0]).square()

    def residual(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The output minus log y."""
        return outputs - y.log().unsqueeze(-1)

    def error(self, predicted: Tensor, y: Tensor) -> Tensor:
        """The squared distance of the logarithms."""
        return (predicted.log() - y.log()).square()

    def guessing_loss(self, y: Tensor) -> float | None:
        return 0.5 * float(y.double().log().var(correction=0))
