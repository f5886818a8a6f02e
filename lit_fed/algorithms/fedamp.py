"""FedAMP: each client's model is pulled towards an average of all models that favours similar ones; HeurFedAMP.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang. "Personalized Cross-Silo Federated Learning on Non-IID Data". AAAI 2021.
https://arxiv.org/abs/2007.03797, Algorithm 1 with A(x) = 1 − exp(−x/σ); HeurFedAMP from the section on deep networks.
It minimises Σ_i F_i(w_i) + λ·Σ_{i<j} A(‖w_i − w_j‖²).

Symbols:
    w_i  -> shared.peers, state.models  the model of client i, leaves [T, 1, ...] and [1, ...]
    u_i  -> work.extra             its personalised cloud model Σ_j ξ_ij w_j, leaves [1, ...]
    ξ_ij -> shared.attention       weight of client j for client i, [T, T] float64; rows sum to 1
    σ    -> sigma                  scale of squared distances (FedAMP), or factor of cosines (HeurFedAMP)
    α_k  -> step_size              step of the server; constant
    λ    -> prox_weight            a client minimises F_i(w) + λ/(2α_k)·‖w − u_i‖²
    ξ_ii -> self_attention         HeurFedAMP's; there λ/α_k is one number, `prox_weight`
Deviations:
    In the paper all clients take part in each round. Ours: the server keeps the models of absent clients, which count
    with their last w_j; PFLlib counts only the clients of the round.
    The paper solves the clients' problem. Ours: local steps from w_i. PFLlib computes its penalty, the norm ‖w − u_i‖
    instead of its square, from values without a gradient, so that its clients train alone, as in `Local`; it does not
    have HeurFedAMP.
    Beyond α_k/σ·(T − 1) = 1 a client's own weight ξ_ii could be negative; such settings are refused.
    Ours: cosines and distances are those of trained parameters; running statistics stay with their client.
    Ours: an unseen client starts from the mean of all models and trains as in a round, pulled towards it.
    No program of the authors was found.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import (
    LocalRun,
    MessageSpec,
    OwnModel,
    Participation,
    Personal,
    local_result,
    local_run,
    local_step,
    ranged,
)
from lit_fed.core.context import Context
from lit_fed.core.graphs.peers import Peers, combine, lone_peer, own_models, put_models, same_start
from lit_fed.core.graphs.similarity import cosines, inner_products, square_distances
from lit_fed.core.local_solver import Penalty
from lit_fed.core.types import Batch, ClientData, ClientResult, Leaves, ModelState, Reduced
from lit_fed.errors import ConfigError

__all__ = ["AttendedPeers", "AttentiveMessagePassing", "FedAMP", "HeurFedAMP"]


class AttendedPeers(NamedTuple):
    """The server's state."""

    peers: Peers  # w_i, leaves [T, 1, ...]
    attention: Tensor  # ξ, [T, T] float64; [1, 1] at a client, whose peers hold only u_i


@dataclass(frozen=True)
class AttentiveMessagePassing(Personal[AttendedPeers, OwnModel, LocalRun], ABC):
    """Algorithm 1 without its weights ξ, in which the two methods differ."""

    message = MessageSpec("rows", reduce="stack")
    participation = Participation(weighting="uniform", counts_draws=False, fills_in_absent=False)
    state_reads_data = True
    incompatible = {"local_norm": "averages the models of all clients with weights of their own"}

    @abstractmethod
    def attention(self, models: Leaves) -> Tensor:
        """ξ [T, T] of models with leaves [T, 1, ...]."""

    @abstractmethod
    def pull(self, ctx: Context) -> float:
        """λ/α_k, the weight of ½·‖w − u_i‖²."""

    def shared_init(self, ctx: Context) -> AttendedPeers:
        """All w_i start equal."""
        peers = same_start(ctx.task.init(1, ctx.seed), ctx.num_clients)
        return AttendedPeers(peers, torch.eye(ctx.num_clients, dtype=torch.float64))

    def state_init(self, ctx: Context, shared: AttendedPeers, data: ClientData) -> OwnModel:
        """The common start; for an unseen client the mean of all w_j."""
        return OwnModel(own_models(shared.peers, data.client_id))

    def client_init(
        self, ctx: Context, shared: AttendedPeers, state: OwnModel, data: ClientData, losses: None
    ) -> LocalRun:
        """Training continues from w_i; u_i comes from the server."""
        return local_run(ctx, state.models, _cloud(ctx, shared, data.client_id))

    def client_step(self, ctx: Context, shared: AttendedPeers, work: LocalRun, batch: Batch) -> LocalRun:
        """A step on F_i(w) + λ/(2α_k)·‖w − u_i‖²."""
        return local_step(ctx, work, batch, penalty=Penalty(self.pull(ctx), work.extra))

    def client_final(self, ctx: Context, shared: AttendedPeers, work: LocalRun, data: ClientData) -> ClientResult:
        """Send w_i, and keep it."""
        return local_result(ctx, work, data, state=OwnModel(work.models))

    def server_step(self, ctx: Context, shared: AttendedPeers, reduced: Reduced, client_ids: Tensor) -> AttendedPeers:
        """Keep the new w_i, then ξ; u_i = Σ_j ξ_ij w_j is what client i is sent next."""
        peers = put_models(shared.peers, client_ids, reduced.value)
        return AttendedPeers(peers, self.attention(peers.parameters))

    def sent(self, ctx: Context, shared: AttendedPeers, client_id: int) -> ModelState:
        """u_i; also the starting model for clients without one."""
        own = torch.tensor(client_id, device=shared.attention.device)
        if ctx.phase in ("init", "adapt"):
            return own_models(shared.peers, own)
        return ModelState(_cloud(ctx, shared, own), {})

    def received(self, ctx: Context, sent: ModelState, client_id: int) -> AttendedPeers:
        """The received model, in place of all."""
        one = torch.ones(1, 1, dtype=torch.float64, device=ctx.lr.device)
        return AttendedPeers(lone_peer(sent, client_id, ctx.num_clients), one)

    def collaboration(self, ctx: Context, shared: AttendedPeers, states: OwnModel) -> Tensor:
        """ξ."""
        return shared.attention


@dataclass(frozen=True)
class FedAMP(AttentiveMessagePassing):
    """Models attract each other more strongly if they are closer: descent on the sum of losses plus that of A.

    Args:
        prox_weight: λ; the pull towards the cloud model is λ/α_k.
        sigma: σ; models at a squared distance far above it do not attract each other.
        step_size: α_k; null takes the maximum, σ/(T − 1), at which a client's weight in its cloud model may reach 0.
    """

    prox_weight: float = ranged(0.1, ">= 0")
    sigma: float = ranged(1.0, "> 0")
    step_size: float | None = ranged(None, "> 0")

    in_every_combination = True

    def shared_init(self, ctx: Context) -> AttendedPeers:
        """The common start; a step that could make ξ_ii negative is refused."""
        largest = self._largest_step(ctx.num_clients)
        if self.step_size is not None and self.step_size > largest * (1 + 1e-9):
            raise ConfigError(
                f"--model.algorithm.step_size is {self.step_size}, with which clients may count negatively for "
                f"themselves; give at most sigma/(T − 1) = {largest:.4g}, or null"
            )
        return super().shared_init(ctx)

    def _largest_step(self, num_clients: int) -> float:
        return self.sigma / max(num_clients - 1, 1)

    def _step(self, num_clients: int) -> float:
        """α_k."""
        return self._largest_step(num_clients) if self.step_size is None else self.step_size

    def attention(self, models: Leaves) -> Tensor:
        """ξ_ij = α_k·A'(‖w_i − w_j‖²) = α_k/σ·exp(−‖w_i − w_j‖²/σ) and ξ_ii = 1 − Σ_{j≠i} ξ_ij."""
        distances = square_distances(models, models)
        others = self._step(len(distances)) / self.sigma * torch.exp(-distances / self.sigma)
        others = others - torch.diag(others.diagonal())
        return others + torch.diag(1 - others.sum(1))

    def pull(self, ctx: Context) -> float:
        """λ/α_k."""
        return self.prox_weight / self._step(ctx.num_clients)


@dataclass(frozen=True)
class HeurFedAMP(AttentiveMessagePassing):
    """FedAMP with a softmax of cosines as weights, for large networks, whose distances discriminate poorly.

    Args:
        prox_weight: λ/α_k, the pull towards the cloud model.
        sigma: σ, the factor of cosines; larger values favour the most similar models.
        self_attention: ξ_ii, weight of a client's own model in its cloud model.
    """

    prox_weight: float = ranged(1.0, ">= 0")
    sigma: float = ranged(10.0, ">= 0")
    self_attention: float = ranged(0.1, "[0, 1]")

    def attention(self, models: Leaves) -> Tensor:
        """ξ_ij = (1 − ξ_ii)·exp(σ·cos(w_i, w_j)) / Σ_{h≠i} exp(σ·cos(w_i, w_h)); 1 for a client without others."""
        products = inner_products(models)
        own = torch.eye(len(products), dtype=torch.float64, device=products.device)
        if len(own) == 1:
            return own
        scores = (self.sigma * cosines(products)).masked_fill(own > 0, -torch.inf)
        return self.self_attention * own + (1 - self.self_attention) * torch.softmax(scores, dim=1)

    def pull(self, ctx: Context) -> float:
        """λ/α_k."""
        return self.prox_weight


def _cloud(ctx: Context, shared: AttendedPeers, client_id: Tensor) -> Leaves:
    """u_i, leaves [1, ...]; for an unseen client the mean of all w_j."""
    last = len(shared.attention) - 1
    row = shared.attention.index_select(0, client_id.clamp(max=last).view(1))
    clouds = tree.index(combine(row, shared.peers.parameters), 0)
    known = client_id < ctx.num_clients
    return tree.map_leaves(lambda u, mean: torch.where(known, u, mean), clouds, shared.peers.mean.parameters)  # type: ignore[no-any-return]
