"""Local differential privacy: clients add noise to their messages before sending them.

Duchi, Jordan, Wainwright. "Local Privacy and Statistical Minimax Rates". FOCS 2013.
https://arxiv.org/abs/1302.3203, for the notion.
Balle, Wang. "Improving the Gaussian Mechanism for Differential Privacy". ICML 2018.
https://arxiv.org/abs/1805.06530, for what Gaussian noise costs.

Symbols:
    Δ_i, C  -> delta, clip_norm     the change in a client's message, one vector of all numbers; its bound
    z_ℓ     -> noise_multiplier     σ = z_ℓ·C is added to each number of a message
Deviations:
    Each message is released separately, so sampling clients gives no amplification, and each message adds to the cost.
    Neighbouring data sets replace all data of a client: two messages then differ by up to 2C.
    The reported ε is that of the client with the most messages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.noise import protecting_normals
from lit_fed.core.types import ClientData, Leaves, Message, Tree
from lit_fed.errors import ConfigError, check_settings
from lit_fed.wrappers.base import AlgorithmWrapper
from lit_fed.wrappers.deltas import delta_of, reference_of, with_delta
from lit_fed.wrappers.privacy.accountant import accountant_name, epsilon_of_local_messages, noise_for_local_messages
from lit_fed.wrappers.privacy.clipping import clip_factor
from lit_fed.wrappers.privacy.settings import Privacy, Private, check_statistics, planned

__all__ = ["LocalPrivacy", "NoisyClients", "Sent"]


class Sent(NamedTuple):
    """The server's memory."""

    messages: Tensor  # [T] int64, of each client
    noise_multiplier: Tensor  # [] float64, since the first message


@dataclass(frozen=True)
class LocalPrivacy(Privacy):
    """(ε, δ)-local differential privacy of the messages of each client; the server need not be trusted.

    Clients scale their changes down to a bound and add noise themselves, far more of it than `ClientPrivacy` needs: m
    clients together have the noise of a multiplier z·√m there. The noise follows from a secret, in a federation from
    one of each node; noise in floating point can be attacked. ε does not cover metrics, training losses and the number
    of rounds that a client takes part in.

    Args:
        noise_multiplier: z; the noise on each number that is sent has the standard deviation z·C. Without noise ε is
            infinite.
        target_epsilon: ε of a client that takes part in every round, which determines the noise multiplier; instead
            of it.
        delta: δ, the probability that ε fails; required, far below 1.
        clip_norm: C, the maximum Euclidean norm of a client's change, to which longer ones are scaled down; required.
        public_start: the models of `--init_from` were trained on public data only, and cost no privacy.
        noise_seed: seed of the noise, for simulations that must be repeatable; such noise gives no protection. Null
            draws the noise from a secret beside the checkpoints.
    """

    noise_multiplier: float | None = None
    target_epsilon: float | None = None
    delta: float | None = None
    clip_norm: float | None = None
    public_start: bool = False
    noise_seed: int | None = None

    noises_messages = True
    unit = "the data of a client, whoever sees what it sends"
    adjacency = "replace by any other"

    def __post_init__(self) -> None:
        self.check_budget()
        if self.clip_norm is None:
            raise ConfigError("--model.privacy.clip_norm is missing, the largest norm of a client's change; give a "
                              "number > 0")  # fmt: skip
        check_settings(self, prefix="--model.privacy", clip_norm="> 0")

    def around(self, algorithm: Any) -> AlgorithmWrapper:
        return NoisyClients(algorithm, self)


@dataclass(frozen=True)
class NoisyClients(Private):
    """Clients send bounded changes with their own noise."""

    privacy: LocalPrivacy

    def server_memory(self, ctx: Context, shared: Tree) -> Sent:
        """No messages yet."""
        check_statistics(self.inner, ctx)
        return Sent(torch.zeros(ctx.num_clients, dtype=torch.int64), torch.zeros((), dtype=torch.float64))

    def encode(
        self, ctx: Context, shared: Tree, message: Message, memory: Tree, data: ClientData
    ) -> tuple[Message, Tree, Leaves]:
        """The message with its delta scaled down to the bound, and noise on each number."""
        assert self.privacy.clip_norm is not None
        reference = reference_of(self.inner, self.broadcast_view(ctx, shared), message.value)
        changes = delta_of(message.value, reference)
        factor, noise = clip_factor(tree.norm(changes), self.privacy.clip_norm), self._noise(ctx)
        told = [leaf * factor for leaf in tree.leaves(changes)]
        if noise:
            std, sizes = noise * self.privacy.clip_norm, [leaf.numel() for leaf in told]
            assert ctx.secret is not None
            drawn = protecting_normals(ctx.secret, ctx.round_idx, data.client_id, f"local/{ctx.phase}", sum(sizes))
            told = [leaf + std * one.view(leaf.shape) for leaf, one in zip(told, drawn.split(sizes), strict=True)]
        value = with_delta(message.value, reference, changes, tree.rebuild(changes, told))
        alike = torch.ones_like(message.weight)
        return message._replace(value=value, weight=alike), memory, {"privacy/clipped_share": (factor < 1).double()}

    def charged(self, ctx: Context, own: Sent, client_ids: Tensor, sends: bool) -> Sent:
        """Count one more message per client, if there are messages."""
        if not sends:
            return own
        ids = client_ids.to(own.messages.device)
        messages = own.messages.index_add(0, ids, torch.ones_like(ids))
        return Sent(messages, torch.full_like(own.noise_multiplier, self._noise(ctx)))

    def charged_again(self, ctx: Context, own: Sent) -> Sent:
        """Count one more message per client."""
        return self.charged(ctx, own, torch.arange(ctx.num_clients), sends=True)

    def _noise(self, ctx: Context) -> float:
        """z: the given value, or the one that meets the target for a client that takes part in all rounds."""
        privacy = self.privacy
        if privacy.noise_multiplier is not None:
            return privacy.noise_multiplier
        assert privacy.target_epsilon is not None
        return _noise_for(privacy.target_epsilon, ctx.num_rounds, privacy.charged)

    def plan(self, ctx: Context, own: Sent) -> list[str]:
        """Refuse another number of rounds than the target assumes."""
        privacy, noise, before = self.privacy, self._noise(ctx), float(own.noise_multiplier)
        if before and not math.isclose(noise, before):
            raise ConfigError(
                f"--model.privacy.target_epsilon {privacy.target_epsilon:g} wants a noise multiplier of {noise:.4g} "
                f"for {ctx.num_rounds} rounds, and the run has begun with {before:.4g}; give --trainer.max_epochs as "
                "it was, or begin a new run"
            )
        most = int(own.messages.max()) + ctx.num_rounds - ctx.round_idx
        epsilon, name = epsilon_of_local_messages(noise, most, privacy.charged), accountant_name("gaussian")
        return planned(epsilon, privacy.charged, noise, f"{most} messages of a client", name, ctx.num_clients)

    def guarantee(self, ctx: Context, own: Sent, exact: bool = True) -> dict[str, Any]:
        """ε for replacing all data of the client with the most messages."""
        noise, most = float(own.noise_multiplier), int(own.messages.max())
        return {
            "epsilon": epsilon_of_local_messages(noise, most, self.privacy.charged),
            "delta": self.privacy.charged,
            "noise_multiplier": noise,
            "releases": most,
            "clip_norm": self.privacy.clip_norm,
        } | self.privacy.described("gaussian")


_noise_for = lru_cache(maxsize=8)(noise_for_local_messages)
