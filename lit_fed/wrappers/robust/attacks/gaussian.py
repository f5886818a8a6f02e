"""Gaussian: attackers send noise.

Blanchard, El Mhamdi, Guerraoui, Stainer. "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent".
NeurIPS 2017. https://papers.nips.cc/paper/6617, "Gaussian Byzantine" of its experiments.

Deviations:
    The noise replaces a change of the models, not a gradient; the paper's deviation is 200.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.seeds import torch_generator
from lit_fed.core.types import Tree
from lit_fed.wrappers.robust.attacks.base import Attack, Intercepted

__all__ = ["Gaussian"]


@dataclass(frozen=True)
class Gaussian(Attack):
    """Attackers send independent changes from N(0, std²·I).

    Args:
        std: standard deviation of every number.
    """

    std: float = 1.0

    ranges = {"std": "> 0"}

    def changes(self, sent: Intercepted) -> Tree:
        """std·ξ, drawn on the CPU, so that all devices and ranks have the same noise."""
        attackers = sent.client_ids[sent.attacked].tolist()
        streams = [torch_generator(sent.seed, sent.round_idx, client_id, sent.stream) for client_id in attackers]

        def leaf(old: Tensor) -> Tensor:
            noise = [torch.randn(old.shape, generator=stream, dtype=torch.float64) for stream in streams]
            return self.std * torch.stack(noise).to(old.device)

        return tree.map_leaves(leaf, sent.reference)
