"""Central differential privacy of whole clients (DP-FedAvg), around any algorithm that averages models.

McMahan, Ramage, Talwar, Zhang. "Learning Differentially Private Recurrent Language Models". ICLR 2018.
https://arxiv.org/abs/1710.06963, Algorithm 1 with the estimator of a fixed denominator.

Symbols:
    Δ_i, C    -> news, clip_norm        what is new in a client's message, all of its numbers as one vector; its bound
    q, W      -> ctx.sampling_probability, ctx.total_weight
    z         -> noise_multiplier       σ = z·C·w_max/(qW) is added to each number of the average
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.errors import check_settings
from lit_fed.core.seeds import torch_generator
from lit_fed.core.types import ClientData, Message, Reduced, Tree
from lit_fed.wrappers.around import Around
from lit_fed.wrappers.news import known, news, tell
from lit_fed.wrappers.privacy import Privacy

__all__ = ["ClientPrivacy", "PrivateAverage"]


@dataclass(frozen=True)
class ClientPrivacy(Privacy):
    """What the server learns tells little of any one client with all of its samples.

    This simulates the mechanism: its random numbers are not cryptographic, and noise in floating point can be attacked.

    Args:
        noise_multiplier: z; the noise of the sum of bounded changes has the standard deviation z·C.
        clip_norm: C, the largest Euclidean norm of a client's change, to which longer ones are scaled down.
    """

    noise_multiplier: float
    clip_norm: float

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        checks = {
            "noise_multiplier": (0 <= self.noise_multiplier < math.inf, "a number >= 0"),
            "clip_norm": (self.clip_norm > 0, "a number > 0"),
        }
        check_settings(self, checks, "--model.privacy")

    def around(self, algorithm: Any) -> Around:
        """`PrivateAverage` around it."""
        return PrivateAverage(algorithm, self)


@dataclass(frozen=True)
class PrivateAverage(Around):
    """Clients send bounded changes, and the server adds noise to their average.

    Args:
        inner: the algorithm.
        privacy: the settings.
    """

    privacy: ClientPrivacy

    steps_on_empty_rounds = True  # noise hides whether somebody took part

    def encode(
        self, ctx: Context, shared: Tree, message: Message, memory: Tree, data: ClientData
    ) -> tuple[Message, Tree, dict[str, Tensor]]:
        """The message with its news scaled down to the norm C."""
        of_old = known(self.inner, self.heard(ctx, shared), message.value)
        changes = news(message.value, of_old)
        length = tree.norm(changes)
        factor = (self.privacy.clip_norm / length).clamp(max=1.0)
        value = tell(message.value, of_old, changes, tree.scale(changes, factor))
        return message._replace(value=value), memory, {"clipped_share": (factor < 1).double()}

    def decode(self, ctx: Context, shared: Tree, reduced: Reduced, client_ids: Tensor) -> tuple[Reduced, Tree]:
        """The sum of changes divided by what takes part on average, qW, with noise; the true sum of weights stays."""
        usual = ctx.sampling_probability * ctx.total_weight
        share = reduced.weight / usual
        of_old = known(self.inner, self.inside(shared), reduced.value)
        value = tree.map_leaves(lambda mean, old: share * mean + (1 - share) * old.double(), reduced.value, of_old)
        std = self.privacy.noise_multiplier * self.privacy.clip_norm / usual
        if self.privacy.noise_multiplier:
            value = _noised(value, std, ctx)
        return Reduced(value, torch.full_like(reduced.weight, usual)), ()


def _noised(value: Tree, std: float, ctx: Context) -> Tree:
    """The value with Gaussian noise on each number, drawn on the CPU leaf after leaf: the same on every rank."""
    rng = torch_generator(ctx.seed, ctx.round_idx, 0, f"privacy/{ctx.phase}")

    def noised(leaf: Tensor) -> Tensor:
        return leaf + std * torch.randn(leaf.shape, generator=rng, dtype=torch.float64).to(leaf.device)

    return tree.map_leaves(noised, value)
