"""D-FedEM: FedEM without a server; clients mix their component models with those of their neighbours.

Marfoq, Neglia, Bellet, Kameni, Vidal. "Federated Multi-Task Learning under a Mixture of Distributions". NeurIPS 2021.
https://arxiv.org/abs/2108.10252, Section 3.3 and Algorithm 4 (Appendix D.2).

Symbols:
    θ_m,t       -> shared              component m of client t, leaves [T, M, ...]
    θ_m,t^k-1/2 -> work.models         component m after client t's local steps, leaves [M, ...]
    π_t         -> state.mixture       mixture weights of client t, [M], sum to 1; never sent by D-FedEM
    q_t         -> work.responsibility posterior of the component of each local sample, [N, M], rows sum to 1
    W_k         -> topology, mixing    mixing matrix of round k, [T, T], for T clients; rows sum to 1
    n_t, n      ->                     samples of client t, and of all clients
Deviations:
    A doubly stochastic W gives each client's loss the same weight; `--model.weighting samples` scales it by T·n_t/n.
    D-FedEM averages a neighbour's component by W_tj, as in the paper. `ResponsibilityDFedEM` is another rule.
    All clients are active in the paper. Ours: the weight of an edge to an absent client goes to the diagonal of W_k.
    Ours: an unseen client asks all clients for their components, and takes `em_steps` E-steps on their mean.
    Sequences: the E-step takes the mean loss of a sequence's positions, or with `position_loss: sum` the likelihood of
    the whole text, exp(−L·ℓ) for L positions of mean loss ℓ; serving mixes each position, as FedEM does.
    The authors' code forces the diagonal of W to zero, so clients discard their own models, and never updates the
    models that serve unseen clients; neither is offered.
"""

# No `from __future__ import annotations`: jsonargparse resolves inherited annotations in the module of a subclass.
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.core.algorithm import ranged
from lit_fed.core.context import Context
from lit_fed.core.graphs.mixing import Gossiping, MixingRule, gossip, traffic
from lit_fed.core.graphs.peers import PeerMessage, Peers, own_models
from lit_fed.core.graphs.topology import ErdosRenyi, Topology
from lit_fed.core.local_solver import OptimizerState
from lit_fed.core.mixtures.e_step import PositionLoss, batch_weights, private_expectation
from lit_fed.core.types import Batch, ClientData, ClientResult, Message, ModelState, Reduced
from lit_fed.wrappers.mixture_start import MixtureStart

__all__ = ["DFedEM", "PeerMixture", "PeerWork", "ResponsibilityDFedEM"]


class PeerMixture(NamedTuple):
    """A client's state."""

    mixture: Tensor  # π_t, [M]
    client_id: Tensor  # [] int64, client whose components serve it


class PeerWork(NamedTuple):
    """A client's phase."""

    models: ModelState  # θ_m,t, leaves [M, ...]
    optimizer: OptimizerState
    mixture: Tensor  # π_t, [M]
    responsibility: Tensor  # q_t, [N, M]; 0 in padded rows
    weight: Tensor  # [] of the client's loss
    loss: Tensor  # [] mean negative log-likelihood of the local samples under the client's models and the old π_t


@dataclass(frozen=True)
class DFedEM(Gossiping[PeerMixture, PeerWork]):
    """M component models at each client, averaged with those of neighbours; each client learns its own mixture.

    Args:
        num_components: M.
        topology: the graph between clients.
        mixing: rule for the weights of neighbours; `fmmc`, the fastest mixing Markov chain, converges fastest.
        em_steps: E-steps of an unseen client before it is served; the paper takes one.
        common_start: start all clients from the same models; otherwise each from different ones.
        position_loss: loss of a sequence in the E-step: the `mean` over its positions, or their `sum`,
            the likelihood of the whole text.
        start: `Clustering`: begin with rounds of IFCA, so that groups of clients do not share a component; null: none.
    """

    in_every_combination = True
    serving_settings = ("em_steps",)

    num_components: int = ranged(3, ">= 1")
    topology: Topology = ErdosRenyi()  # noqa: RUF009 - frozen
    mixing: MixingRule = "fmmc"
    em_steps: int = ranged(1, ">= 1")
    common_start: bool = True
    position_loss: PositionLoss = "mean"
    start: MixtureStart | None = None

    @property
    def num_models(self) -> int:  # type: ignore[override]
        return self.num_components

    def state_init(self, ctx: Context, shared: Peers, data: ClientData) -> PeerMixture:
        """π_t starts uniform."""
        return PeerMixture(torch.full((self.num_models,), 1 / self.num_models, dtype=ctx.task.dtype), data.client_id)

    def client_init(self, ctx: Context, shared: Peers, state: PeerMixture, data: ClientData, losses: None) -> PeerWork:
        """The E-step and the new mixture weights, both from the client's own components (Alg. 4; Eq. 8-9)."""
        models = own_models(shared, data.client_id)
        each = ctx.task.sample_losses(models, data)
        pi, q, loss = private_expectation(ctx, state.mixture, each, data, self.position_loss)
        for _ in range(self.em_steps - 1 if ctx.phase == "adapt" else 0):
            pi, q, _ = private_expectation(ctx, pi, each, data, self.position_loss)
        weight = ctx.client_share(data).to(ctx.task.dtype)
        return PeerWork(models, ctx.solver.init(models), pi, q, weight, loss)

    def client_step(self, ctx: Context, shared: Peers, work: PeerWork, batch: Batch) -> PeerWork:
        """A step of every component on its weighted loss (Alg. 4: LocalSolver)."""
        weight = work.weight * batch_weights(work.responsibility, batch)
        models, optimizer, _ = ctx.solver.step(ctx.task, work.models, work.optimizer, batch, ctx.lr, weight=weight)
        return work._replace(models=models, optimizer=optimizer)

    def client_final(self, ctx: Context, shared: Peers, work: PeerWork, data: ClientData) -> ClientResult:
        """Exchange the components with each neighbour."""
        bits = traffic(ctx, self.topology, work.models, data.client_id)
        message = Message(work.models, ctx.client_weight(data), bits, bits)
        return ClientResult(message, PeerMixture(work.mixture, data.client_id), {"loss": work.loss})

    def server_step(self, ctx: Context, shared: Peers, reduced: Reduced, client_ids: Tensor) -> Peers:
        """θ_m,t^k = Σ_j [W_k]_tj θ_m,j^k-1/2: computed for the whole network in one place."""
        return gossip(ctx, shared, client_ids, reduced.value, self.matrix(ctx))

    def log_prob(self, ctx: Context, shared: Peers, state: PeerMixture, x: Tensor, outputs: None) -> Tensor:
        """Log Σ_m π_tm p(y | x, θ_m,t), [B, C]."""
        return ctx.task.mix(state.mixture, ctx.task.outputs(own_models(shared, state.client_id), x))


@dataclass(frozen=True)
class ResponsibilityDFedEM(DFedEM):
    """D-FedEM with each neighbour's components weighted by its mixture weights, which it sends along.

    θ_m,t <- Σ_j W_tj π_jm θ_m,j / Σ_j W_tj π_jm: one step of a ratio of two averages over the graph; not in the paper.
    An unseen client takes its E-steps on the mean weighted by each client's last π_t, at first 1/M.
    """

    def shared_init(self, ctx: Context) -> Peers:
        """θ_m,t^0, and π_t before the first round."""
        even = torch.full((ctx.num_clients, self.num_models), 1 / self.num_models, dtype=torch.float64)
        return super().shared_init(ctx)._replace(shares=even)

    def client_final(self, ctx: Context, shared: Peers, work: PeerWork, data: ClientData) -> ClientResult:
        """Exchange the components and π_t with each neighbour."""
        result, value = super().client_final(ctx, shared, work, data), PeerMessage(work.models, work.mixture.double())
        bits = traffic(ctx, self.topology, value, data.client_id)
        return result._replace(message=result.message._replace(value=value, bits_up=bits, bits_down=bits))

    def server_step(self, ctx: Context, shared: Peers, reduced: Reduced, client_ids: Tensor) -> Peers:
        """θ_m,t^k = Σ_j [W_k]_tj π_jm θ_m,j^k-1/2 / Σ_j [W_k]_tj π_jm."""
        return gossip(ctx, shared, client_ids, reduced.value.models, self.matrix(ctx), reduced.value.share)
