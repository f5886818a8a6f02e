"""Invalid: attackers send non-finite values, as after diverged training or with broken memory.

Without a source; `--model.robust_aggregation` drops such messages, and a plain average stops the run with a message.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.types import Tree
from lit_fed.wrappers.robust.attacks.base import Attack, Intercepted

__all__ = ["Invalid"]


@dataclass(frozen=True)
class Invalid(Attack):
    """Attackers send NaN or infinity for every number.

    Args:
        value: `nan` or `inf`.
    """

    value: Literal["nan", "inf"] = "nan"

    def changes(self, sent: Intercepted) -> Tree:
        """NaN or ∞."""

        def leaf(old: Tensor) -> Tensor:
            return torch.full((1, *old.shape), float(self.value), dtype=torch.float64, device=old.device)

        return tree.map_leaves(leaf, sent.reference)
