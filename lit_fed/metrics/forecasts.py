"""Metrics of predicted quantiles."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric

from lit_fed.core.forecasting import pinball

__all__ = ["IntervalCoverage", "PinballLoss"]


class _OfQuantiles(Metric):
    """The mean over all values that count of a number for each.

    Args:
        levels: rising levels of the predicted quantiles.
        missing: label of values that do not count; None: all count.
    """

    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, levels: tuple[float, ...], missing: float | None = None) -> None:
        super().__init__()
        self.levels, self.missing = tuple(levels), missing
        for name in ("total", "count"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, predicted: Tensor, labels: Tensor) -> None:
        """Add quantiles [n, S, Q] and labels [n, ...] of S values each."""
        y = labels.reshape(predicted.shape[:-1])
        each = self.of_values(predicted, y).double()
        kept = torch.ones_like(each) if self.missing is None else (y != self.missing).double()
        self.total += (each * kept).sum()
        self.count += kept.sum()

    def of_values(self, predicted: Tensor, y: Tensor) -> Tensor:
        """A number for each value, [n, S]."""
        raise NotImplementedError

    def compute(self) -> Tensor:
        """The mean; NaN without a value."""
        return self.total / self.count


class PinballLoss(_OfQuantiles):
    """The mean pinball loss of all levels, as `sklearn.metrics.mean_pinball_loss` has it for one."""

    higher_is_better = False

    def of_values(self, predicted: Tensor, y: Tensor) -> Tensor:
        return pinball(predicted, y, predicted.new_tensor(self.levels)).mean(-1)


class IntervalCoverage(_OfQuantiles):
    """Share of values between the outer quantiles; right is the difference of their levels."""

    higher_is_better = None

    def of_values(self, predicted: Tensor, y: Tensor) -> Tensor:
        return (predicted[..., 0] <= y) & (y <= predicted[..., -1])
