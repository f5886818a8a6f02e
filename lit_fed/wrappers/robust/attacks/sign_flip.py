"""SignFlip: attackers send the negative of their own change.

Karimireddy, He, Jaggi. "Learning from History for Byzantine Robust Optimization". ICML 2021.
https://arxiv.org/abs/2012.10333, "bit-flipping" of its experiments.

Deviations:
    The authors' attackers flip the gradient of a step; ours flip the change by a round's local work.
"""

from dataclasses import dataclass

from lit_fed.core import tree
from lit_fed.core.types import Tree
from lit_fed.wrappers.robust.attacks.base import Attack, Intercepted

__all__ = ["SignFlip"]


@dataclass(frozen=True)
class SignFlip(Attack):
    """Attackers send their own change times −scale.

    Args:
        scale: factor of the change.
    """

    scale: float = 1.0

    ranges = {"scale": "> 0"}

    def changes(self, sent: Intercepted) -> Tree:
        """−scale·Δ_i."""
        return tree.scale(sent.own, -self.scale)
