"""SignFlip: attackers send the opposite of what they learnt.

Karimireddy, He, Jaggi. "Learning from History for Byzantine Robust Optimization". ICML 2021.
https://arxiv.org/abs/2012.10333, Section 6 ("bit-flipping").
"""

from dataclasses import dataclass

from lit_fed.core import tree
from lit_fed.core.attacks.base import Attack, Intercepted, own_changes, replace_rows
from lit_fed.core.errors import check_settings
from lit_fed.core.types import Tree

__all__ = ["SignFlip"]


@dataclass(frozen=True)
class SignFlip(Attack):
    """Attackers send their own change times −scale.

    Args:
        scale: factor of the change.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        check_settings(self, {"scale": (self.scale > 0, "a number > 0")}, "--model.attack")

    def strike(self, sent: Intercepted) -> Tree:
        """−scale·Δ_i."""
        return replace_rows(sent, tree.map_leaves(lambda change: -self.scale * change, own_changes(sent)))
