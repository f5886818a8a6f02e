"""pFedHN: a hypernetwork at the server generates each client's model from an embedding of the client.

Shamsian, Navon, Fetaya, Chechik. "Personalized Federated Learning using Hypernetworks". ICML 2021.
https://arxiv.org/abs/2103.04628, Algorithm 1; Section 3.3 (pFedHN-PC, with personal classifiers).

Symbols:
    φ   -> shared.network     the hypernetwork, which never leaves the server in training
    v_i -> shared.embeddings  the embedding of client i, [T, D]
    θ_i -> shared.generated   the model h(v_i; φ), leaves [1, ...], if it is sent; else it is generated on use
    θ̃_i -> work.models        it after K local steps; Δθ_i = θ̃_i - θ_i
    ω_i -> state.own          the personal classifier of pFedHN-PC, leaves [1, ...]; never leaves the client
    α   -> server_optimizer   with its momentum and weight decay
Deviations:
    The paper prints φ <- φ - α (∂θ_i/∂φ)ᵀ Δθ_i, which would move away from θ̃_i. As in the authors' code φ moves
    towards it: the gradient is that of -⟨h(v_i; φ), Δθ_i⟩.
    The paper's rounds have one client each. With more the gradient is their mean.
    The hypernetwork is the authors': `depth` + 1 layers of `width` and a linear map for each leaf. Embeddings take its
    rate; gradients are clipped by their norm over φ and all v, as there.
    Running statistics of BatchNorm are not generated; each client keeps its own.
    An unseen client fits only v, from the mean of all, by the solver's local work (Section 5.3), so it receives φ; its
    classifier in pFedHN-PC starts as the initial one and is fitted with v.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap
from torch.nn import functional as F  # noqa: N812 - the name everybody knows

from lit_fed.core import tree
from lit_fed.core.algorithm import (
    NOT_SENT,
    LocalRun,
    MessageSpec,
    Participation,
    Personal,
    local_result,
    local_run,
    local_step,
)
from lit_fed.core.context import Context
from lit_fed.core.networks.stacked_network import fresh_leaves
from lit_fed.core.partial_models import Patterns, joined, measured, named_leaves, named_part, names_of
from lit_fed.core.server_optimizer import ServerMoments, ServerOptimizer
from lit_fed.core.types import Batch, ClientData, ClientResult, Leaves, ModelState, Reduced
from lit_fed.errors import check_settings

__all__ = ["HyperModels", "PFedHN", "PFedHNPC", "ServedByEmbedding"]


EMBEDDINGS = "embeddings"
"""Their name beside the leaves of the hypernetwork."""


class HyperModels(NamedTuple):
    """The server's state, or the part that a client has: only its model if seen, else the means to generate one."""

    network: Leaves  # φ
    embeddings: Tensor  # v_i, [T, D]; at an unseen client their mean, [1, D]
    moments: ServerMoments
    own: tuple[Leaves, Leaves]  # initial classifier and running statistics, leaves [1, ...]
    generated: Leaves  # θ_i at client i, leaves [1, ...]; NOT_SENT at the server


class ServedByEmbedding(NamedTuple):
    """A client's state."""

    client_id: Tensor  # [] int64
    embedding: Tensor  # [D], fitted by an unseen client; 0 at seen clients, whose embedding the server has
    own: ModelState  # ω_i and running statistics, leaves [1, ...]


@dataclass(frozen=True)
class PFedHN(Personal[HyperModels, ServedByEmbedding, Any]):
    """Each client trains a model from the server's hypernetwork, which learns from the resulting change.

    Args:
        embedding_size: D; null: 1 + T // 4, as in the authors' code.
        width: width of the hypernetwork's hidden layers.
        depth: number of its hidden layers after the first.
        clip_norm: maximum norm of the gradient of φ and v; null: no limit.
        server_optimizer: optimizer of φ and v.
    """

    embedding_size: int | None = None
    width: int = 100
    depth: int = 3
    clip_norm: float | None = 50.0
    server_optimizer: ServerOptimizer = field(
        default_factory=lambda: ServerOptimizer("SGD", 0.01, options={"momentum": 0.9, "weight_decay": 1e-3})
    )

    message = MessageSpec("rows", reduce="stack")
    participation = Participation("uniform", counts_draws=False, fills_in_absent=False)
    state_reads_data = True
    incompatible = {
        "size_sampling": "takes one step for each client of a round",
        "local_norm": "keeps running statistics at each client already, and generates the rest",
    }

    def __post_init__(self) -> None:
        check_settings(self, embedding_size=">= 1", width=">= 1", depth=">= 0", clip_norm="> 0")
        self.server_optimizer.check("--model.algorithm.server_optimizer")

    def own_names(self, ctx: Context) -> frozenset[str]:
        """Parameters that the server does not generate."""
        return frozenset()

    def shared_init(self, ctx: Context) -> HyperModels:
        """A fresh hypernetwork, and embeddings from a normal distribution."""
        whole = ctx.task.init(1, ctx.seed)
        parameters, buffers = named_part(whole, self.own_names(ctx) | whole.buffers.keys())
        sizes = [leaf.numel() for leaf in _shapes(ctx, parameters).values()]
        build = partial(_Parts, (ctx.num_clients, self._size(ctx)), self.width, self.depth, sizes)
        network = fresh_leaves(build, ctx.seed, "hypernetwork", ctx.task.dtype)
        embeddings = network.pop(EMBEDDINGS)
        moments = self.server_optimizer.init(network | {EMBEDDINGS: embeddings})
        return HyperModels(network, embeddings, moments, (parameters, buffers), NOT_SENT)

    def _size(self, ctx: Context) -> int:
        return 1 + ctx.num_clients // 4 if self.embedding_size is None else self.embedding_size

    def state_init(self, ctx: Context, shared: HyperModels, data: ClientData) -> ServedByEmbedding:
        """The initial classifier; for an unseen client the mean embedding, and statistics of its own samples."""
        own, embedding = ModelState(*shared.own), torch.zeros(self._size(ctx), dtype=ctx.task.dtype)
        state = ServedByEmbedding(data.client_id, embedding.to(data.client_id.device), own)
        if ctx.phase != "adapt":
            return state
        state = state._replace(embedding=shared.embeddings.mean(0))
        return state._replace(own=measured(ctx, own, self.served(ctx, shared, state), data))

    def client_init(
        self, ctx: Context, shared: HyperModels, state: ServedByEmbedding, data: ClientData, losses: None
    ) -> LocalRun:
        """θ̃_i = θ_i, with the client's classifier; an embedding for an unseen client."""
        run = local_run(ctx, self.served(ctx, shared, state))
        if ctx.phase != "adapt":
            return run
        fitted = ModelState({EMBEDDINGS: state.embedding[None]} | state.own.parameters, {})
        return run._replace(optimizer=ctx.solver.init(fitted), extra=state.embedding)

    def client_step(self, ctx: Context, shared: HyperModels, work: LocalRun, batch: Batch) -> LocalRun:
        """θ̃_i <- θ̃_i - η ∇L_i(θ̃_i); of an unseen client v <- v - η (∂h/∂v)ᵀ ∇L(h(v; φ))."""
        if ctx.phase != "adapt":
            return local_step(ctx, work, batch)
        loss, gradient, _ = ctx.task.value_and_grad(work.models, batch)
        made, back = vjp(lambda v: _generated(ctx, shared, v), work.extra)  # type: ignore[misc]
        fitted = {EMBEDDINGS: work.extra[None]} | tree.named(work.models.parameters, shared.own[0])
        slopes = {EMBEDDINGS: back(tree.named(gradient, made))[0][None]} | tree.named(gradient, shared.own[0])
        fitted, optimizer = ctx.solver.update(fitted, slopes, work.optimizer, ctx.lr)
        embedding = fitted.pop(EMBEDDINGS)[0]
        parameters = joined(ctx.task.network, _generated(ctx, shared, embedding), fitted)
        models = work.models._replace(parameters=parameters)
        return LocalRun(models, optimizer, work.loss + loss.mean(), work.steps + 1, embedding)

    def client_final(self, ctx: Context, shared: HyperModels, work: LocalRun, data: ClientData) -> ClientResult:
        """Send θ̃_i to the server, which knows θ_i; keep the classifier."""
        own = names_of(shared.own)
        sent = tree.named(work.models.parameters, work.models.parameters.keys() - own)
        embedding = work.extra if ctx.phase == "adapt" else work.loss.new_zeros(self._size(ctx))
        state = ServedByEmbedding(data.client_id, embedding, named_part(work.models, own))
        return local_result(ctx, work, data, sent, state, down=tree.bits(sent))

    def server_step(self, ctx: Context, shared: HyperModels, reduced: Reduced, client_ids: Tensor) -> HyperModels:
        """φ <- φ + α mean_i (∂θ_i/∂φ)ᵀ Δθ_i, likewise v_i."""
        gradient = _clipped(_slopes(ctx, shared, reduced, client_ids), self.clip_norm)
        given = shared.network | {EMBEDDINGS: shared.embeddings}
        network, moments = self.server_optimizer.update(ctx, given, gradient, shared.moments)
        return shared._replace(embeddings=network.pop(EMBEDDINGS), network=network, moments=moments)

    def sent(self, ctx: Context, shared: HyperModels, client_id: int) -> HyperModels:
        """The client's model; for an unseen client the hypernetwork and the mean embedding."""
        if client_id >= ctx.num_clients:
            return shared._replace(embeddings=shared.embeddings.mean(0, keepdim=True), moments=NOT_SENT)
        own = shared.own if ctx.phase == "init" else tree.map_leaves(lambda leaf: leaf.new_empty(0), shared.own)
        model = _generated(ctx, shared, shared.embeddings[client_id])
        return HyperModels(NOT_SENT, NOT_SENT, NOT_SENT, own, model)

    def num_payloads(self, ctx: Context, shared: HyperModels, num_clients: int) -> int:
        """A generated model for each client."""
        return num_clients

    def served(self, ctx: Context, shared: HyperModels, state: ServedByEmbedding) -> ModelState:
        """θ_i with the client's classifier; for an unseen client the model of its fitted embedding."""
        made = shared.generated
        if made is NOT_SENT:
            made = _generated(ctx, shared, _embedding_of(ctx, shared, state))
        return state.own._replace(parameters=joined(ctx.task.network, made, state.own.parameters))


@dataclass(frozen=True)
class PFedHNPC(PFedHN):
    """pFedHN-PC: the hypernetwork generates all but the classifier, which each client trains and keeps.

    Args:
        head: names of the classifier's leaves or modules, as patterns; `head` is the last layer.
    """

    head: Patterns = ("head",)

    def own_names(self, ctx: Context) -> frozenset[str]:
        """The classifier."""
        return named_leaves(ctx.task, self.head, "--model.algorithm.head", may_be_all=False)


class _Parts(nn.Module):
    """Fresh parameters of a hypernetwork, and embeddings of all clients."""

    def __init__(self, embeddings: tuple[int, int], width: int, depth: int, sizes: list[int]) -> None:
        super().__init__()
        self.trunk = nn.ModuleList(nn.Linear(width if k else embeddings[1], width) for k in range(depth + 1))
        self.leaves = nn.ModuleList(nn.Linear(width, size) for size in sizes)
        self.embeddings = nn.Parameter(torch.randn(embeddings))


def _shapes(ctx: Context, own: Collection[str]) -> dict[str, torch.Size]:
    """Shapes of the leaves of one model that the hypernetwork generates."""
    leaves = ctx.task.network.named_parameters()
    return {name: leaf.shape for name, leaf in leaves if name not in ctx.task.frozen and name not in own}


def _generated(ctx: Context, shared: HyperModels, embedding: Tensor) -> Leaves:
    """h(v; φ) of an embedding [D], leaves [1, ...]; in the precision of models, also if outputs have less."""
    network, hidden = shared.network, embedding

    def layer(name: str, hidden: Tensor) -> Tensor:
        return F.linear(hidden, network[f"{name}.weight"], network[f"{name}.bias"])

    with torch.autocast(embedding.device.type, enabled=False):
        for k in range(sum(name.startswith("trunk.") and name.endswith(".bias") for name in network)):
            hidden = layer(f"trunk.{k}", hidden.relu() if k else hidden)
        like = enumerate(_shapes(ctx, shared.own[0]).items())
        return {name: layer(f"leaves.{place}", hidden).view(1, *shape) for place, (name, shape) in like}


def _slopes(ctx: Context, shared: HyperModels, reduced: Reduced, client_ids: Tensor) -> Leaves:
    """The gradient of -mean_i ⟨h(v_i; φ), Δθ_i⟩ by φ and all v."""
    given = {name: leaf.detach().requires_grad_() for name, leaf in shared.network.items()}
    given[EMBEDDINGS] = shared.embeddings.detach().requires_grad_()
    share = (reduced.weight / reduced.weight.sum()).to(shared.embeddings.dtype)
    with torch.enable_grad():
        made = vmap(partial(_generated, ctx, shared._replace(network=given)))(given[EMBEDDINGS][client_ids])
        change = {name: leaf - made[name].detach() for name, leaf in reduced.value.items()}
        along = [(share @ (made[name] * change[name]).flatten(1)).sum() for name in made]
        slopes = torch.autograd.grad(-torch.stack(along).sum(), list(given.values()))
    return dict(zip(given, slopes, strict=True))


def _embedding_of(ctx: Context, shared: HyperModels, state: ServedByEmbedding) -> Tensor:
    """The embedding [D] of a seen client, or the one that an unseen client fitted."""
    known = shared.embeddings.index_select(0, state.client_id.clamp(max=len(shared.embeddings) - 1).view(1))[0]
    return torch.where(state.client_id < ctx.num_clients, known, state.embedding)


def _clipped(gradient: Leaves, clip_norm: float | None) -> Leaves:
    """The gradient clipped to this norm over all leaves."""
    if clip_norm is None:
        return gradient
    return tree.scale(gradient, (clip_norm / (tree.norm(gradient) + 1e-6)).clamp(max=1.0))  # type: ignore[no-any-return]
