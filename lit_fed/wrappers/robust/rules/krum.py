"""Krum: the change, or some changes, with the closest neighbours.

Blanchard, El Mhamdi, Guerraoui, Stainer. "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent".
NeurIPS 2017. https://arxiv.org/abs/1703.02757, "Krum", and "Multi-Krum" for several.

Symbols:
    n, f -> rows, num_attackers
    m    -> num_selected          changes that are averaged
Deviations:
    Ties of scores go to the client with the smaller number. Multi-Krum may weight the selected changes by samples.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_fed.wrappers.robust.rules.base import WholeRowRule
from lit_fed.wrappers.robust.rules.rows import squared_distances

__all__ = ["Krum", "krum_scores"]


@dataclass(frozen=True)
class Krum(WholeRowRule):
    """The change that is closest to its neighbours, or the mean of some such changes.

    Args:
        num_attackers: f, malicious clients to tolerate; null: the actual number, or a fifth of the clients if unknown.
        num_selected: changes that are averaged; 1: Krum, more: Multi-Krum.
    """

    num_attackers: int | None = None
    num_selected: int = 1

    ranges = {"num_attackers": ">= 0", "num_selected": ">= 1"}

    def against(self, num_attackers: int) -> int:
        """F."""
        return num_attackers if self.num_attackers is None else self.num_attackers

    def fewest(self, num_attackers: int) -> int:
        """2f + 2 < n, and at least `num_selected`."""
        return max(2 * num_attackers + 3, self.num_selected)

    def coefficients(self, gram: Tensor, weights: Tensor, num_attackers: int) -> tuple[Tensor, Tensor]:
        """1/m for the rows with the m smallest scores, or their shares of the weight."""
        scores = krum_scores(squared_distances(gram), num_attackers)
        taken = torch.zeros_like(weights).index_fill(0, scores.argsort(stable=True)[: self.num_selected], 1)
        return weights * taken / (weights * taken).sum(), taken


def krum_scores(squared: Tensor, num_attackers: int) -> Tensor:
    """Sum of each row's squared distances, [n], from its n − f − 2 closest neighbours, at least one.

    Args:
        squared: squared distances, [n, n] float64.
        num_attackers: f.
    """
    others = squared + torch.diag(torch.full_like(squared.diagonal(), torch.inf))
    return others.sort(1).values[:, : max(len(squared) - num_attackers - 2, 1)].sum(1)
