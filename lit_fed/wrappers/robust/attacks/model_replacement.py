"""ModelReplacement: attackers scale up their changes so that their models replace the average.

Bagdasaryan, Veit, Hua, Estrin, Shmatikov. "How To Backdoor Federated Learning". AISTATS 2020.
https://arxiv.org/abs/1807.00459, Equation 3.

Symbols:
    γ -> boost
Deviations:
    The paper's γ is n/η for n clients of equal weight and a server's rate η; ours shares it between the attackers.
"""

from dataclasses import dataclass

from lit_fed.core import tree
from lit_fed.core.types import Tree
from lit_fed.wrappers.robust.attacks.base import Attack, Intercepted

__all__ = ["ModelReplacement"]


@dataclass(frozen=True)
class ModelReplacement(Attack):
    """Attackers send their own change times γ; meant for attackers with poisoned samples.

    Args:
        boost: γ; null: clients of the round over attackers among them. With equal weights and small honest changes, the
            average is then the mean of the attackers' models.
    """

    boost: float | None = None

    ranges = {"boost": "> 0"}

    def changes(self, sent: Intercepted) -> Tree:
        """γ·Δ_i."""
        boost = len(sent.attacked) / int(sent.attacked.sum()) if self.boost is None else self.boost
        return tree.scale(sent.own, boost)
