"""Median: the middle of all clients at each number of the model.

Yin, Chen, Kannan, Bartlett. "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates". ICML 2018.
https://arxiv.org/abs/1803.01498, Definition 1.

Deviations:
    With weights it is the smallest number up to which half of the weight lies; with equal weights and an even number of
    clients the mean of the two in the middle.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_fed.core.aggregation.base import CoordinateRule

__all__ = ["Median"]


@dataclass(frozen=True)
class Median(CoordinateRule):
    """The median at each number of the model."""

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        self.check()

    def fewest(self, num_attackers: int) -> int:
        """More than half have to be honest."""
        return 2 * num_attackers + 1

    def at_each(self, piece: Tensor, weights: Tensor, num_attackers: int) -> tuple[Tensor, Tensor]:
        """The number in the middle, or the mean of the two; a row counts where it is one of them."""
        ordered, order = piece.sort(0)
        if bool((weights == weights[0]).all()):
            low, high = (len(piece) - 1) // 2, len(piece) // 2
            value = (ordered[low] + ordered[high]) / 2
            middle = torch.zeros_like(piece)
            middle.scatter_(0, order[low : low + 1], 1.0).scatter_(0, order[high : high + 1], 1.0)
            return value, middle
        place = (weights[order].cumsum(0) >= weights.sum() / 2).int().argmax(0, keepdim=True)
        return ordered.gather(0, place)[0], torch.zeros_like(piece).scatter_(0, order.gather(0, place), 1.0)
