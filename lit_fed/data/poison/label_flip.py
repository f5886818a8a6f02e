"""LabelFlip: attackers train on wrong labels.

Fang, Cao, Jia, Gong. "Local Model Poisoning Attacks to Byzantine-Robust Federated Learning". USENIX Security 2020.
https://arxiv.org/abs/1911.11815, "label flipping attack" of its experiments.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from lit_fed.core.targets import Target
from lit_fed.core.types import Population
from lit_fed.data.poison.base import Alter, Poison, check_classes_of

__all__ = ["LabelFlip"]


@dataclass(frozen=True)
class LabelFlip(Poison):
    """Attackers replace label y by C − 1 − y: with ten classes, 3 becomes 6."""

    def prepare(self, seen: Population, target: Target, dataset: str) -> Alter:
        check_classes_of(self, target, dataset)

        def alter(x: Tensor, y: Tensor, stream: np.random.Generator) -> tuple[Tensor, Tensor]:
            return x, target.num_values - 1 - y

        return alter
