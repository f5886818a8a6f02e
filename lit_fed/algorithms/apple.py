"""APPLE: each client learns the weights of all clients' core models in its personal model, while it trains.

Luo, Wu. "Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning". IJCAI 2022.
https://arxiv.org/abs/2110.08394, Algorithm 1.

Symbols:
    w_i^(c)  -> shared.peers, work.core  the core model of client i, leaves [T, 1, ...] and [1, ...]
    w_i^(p)  -> state.models, work.models  its personalised model Σ_j p_ij w_j^(c), leaves [1, ...]
    p_i      -> _relations      p_0 + state.shift, its directed relationship vector, [T]; entries may be negative
    p_0      -> _relations      with shift 0: shares of the samples, n_j/n, [T]
    μ, λ(r)  -> proximal_weight, _dynamic  the penalty λ(r)·μ/2·‖p_i − p_0‖²
    η_1, η_2 -> solver.lr, relation_lr
    L        -> regularised_rounds
Deviations:
    A client downloads all core models; downloading only M of them under limited bandwidth is not offered.
    All core models start equal. The server learns n_j from the first message of client j; until then p_0 uses the
    average of the others for it, so p_0 is 1/T in round 0. L is a number of rounds, not a share of them.
    The authors' code penalises μ·‖p_i − p_0‖², and updates p_i with momentum. Here steps of p_i are plain, and the
    core model takes the solver's steps.
    PFLlib uploads w_i^(p) in place of w_i^(c), and averages over the entries of a leaf in the gradient of p_i.
    Running statistics are those of w_i^(p). Core models of absent clients do not change.
    Ours: an unseen client has no core model; it starts with p_0 and learns only p_i, for `unseen_epochs` passes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import MessageSpec, Participation, Personal, local_run
from lit_fed.core.context import Context
from lit_fed.core.graphs.peers import Peers, own_models, put_models, same_start
from lit_fed.core.local_solver import OptimizerState
from lit_fed.core.networks.products import full_precision
from lit_fed.core.types import Batch, ClientData, ClientResult, Message, ModelState, Reduced
from lit_fed.errors import check_settings

__all__ = ["APPLE", "AppleRun", "CoreModel", "CoreModels", "DirectedRelations"]

Leaves = dict[str, Tensor]

LOWEST = 1e-3  # value of the exponential schedule in round L


class CoreModels(NamedTuple):
    """The server's state, which is also broadcast."""

    peers: Peers  # w_j^(c), leaves [T, 1, ...]
    samples: Tensor  # n_j, [T] float64; 0 while unknown


class DirectedRelations(NamedTuple):
    """A client's state."""

    models: ModelState  # w_i^(p), leaves [1, ...]
    shift: Tensor  # p_i − p_0, [T] float64


class AppleRun(NamedTuple):
    """A client's phase."""

    models: ModelState  # w_i^(p), leaves [1, ...]
    optimizer: OptimizerState  # of w_i^(c)
    loss: Tensor  # [] sum over steps of the mean loss of the batch, before the step
    steps: Tensor  # [] steps taken
    core: Leaves  # w_i^(c), leaves [1, ...]; unused for an unseen client
    start: Leaves  # the server's copy of it, leaves [1, ...]
    shift: Tensor  # p_i − p_0, [T] float64
    place: Tensor  # [T] float64, 1 for the client itself


class CoreModel(NamedTuple):
    """A client's message value."""

    models: ModelState  # w_i^(c), leaves [1, ...]
    samples: Tensor  # n_i, [] float64; 1 with equal weights


@dataclass(frozen=True)
class APPLE(Personal[CoreModels, DirectedRelations, AppleRun]):
    """Personalised models that mix the core models of all clients with learnt weights, which need not sum to 1.

    Args:
        relation_lr: η_2, learning rate of the weights p_i.
        proximal_weight: μ, weight of the pull of p_i towards p_0 at the start of the run.
        regularised_rounds: L, rounds after which the pull ends.
        schedule: decay of λ from 1 by round r: `cosine`, (1 + cos(πr/L))/2; `exponential`, 0.001^(r/L).
    """

    relation_lr: float = 1e-3
    proximal_weight: float = 0.1
    regularised_rounds: int = 20
    schedule: Literal["cosine", "exponential"] = "exponential"

    message = MessageSpec("rows", reduce="stack")
    participation = Participation(counts_draws=False, fills_in_absent=False)
    incompatible: ClassVar[dict[str, str]] = {"local_norm": "mixes all leaves of the core models"}

    def __post_init__(self) -> None:
        names = "relation_lr", "proximal_weight", "regularised_rounds", "unseen_epochs"
        check_settings(self, dict.fromkeys(names, ">= 0"))

    def shared_init(self, ctx: Context) -> CoreModels:
        """Equal core models; no n_j is known yet."""
        peers = same_start(ctx.task.init(1, ctx.seed), ctx.num_clients)
        return CoreModels(peers, torch.zeros(ctx.num_clients, dtype=torch.float64))

    def state_init(self, ctx: Context, shared: CoreModels, data: ClientData) -> DirectedRelations:
        """p_i = p_0."""
        shift = torch.zeros_like(shared.samples)
        start = shared.peers.mean
        return DirectedRelations(start._replace(parameters=_weighed(shared, shift)), shift)

    def client_init(
        self, ctx: Context, shared: CoreModels, state: DirectedRelations, data: ClientData, losses: None
    ) -> AppleRun:
        """w_i^(p) <- Σ_j p_ij w_j^(c) with the core models of this round (line 4)."""
        place = (torch.arange(ctx.num_clients, device=data.client_id.device) == data.client_id).double()
        models = state.models._replace(parameters=_weighed(shared, state.shift))
        core = own_models(shared.peers, data.client_id).parameters
        return AppleRun(*local_run(ctx, models)[:4], core, core, state.shift, place)

    def client_step(self, ctx: Context, shared: CoreModels, work: AppleRun, batch: Batch) -> AppleRun:
        """Steps of w_i^(c) and p_i down the loss of w_i^(p) and the penalty (lines 6-8)."""
        loss, gradient, buffers = ctx.task.value_and_grad(work.models, batch)
        scaled = tree.scale(gradient, _own_relation(shared, work))
        core, optimizer = ctx.solver.update(work.core, scaled, work.optimizer, ctx.lr)
        slope = _products(shared, gradient) + work.place * tree.dot(gradient, tree.sub(work.core, work.start))
        shift = work.shift - self.relation_lr * (slope + self._dynamic(ctx.round_idx) * work.shift)
        work = work._replace(core=core, shift=shift, optimizer=optimizer, loss=work.loss + loss.mean())
        return work._replace(models=ModelState(_personalised(shared, work), buffers), steps=work.steps + 1)

    def _dynamic(self, round_idx: int) -> float:
        """λ(r)·μ."""
        if round_idx >= self.regularised_rounds:
            return 0.0
        passed = round_idx / self.regularised_rounds
        falls = (1 + math.cos(math.pi * passed)) / 2 if self.schedule == "cosine" else LOWEST**passed
        return self.proximal_weight * falls

    def client_final(self, ctx: Context, shared: CoreModels, work: AppleRun, data: ClientData) -> ClientResult:
        """Send w_i^(c) and n_i; keep w_i^(p) and p_i (line 10)."""
        weight = ctx.client_weight(data)
        down = torch.full_like(weight, tree.bits(work.core) * (ctx.num_clients - 1))
        message = Message(CoreModel(work.models._replace(parameters=work.core), weight), weight, bits_down=down)
        loss = work.loss / work.steps.clamp(min=1)
        return ClientResult(message, DirectedRelations(work.models, work.shift), {"loss": loss})

    def server_step(self, ctx: Context, shared: CoreModels, reduced: Reduced, client_ids: Tensor) -> CoreModels:
        """Keep the new core models, and the numbers of samples."""
        new: CoreModel = reduced.value
        samples = shared.samples.index_copy(0, client_ids, new.samples)
        return CoreModels(put_models(shared.peers, client_ids, new.models), samples)

    def sent(self, ctx: Context, shared: CoreModels, client_id: int) -> CoreModels:
        """All core models."""
        return shared

    def collaboration(self, ctx: Context, shared: CoreModels, states: DirectedRelations) -> Tensor:
        """p_i of all clients."""
        return _relations(shared, states.shift)


def _relations(shared: CoreModels, shift: Tensor) -> Tensor:
    """p_i = p_0 + shift, [..., T] float64."""
    known = shared.samples > 0
    average = shared.samples.sum() / known.sum().clamp(min=1)
    filled = torch.where(known, shared.samples, torch.where(average > 0, average, 1.0))
    return filled / filled.sum() + shift


def _weighed(shared: CoreModels, shift: Tensor) -> Leaves:
    """Σ_j p_ij w_j^(c) over the server's core models, leaves [1, ...]."""
    relations = _relations(shared, shift)

    def mix(leaf: Tensor) -> Tensor:
        return (relations.to(leaf.dtype) @ leaf.reshape(len(leaf), -1)).view(leaf.shape[1:])

    with full_precision(relations):
        return tree.map_leaves(mix, shared.peers.parameters)  # type: ignore[no-any-return]


def _own_relation(shared: CoreModels, work: AppleRun) -> Tensor:
    """p_ii, []; 0 for an unseen client."""
    return work.place @ _relations(shared, work.shift)


def _personalised(shared: CoreModels, work: AppleRun) -> Leaves:
    """w_i^(p) with the client's current core model, leaves [1, ...]."""
    moved = tree.scale(tree.sub(work.core, work.start), _own_relation(shared, work))
    return tree.add(_weighed(shared, work.shift), moved)  # type: ignore[no-any-return]


def _products(shared: CoreModels, gradient: Leaves) -> Tensor:
    """⟨∇F(w_i^(p)), w_j^(c)⟩ for all j, [T] float64."""
    with full_precision(shared.samples):
        products = [
            leaf.reshape(len(leaf), -1) @ gradient[name].reshape(-1) for name, leaf in shared.peers.parameters.items()
        ]
    return torch.stack([one.double() for one in products]).sum(0)
