"""Rounds of IFCA ahead of FedEM and D-FedEM.

From random components EM often converges to a solution in which two groups of clients share a component and another one
is unused. docs/results/fedem-starts.md has what was tried against it.

Ghosh, Chung, Yin, Ramchandran. "An Efficient Framework for Clustered Federated Learning". NeurIPS 2020.
https://arxiv.org/abs/2006.04088, Algorithm 1.

Symbols:
    ĵ    -> fits      one-hot, [M]: the component with the lowest mean loss on the client's samples
    s_ij -> share     weight of client i in the average of component j: in the start 1 for ĵ and 0 for others, [M]
Deviations:
    One-hot mixture weights would never change again. After a round of the start, a client with n samples therefore has
    weights (n·s + 1) / (n + M), where s is 1 for its component and 0 for others: the posterior mean of its weights
    under a uniform prior, if all of its samples come from that component.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, get_args

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import MessageSpec
from lit_fed.core.context import Context
from lit_fed.core.graphs.mixing import gossip, traffic
from lit_fed.core.graphs.peers import PeerMessage
from lit_fed.core.mixtures.clusters import best_fit, one_hot
from lit_fed.core.mixtures.e_step import average_chosen, choose
from lit_fed.core.types import Chosen, ClientData, ClientResult, Message, Reduced, Tree
from lit_fed.errors import ConfigError, check_settings, notice
from lit_fed.wrappers.base import AlgorithmWrapper, WrapperSettings

__all__ = ["Clustering", "MixtureStart", "StartByClustering", "with_start"]


class MixtureStart(WrapperSettings):
    """Base class of `--model.algorithm.start`."""


@dataclass(frozen=True)
class Clustering(MixtureStart):
    """Each client trains and sends only the component that fits its samples best: rounds of IFCA.

    The server learns which component each client trains in these rounds.

    Args:
        num_rounds: rounds of the start.
    """

    num_rounds: int = 20

    def __post_init__(self) -> None:
        check_settings(self, {"num_rounds": ">= 1"}, "--model.algorithm.start")

    def around(self, algorithm: Any) -> StartByClustering:
        return StartByClustering(algorithm, self.num_rounds)


def with_start(algorithm: Any) -> Any:
    """The algorithm inside the start that it names; without one, or inside wrappers already, as it is.

    Raises:
        ConfigError: if its start is something else.
    """
    own = {} if isinstance(algorithm, AlgorithmWrapper) else getattr(algorithm, "__dataclass_fields__", {})
    if "start" not in own or MixtureStart not in get_args(own["start"].type) or algorithm.start is None:
        return algorithm
    if not isinstance(algorithm.start, MixtureStart):
        raise ConfigError(f"--model.algorithm.start is {algorithm.start!r}; give Clustering(num_rounds=…), or None")
    return algorithm.start.around(algorithm)


@dataclass(frozen=True)
class StartByClustering(AlgorithmWrapper):
    """FedEM, D-FedEM or their Responsibility variants after rounds of IFCA.

    Without a server, components are averaged by shares in all rounds; after the start all shares of D-FedEM are 1.

    Args:
        inner: the mixture.
        num_rounds: rounds of the start.
    """

    num_rounds: int = field(repr=False)  # of `inner.start`, so that a checkpoint holds it once

    reveals_mixture = True  # a client sends the component that it fits best

    @property
    def message(self) -> MessageSpec:
        """Not complete: clients send one component in the start."""
        return self.inner.message._replace(complete=False)  # type: ignore[no-any-return]

    @property
    def incompatible(self) -> dict[str, str]:
        """The algorithm's, and features that need all components of each client, or hide which one it uses."""
        here = "--model.algorithm.start Clustering; give --model.algorithm.start null"
        chooses = f"lets each client choose which components it sends by {here}"
        more: dict[str, str] = dict.fromkeys(("privacy", "ef21"), chooses)
        return self.inner.incompatible | more | {"noise_in_steps": here}  # type: ignore[no-any-return]

    def _starts(self, ctx: Context) -> bool:
        return ctx.phase != "adapt" and ctx.round_idx < self.num_rounds

    def shared_init(self, ctx: Context) -> Tree:
        """The algorithm's; without a server with the shares, at first equal. Warn of a start as long as the run."""
        if self.num_rounds >= ctx.num_rounds > 1:
            notice(
                f"--model.algorithm.start Clustering takes {self.num_rounds} rounds, and the run has {ctx.num_rounds}: "
                "the mixture is never trained; give a smaller --model.algorithm.start.num_rounds"
            )
        shared = self.inner.shared_init(ctx)
        if self.inner.has_server:
            return shared
        num_models = self.inner.num_models
        return shared._replace(shares=torch.full((ctx.num_clients, num_models), 1 / num_models, dtype=torch.float64))

    def client_init(self, ctx: Context, shared: Tree, state: Tree, data: ClientData, losses: Tensor | None) -> Tree:
        """In the start all samples of a client belong to the component ĵ."""
        work = self.inner.client_init(ctx, shared, state, data, losses)
        if not self._starts(ctx):
            return work
        losses = ctx.task.sample_losses(work.models, data) if losses is None else losses
        fits, n = one_hot(best_fit(losses, data.mask), len(work.mixture), work.mixture.dtype), data.num_samples
        pi = ((n * fits + 1) / (n + len(fits))).to(fits.dtype)
        return work._replace(mixture=pi, responsibility=fits * data.mask.unsqueeze(1))

    def client_final(self, ctx: Context, shared: Tree, work: Tree, data: ClientData) -> ClientResult:
        """Send θ_ĵ alone in the start; afterwards the algorithm's message, with shares."""
        result: ClientResult = self.inner.client_final(ctx, shared, work, data)
        message, starts = result.message, self._starts(ctx)
        if starts:
            share = one_hot(work.mixture.argmax(), len(work.mixture), torch.float64)
        elif isinstance(message.value, Chosen | PeerMessage):  # it has shares: a Responsibility variant
            return result
        else:
            share = torch.ones_like(work.mixture, dtype=torch.float64)
        return result._replace(message=self._by_shares(ctx, message, work, share, data))

    def _by_shares(self, ctx: Context, message: Message, work: Any, share: Tensor, data: ClientData) -> Message:
        if not self.inner.has_server:
            value = PeerMessage(work.models, share)
            bits = traffic(ctx, self.inner.topology, value, data.client_id)
            return message._replace(value=value, bits_up=bits, bits_down=bits)
        bits = torch.full_like(message.weight, tree.bits(work.models, ctx.private))
        if self._starts(ctx):  # one component, and its number
            bits = bits / len(share) + (len(share) - 1).bit_length()
        return message._replace(value=choose(work.models, share), bits_up=bits)

    def server_step(self, ctx: Context, shared: Tree, reduced: Reduced, client_ids: Tensor) -> Tree:
        """θ_j <- mean over the clients that trained it in the start; afterwards the algorithm's step."""
        value = reduced.value
        if not self.inner.has_server:
            return gossip(ctx, shared, client_ids, value.models, self.inner.matrix(ctx), value.share)
        if self._starts(ctx):
            return shared._replace(models=average_chosen(ctx, shared.models, reduced, absent_alike=True))
        if self.inner.message.complete:
            reduced = reduced._replace(value=value.models)
        return self.inner.server_step(ctx, shared, reduced, client_ids)
