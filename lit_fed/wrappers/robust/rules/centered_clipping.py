"""CenteredClipping: the mean of clients' differences from the last result, each clipped to a norm.

Karimireddy, He, Jaggi. "Learning from History for Byzantine Robust Optimization". ICML 2021.
https://arxiv.org/abs/2012.10333, "centered clipping".

Symbols:
    v   -> last          starting point: the result of the previous round
    τ_l -> clip_norm     largest norm of a difference, τ below
    L   -> iterations
Deviations:
    The rule aggregates changes of models after local training, the paper momenta of gradients: a radius for gradients
    must be multiplied by the learning rate and the number of local steps.
    Running statistics start from the broadcast ones. A result of another phase of the same round counts as the last
    one. The differences of the first round are the changes themselves.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lit_fed.wrappers.robust.rules.base import WholeRowRule
from lit_fed.wrappers.robust.rules.rows import distances_from

__all__ = ["CenteredClipping"]


@dataclass(frozen=True)
class CenteredClipping(WholeRowRule):
    """The mean of differences from a centre, clipped to norm τ; the plain mean if all are shorter.

    Args:
        clip_norm: τ, in units of changes of models.
        iterations: L, number of times that the result becomes the centre of another mean.
        start: the first centre: the result of the last round (`last`), or the model that the server sent (`zero`).
    """

    clip_norm: float = 10.0
    iterations: int = 1
    start: Literal["last", "zero"] = "last"

    ranges = {"clip_norm": "> 0", "iterations": ">= 1"}

    @property
    def starts_from_last(self) -> bool:  # type: ignore[override]
        """Whether it starts from the last result."""
        return self.start == "last"

    def coefficients(self, gram: Tensor, weights: Tensor, num_attackers: int) -> tuple[Tensor, Tensor]:
        """L times v <- v + Σ p_i(X_i − v)min(1, τ/‖X_i − v‖), with v as a sum of rows; shares are the last factors."""
        shares = weights / weights.sum()
        sums, factors = torch.zeros_like(shares), torch.ones_like(shares)
        for _ in range(self.iterations):
            factors = (self.clip_norm / distances_from(gram, sums)).clamp(max=1)
            clipped = shares * factors
            sums = (1 - clipped.sum()) * sums + clipped
        return sums, factors
