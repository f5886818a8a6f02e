"""Mimic: attackers copy one honest client, which gives it too much weight if clients differ.

Karimireddy, He, Jaggi. "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing". ICLR 2022.
https://arxiv.org/abs/2006.09365, "mimic".

Deviations:
    The simple variant: the copied client is given, and the same in all rounds. The paper's attackers choose the client
    that is furthest along the direction in which honest clients differ most; the official code finds it in the first
    round, by default, and keeps it. If it does not take part in a round, the next honest one is copied.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.types import Tree
from lit_fed.wrappers.robust.attacks.base import Attack, Intercepted

__all__ = ["Mimic"]


@dataclass(frozen=True)
class Mimic(Attack):
    """Attackers send the change of one honest client, so every message looks honest.

    Args:
        client: number of the copied client, from 0; if it attacks or does not take part, the next one, cyclically.
    """

    client: int = 0

    ranges = {"client": ">= 0"}

    def changes(self, sent: Intercepted) -> Tree:
        """Δ of the copied client; without honest clients the attackers' own changes."""
        if sent.attacked.all():
            return sent.own
        honest = sent.client_ids[~sent.attacked]
        place = torch.where(honest >= self.client, honest, honest + 2**32).argmin()

        def leaf(changes: Tensor) -> Tensor:
            return changes[place][None]

        return tree.map_leaves(leaf, sent.honest)
