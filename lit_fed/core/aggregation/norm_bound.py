"""NormBound: no client moves the average by more than a bound.

Sun, Kairouz, Suresh, McMahan. "Can You Really Backdoor Federated Learning?". 2019. https://arxiv.org/abs/1911.07963
"""

from dataclasses import dataclass

from torch import Tensor

from lit_fed.core.aggregation.base import WholeRowRule
from lit_fed.core.errors import check_settings

__all__ = ["NormBound"]


@dataclass(frozen=True)
class NormBound(WholeRowRule):
    """The mean of changes of which none is longer than C.

    Args:
        clip_norm: C; longer changes are scaled down to this norm.
    """

    clip_norm: float = 10.0

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        self.check()
        check_settings(self, {"clip_norm": (self.clip_norm > 0, "a number > 0")}, "--model.robust_aggregation")

    def coefficients(self, gram: Tensor, weights: Tensor, num_attackers: int) -> tuple[Tensor, Tensor]:
        """p_i·min(1, C/‖X_i‖)."""
        kept = (self.clip_norm / gram.diagonal().clamp(min=0).sqrt()).clamp(max=1)
        return weights / weights.sum() * kept, kept
