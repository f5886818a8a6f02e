"""IPM, inner product manipulation: attackers send the negative mean of the honest changes.

Xie, Koyejo, Gupta. "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation". UAI 2020.
https://arxiv.org/abs/1903.03936.

Deviations:
    It acts on changes of models, not on gradients.
"""

from dataclasses import dataclass

from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.types import Tree
from lit_fed.wrappers.robust.attacks.base import Attack, Intercepted

__all__ = ["IPM"]


@dataclass(frozen=True)
class IPM(Attack):
    """Attackers send the mean of the honest changes times −epsilon.

    With m clients and f attackers, the mean changes sign if epsilon is above (m − f)/f; smaller values are hard to
    distinguish from honest changes.

    Args:
        epsilon: factor of the mean.
    """

    epsilon: float = 0.1

    ranges = {"epsilon": "> 0"}

    def changes(self, sent: Intercepted) -> Tree:
        """−ε·mean(H)."""

        def leaf(honest: Tensor) -> Tensor:
            return -self.epsilon * honest.mean(0, keepdim=True)

        return tree.map_leaves(leaf, sent.honest)
