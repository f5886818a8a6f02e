"""Median: the coordinatewise median of the clients' changes.

Yin, Chen, Kannan, Bartlett. "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates". ICML 2018.
https://arxiv.org/abs/1803.01498, Definition 1.

Deviations:
    With weights it is the smallest number that reaches half of the total weight; with equal weights and an even number
    of clients the mean of the two middle ones.
"""

from dataclasses import dataclass

from torch import Tensor

from lit_fed.wrappers.robust.rules.base import CoordinateRule
from lit_fed.wrappers.robust.rules.rows import sorted_rows

__all__ = ["Median"]


@dataclass(frozen=True)
class Median(CoordinateRule):
    """The coordinatewise median; more than half of the clients must be honest."""

    def fewest(self, num_attackers: int) -> int:
        """More than half must be honest."""
        return 2 * num_attackers + 1

    def at_each(self, piece: Tensor, weights: Tensor, num_attackers: int) -> tuple[Tensor, Tensor]:
        """The middle number, or the mean of the two; the middle numbers count as used."""
        if bool((weights == weights[0]).all()):
            ordered = sorted_rows(piece)
            low, high = ordered[(len(piece) - 1) // 2], ordered[len(piece) // 2]
            return (low + high) / 2, (piece == low) | (piece == high)
        sorted_, order = piece.sort(0)
        place = (weights[order].cumsum(0) >= weights.sum() / 2).int().argmax(0, keepdim=True)
        value = sorted_.gather(0, place)[0]
        return value, piece == value
