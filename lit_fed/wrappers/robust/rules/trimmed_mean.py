"""TrimmedMean: the coordinatewise mean without the smallest and the largest values.

Yin, Chen, Kannan, Bartlett. "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates". ICML 2018.
https://arxiv.org/abs/1803.01498, Definition 2.

Symbols:
    β·m -> trim    values that are dropped at either end, b below
Deviations:
    b is a number of clients; the paper takes a share of them. The remaining values are weighted.
"""

from dataclasses import dataclass
from functools import reduce

from torch import Tensor

from lit_fed.wrappers.robust.rules.base import CoordinateRule
from lit_fed.wrappers.robust.rules.rows import sorted_rows, within

__all__ = ["TrimmedMean"]


@dataclass(frozen=True)
class TrimmedMean(CoordinateRule):
    """The coordinatewise mean without the b smallest and the b largest values.

    Args:
        trim: b; null: the number of attackers, or a fifth of the clients if unknown.
    """

    trim: int | None = None

    only_slows_minorities = True

    ranges = {"trim": ">= 0"}

    def against(self, num_attackers: int) -> int:
        """B."""
        return num_attackers if self.trim is None else self.trim

    def fewest(self, num_attackers: int) -> int:
        """At least one must be left."""
        return 2 * num_attackers + 1

    def at_each(self, piece: Tensor, weights: Tensor, num_attackers: int) -> tuple[Tensor, Tensor]:
        """The mean of the remaining numbers, which count as used."""
        b, m = num_attackers, len(piece)
        if bool((weights == weights[0]).all()):
            left = sorted_rows(piece)[b : m - b]
            return reduce(Tensor.add, left) / len(left), within(piece, left[0], left[-1])
        ordered, order = piece.sort(0)
        ordered, weighed = ordered[b : m - b], weights[order[b : m - b]]
        return (ordered * weighed).sum(0) / weighed.sum(0), within(piece, ordered[0], ordered[-1])
