"""GeometricMedian: the point with the smallest sum of distances from all clients' changes (RFA).

Pillutla, Kakade, Harchaoui. "Robust Aggregation for Federated Learning". IEEE Transactions on Signal Processing 2022.
https://arxiv.org/abs/1912.13445, Algorithm 2 (smoothed Weiszfeld).

Symbols:
    R   -> iterations     passes
    ν   -> smoothing      minimum distance
    α_i -> weights / Σ    share of client i
    z   -> sums           the point, as a sum of rows
Deviations:
    The paper leaves the starting point in the hull of the changes open: here their mean. The code of Karimireddy, He,
    Jaggi (ICLR 2022, https://arxiv.org/abs/2006.09365) starts from zero, which favours attackers with short changes:
    `start`. The cost of a pass is negligible beside the inner products of the rows.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lit_fed.wrappers.robust.rules.base import WholeRowRule
from lit_fed.wrappers.robust.rules.rows import distances_from

__all__ = ["GeometricMedian"]


@dataclass(frozen=True)
class GeometricMedian(WholeRowRule):
    """The geometric median of changes; honest clients need more than half of the weight.

    Each pass reduces the influence of distant changes by about the number of clients: against very long ones, more
    passes than the paper's three are needed.

    Args:
        iterations: R, passes; each weights clients by the inverse of their distance from the last point.
        smoothing: ν, minimum distance.
        start: the first point: the mean of the changes (`mean`), or the model that the server sent (`zero`).
    """

    iterations: int = 3
    smoothing: float = 1e-6
    start: Literal["mean", "zero"] = "mean"

    ranges = {"iterations": ">= 1", "smoothing": "> 0"}

    def fewest(self, num_attackers: int) -> int:
        """More than half must be honest."""
        return 2 * num_attackers + 1

    def coefficients(self, gram: Tensor, weights: Tensor, num_attackers: int) -> tuple[Tensor, Tensor]:
        """R times z <- ΣβX/Σβ with β_i = α_i/max(ν, ‖z − X_i‖); shares are weights relative to the mean's."""
        shares = weights / weights.sum()
        sums = shares if self.start == "mean" else torch.zeros_like(shares)
        for _ in range(self.iterations):
            sums = shares / distances_from(gram, sums).clamp(min=self.smoothing)
            sums = sums / sums.sum()
        return sums, (sums / shares).clamp(max=1)
