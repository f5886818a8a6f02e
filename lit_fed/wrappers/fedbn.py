"""FedBN: every client keeps its batch normalisation, with any algorithm.

Li, Jiang, Zhang, Kamp, Dou. "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization". ICLR 2021.
https://arxiv.org/abs/2102.07623, Algorithm 1. `--model.batch_norm local` puts `LocalNorm` around any algorithm.

Symbols:
    w_k^l of a BN layer -> state.norm  scale, shift and running statistics of client k, leaves [M, ...]
Deviations:
    The paper averages everything else in FedAvg; here it is whatever the algorithm does with its models.
    An unseen client has no normalisation. Ours: it takes the scale and shift of the initial
    models and its statistics from one pass over its own training samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.partial_models import leaf_order, named_part
from lit_fed.core.types import Batch, Chosen, ClientData, ClientResult, ModelState, Reduced, Tree
from lit_fed.wrappers.base import AlgorithmWrapper, WrappedWork, own_work, wrapper_of
from lit_fed.wrappers.personal import PersonalParts

__all__ = ["LocalNorm", "NormState", "averages_statistics"]


class NormState(NamedTuple):
    """A client's state."""

    inner: Any  # the algorithm's state
    norm: dict[str, Tensor]  # its batch normalisation, leaves [M, ...]

    @property
    def mixture(self) -> Tensor:
        """Mixture weights of the client, [M], where the algorithm has some."""
        return self.inner.mixture  # type: ignore[no-any-return]


@dataclass(frozen=True)
class LocalNorm(AlgorithmWrapper):
    """An algorithm whose clients neither send nor receive the parameters and statistics of BatchNorm layers.

    Each function is handed a shared state that holds the client's own normalisation.
    """

    adapts_statistics = True  # unseen clients need samples for their running statistics

    def collaboration(self, ctx: Context, shared: Tree, states: NormState) -> Tensor | None:
        return self.inner.collaboration(ctx, shared, states.inner)  # type: ignore[no-any-return]

    def state_init(self, ctx: Context, shared: Tree, data: ClientData) -> NormState:
        """Normalisation as in the initial models; an unseen client computes its own statistics."""
        models = tree.models(shared)[0]
        if ctx.phase == "adapt":
            of_network = named_part(models, leaf_order(ctx.task.network))  # without an algorithm's own modules
            models = models._replace(buffers=ctx.task.statistics(of_network, data.x))
        norm = _take(models, ctx.task.norm_names)
        return NormState(self.inner.state_init(ctx, _put(shared, norm), data), norm)

    def shared_losses(self, ctx: Context, shared: Tree, batch: Batch) -> None:
        """No loss depends on the shared state alone."""

    def client_init(self, ctx: Context, shared: Tree, state: NormState, data: ClientData, losses: None) -> WrappedWork:
        """The algorithm's, with its losses under the client's own normalisation."""
        shared = _put(shared, state.norm)
        index = torch.arange(len(data.mask), device=data.mask.device)
        own = self.inner.shared_losses(ctx, shared, Batch(data.x, data.y, index, data.mask))
        work = self.inner.client_init(ctx, shared, state.inner, data, own)
        return WrappedWork(work, state.norm, work.optimizer)

    def client_step(self, ctx: Context, shared: Tree, work: WrappedWork, batch: Batch) -> WrappedWork:
        inner = self.inner.client_step(ctx, _put(shared, work.memory), own_work(work), batch)
        return WrappedWork(inner, work.memory, inner.optimizer)

    def client_final(self, ctx: Context, shared: Tree, work: WrappedWork, data: ClientData) -> ClientResult:
        """The algorithm's result; the client keeps its normalisation and sends the received one instead."""
        inner, kept = own_work(work), work.memory
        names = frozenset(kept)  # without a private head's
        result = self.inner.client_final(ctx._replace(private=names), _put(shared, kept), inner, data)
        sent = tree.models(result.message.value)
        if not sent:  # a client that sends no models keeps whole ones anyway
            return result._replace(state=NormState(result.state, kept))  # type: ignore[no-any-return]
        trained = tree.models(getattr(inner, "models", None)) or sent  # a message may hold multiples of models
        norm, initial = _take(trained[0], names), _take(tree.models(shared)[0], names)
        message = result.message._replace(value=_put(result.message.value, initial))
        if isinstance(message.value, Chosen):
            norm = _trained_where_sent(message.value, norm, kept)
        if message.bits_up is None:
            message = message._replace(bits_up=torch.full_like(message.weight, tree.bits(message.value, names)))
        if message.bits_down is None:
            bits = tree.bits(self.inner.sent(ctx, shared, 0), names)
            message = message._replace(bits_down=torch.full_like(message.weight, bits))
        return result._replace(message=message, state=NormState(result.state, norm))  # type: ignore[no-any-return]

    def server_step(self, ctx: Context, shared: Tree, reduced: Reduced, client_ids: Tensor) -> Tree:
        """The algorithm's step; averages of unchanged leaves are unchanged."""
        return _put(
            self.inner.server_step(ctx, shared, reduced, client_ids), _take(tree.models(shared)[0], ctx.task.norm_names)
        )

    def shared_outputs(self, ctx: Context, shared: Tree, x: Tensor) -> None:
        """No prediction depends on the shared state alone."""

    def log_prob(self, ctx: Context, shared: Tree, state: NormState, x: Tensor, outputs: None) -> Tensor:
        """The algorithm's prediction under the client's own normalisation, [B, C]."""
        shared = _put(shared, state.norm)
        own = self.inner.shared_outputs(ctx, shared, x)
        return self.inner.log_prob(ctx, shared, state.inner, x, own)  # type: ignore[no-any-return]


def _take(models: ModelState, names: frozenset[str]) -> dict[str, Tensor]:
    """The leaves of these names."""
    return {name: leaf for name, leaf in (models.parameters | models.buffers).items() if name in names}


def _put(shared: Tree, norm: dict[str, Tensor]) -> Tree:
    """The same tree with these leaves in each of its models."""
    if isinstance(shared, ModelState):
        return ModelState(*({name: norm.get(name, leaf) for name, leaf in part.items()} for part in shared))
    if isinstance(shared, dict):
        return {key: _put(value, norm) for key, value in shared.items()}
    if isinstance(shared, tuple | list):
        values = [_put(value, norm) for value in shared]
        return type(shared)(*values) if hasattr(shared, "_fields") else type(shared)(values)
    return shared


def _trained_where_sent(sent: Chosen, trained: dict[str, Tensor], kept: dict[str, Tensor]) -> dict[str, Tensor]:
    """The normalisation of a client that sends some of its models: trained for these, unchanged for the others."""

    def choose(name: str, leaf: Tensor) -> Tensor:
        return torch.where(sent.taken.view(-1, *[1] * (leaf.ndim - 1)) > 0, trained[name], leaf)

    return {name: choose(name, leaf) for name, leaf in kept.items()}


def averages_statistics(algorithm: Any, ctx: Context) -> bool:
    """Whether clients send running statistics of BatchNorm: the network has some, and they are not personal."""
    if wrapper_of(algorithm, LocalNorm) is not None:
        return False
    parts = wrapper_of(algorithm, PersonalParts)
    return bool(ctx.task.norm_names - (frozenset() if parts is None else parts.names(ctx)))
