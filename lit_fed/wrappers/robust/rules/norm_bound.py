"""NormBound: no client moves the average by more than a bound.

Sun, Kairouz, Suresh, McMahan. "Can You Really Backdoor Federated Learning?". 2019. https://arxiv.org/abs/1911.07963,
"norm thresholding".

Symbols:
    M -> clip_norm    largest norm of a change, C below
Deviations:
    No noise is added; `--model.privacy` does that.
"""

from dataclasses import dataclass

from torch import Tensor

from lit_fed.wrappers.robust.rules.base import WholeRowRule

__all__ = ["NormBound"]


@dataclass(frozen=True)
class NormBound(WholeRowRule):
    """The mean of changes clipped to norm C; the plain mean if all are shorter.

    Args:
        clip_norm: C; longer changes are scaled down to this norm.
    """

    clip_norm: float = 10.0

    ranges = {"clip_norm": "> 0"}

    def coefficients(self, gram: Tensor, weights: Tensor, num_attackers: int) -> tuple[Tensor, Tensor]:
        """p_i·min(1, C/‖X_i‖)."""
        kept = (self.clip_norm / gram.diagonal().clamp(min=0).sqrt()).clamp(max=1)
        return weights / weights.sum() * kept, kept
