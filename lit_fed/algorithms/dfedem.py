"""D-FedEM: FedEM without a server; clients mix their component models with those of their neighbours.

Marfoq, Neglia, Bellet, Kameni, Vidal. "Federated Multi-Task Learning under a Mixture of Distributions". NeurIPS 2021.
https://arxiv.org/abs/2108.10252, Section 3.3 and Algorithm 4 (Appendix D.2).

Symbols:
    θ_m,t       -> shared.peers        component m of client t, leaves [T, M, ...]
    θ_m,t^k-1/2 -> work.models         component m after client t's local steps, leaves [M, ...]
    π_t         -> state.mixture       mixture weights of client t, [M], sum to 1; never leave the client
    q_t         -> work.responsibility posterior of the component of each local sample, [N, M], rows sum to 1
    W_k         -> topology, mixing    mixing matrix of round k, [T, T]; its diagonal is free
Deviations:
    A doubly stochastic W gives each client's loss the same weight; `--model.weighting samples` scales it by T·n_t/n.
    All clients are active in the paper. Ours: the weight of an absent neighbour goes to the diagonal, on both sides.
    Ours: an unseen client asks all clients for their components, and takes FedEM's `em_steps` E-steps on the mean.
    The authors' code forces the diagonal of W to zero, so that clients throw away their own models, and never updates
    the models that unseen clients are served with; neither is offered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from lit_fed.algorithms.base import Algorithm
from lit_fed.core import tree
from lit_fed.core.errors import check_settings
from lit_fed.core.local import OptimizerState
from lit_fed.core.mixing import MixingRule, mixing_matrix, restrict
from lit_fed.core.mixture import batch_weights, expectation
from lit_fed.core.peers import Peers, links, own_models, place, same_start
from lit_fed.core.topology import ErdosRenyi, Topology, adjacency
from lit_fed.core.types import Batch, ClientData, ClientResult, Context, LocalWork, Message, ModelState, Reduced

__all__ = ["DFedEM", "PeerComponents", "PeerMixture"]


class PeerComponents(NamedTuple):
    """What the network holds."""

    peers: Peers  # θ_m,t, leaves [T, M, ...]


class PeerMixture(NamedTuple):
    """What a client keeps."""

    mixture: Tensor  # π_t, [M]
    client_id: Tensor  # [] int64, whose components it is served with


class PeerWork(NamedTuple):
    """A client's phase."""

    models: ModelState  # θ_m,t, leaves [M, ...]
    optimizer: OptimizerState
    mixture: Tensor  # π_t, [M]
    responsibility: Tensor  # q_t, [N, M]; 0 in padded rows
    share: Tensor  # [] weight of the client's loss
    loss: Tensor  # [] mean negative log-likelihood of the local samples under the client's models and the old π_t


@dataclass(frozen=True)
class DFedEM(Algorithm[PeerComponents, PeerMixture, PeerWork]):
    """M component models at each client, kept together by averaging with neighbours; each learns its own mixture.

    Args:
        num_components: M.
        topology: the graph between clients.
        mixing: how the weights of neighbours follow from the graph; `fmmc` agrees fastest.
        em_steps: E-steps of a client before it is served, if it was not in training; the paper takes one.
        common_start: let all clients start from the same models; else each from models of its own.
    """

    num_components: int = 3
    topology: Topology = ErdosRenyi()  # noqa: RUF009 - frozen
    mixing: MixingRule = "fmmc"
    em_steps: int = 1
    common_start: bool = True

    reduce = "stack"
    default_weighting = "uniform"
    fills_in_absent_clients = False
    conformance_exempt: ClassVar[dict[str, str]] = {
        "client_order": "who is whose neighbour depends on the clients' numbers",
        "local_batch_norm": "all leaves of the peers' models are mixed",
    }

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        checks = {
            "num_components": (self.num_components >= 1, "a whole number >= 1"),
            "em_steps": (self.em_steps >= 1, "a whole number >= 1"),
        }
        check_settings(self, checks)

    @property
    def num_models(self) -> int:  # type: ignore[override]
        """M."""
        return self.num_components

    def shared_init(self, ctx: Context) -> PeerComponents:
        """Θ_t^0; the mixing matrix of the first round is looked at before anything is trained."""
        M, T = self.num_components, ctx.num_clients
        self._mixing(ctx, 0)
        peers = same_start(ctx.task.init(M, ctx.seed), T)
        if not self.common_start:
            own = tree.map_leaves(lambda leaf: leaf.unflatten(0, (T, M)), ctx.task.init(T * M, ctx.seed))
            peers = place(peers, torch.arange(T), own)
        return PeerComponents(peers)

    def _mixing(self, ctx: Context, round_idx: int) -> Tensor:
        return mixing_matrix(self.topology, self.mixing, ctx.num_clients, ctx.seed, round_idx)

    def state_init(self, ctx: Context, shared: PeerComponents, data: ClientData) -> PeerMixture:
        """π_t starts uniform."""
        return PeerMixture(torch.full((self.num_models,), 1 / self.num_models, dtype=ctx.task.dtype), data.client_id)

    def client_init(
        self, ctx: Context, shared: PeerComponents, state: PeerMixture, data: ClientData, losses: None
    ) -> PeerWork:
        """The E-step and the new mixture weights, both from the client's own components (Alg. 4, lines 4-6)."""
        models = own_models(shared.peers, data.client_id)
        each = ctx.task.losses(ctx.task.outputs(models, data.x), data.y)
        pi, q, negative_log_likelihood = expectation(state.mixture, each, data.mask)
        for _ in range(self.em_steps - 1 if ctx.phase == "adapt" else 0):
            pi, q, _ = expectation(pi, each, data.mask)
        share = ctx.client_share(data).to(ctx.task.dtype)
        return PeerWork(models, ctx.solver.init(models), pi, q, share, negative_log_likelihood)

    def client_step(self, ctx: Context, shared: PeerComponents, work: PeerWork, batch: Batch) -> PeerWork:
        """A step of every component on its weighted loss (Alg. 4, line 7)."""
        weight = work.share * batch_weights(work.responsibility, batch)
        models, optimizer = ctx.solver.move(ctx.task, work.models, work.optimizer, batch, ctx.lr, weight=weight)
        return work._replace(models=models, optimizer=optimizer)

    def client_final(self, ctx: Context, shared: PeerComponents, work: PeerWork, data: ClientData) -> ClientResult:
        """Θ_t goes to each neighbour, and theirs come back (Alg. 4, lines 8-9); π_t stays."""
        edges = adjacency(self.topology, ctx.num_clients, ctx.seed, ctx.round_idx)
        bits = tree.bits(work.models) * links(ctx, edges, data.client_id)
        message = Message(work.models, ctx.client_weight(data), bits, bits)
        return ClientResult(message, PeerMixture(work.mixture, data.client_id), {"loss": work.loss})

    def server_step(self, ctx: Context, shared: PeerComponents, reduced: Reduced, client_ids: Tensor) -> PeerComponents:
        """θ_m,t <- Σ_j [W_k]_tj θ_m,j^k-1/2 (Alg. 4, line 10): what the network does, in one place."""
        matrix = self._mixing(ctx, ctx.round_idx)
        matrix = matrix if ctx.present is None else restrict(matrix, ctx.present.cpu())
        return PeerComponents(place(shared.peers, client_ids, reduced.value, matrix))

    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork | None:
        """An E-step of an unseen client, and no local steps."""
        return None if seen else LocalWork()

    def collaboration(self, ctx: Context, shared: PeerComponents, states: PeerMixture) -> Tensor:
        """The mixing matrix of the round."""
        return self._mixing(ctx, ctx.round_idx)

    def shared_outputs(self, ctx: Context, shared: PeerComponents, x: Tensor) -> None:
        """Nothing is shared by all: each client has components of its own."""

    def log_prob(self, ctx: Context, shared: PeerComponents, state: PeerMixture, x: Tensor, outputs: None) -> Tensor:
        """Log Σ_m π_tm p(y | x, θ_m,t), [B, C]."""
        return ctx.task.mix(state.mixture, ctx.task.outputs(own_models(shared.peers, state.client_id), x))
