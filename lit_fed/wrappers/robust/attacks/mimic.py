"""Mimic: attackers send what one honest client sends, so that it counts too much where clients differ.

Karimireddy, He, Jaggi. "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing". ICLR 2022.
https://arxiv.org/abs/2006.09365, "mimic".

Deviations:
    The simple variant: the client that is copied is given, and the same in all rounds. The paper's attackers take the
    one that lies furthest along the direction in which honest clients differ most; the official code looks for it in
    the first round, by default, and keeps it then. Where it takes no part in a round, the next honest one is copied.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.types import Tree
from lit_fed.wrappers.robust.attacks.base import Attack, Intercepted

__all__ = ["Mimic"]


@dataclass(frozen=True)
class Mimic(Attack):
    """Attackers send the change of one honest client; no message looks like a lie.

    Args:
        client: number of the client that is copied, from 0; of clients that attack or take no part the next one, and
            after the last client the first.
    """

    client: int = 0

    ranges: ClassVar[dict[str, str]] = {"client": ">= 0"}

    def changes(self, sent: Intercepted) -> Tree:
        """Δ of the copied client; without honest clients what attackers learnt."""
        if sent.attacked.all():
            return sent.own
        honest = sent.client_ids[~sent.attacked]
        place = torch.where(honest >= self.client, honest, honest + 2**32).argmin()

        def leaf(changes: Tensor) -> Tensor:
            return changes[place][None]

        return tree.map_leaves(leaf, sent.honest)
