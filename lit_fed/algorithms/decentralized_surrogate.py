"""Decentralised surrogate optimisation: clients minimise majorisers of their objectives and mix models with neighbours.

Marfoq, Neglia, Bellet, Kameni, Vidal. "Federated Multi-Task Learning under a Mixture of Distributions". NeurIPS 2021.
https://arxiv.org/abs/2108.10252, Algorithm 5 (Section 3.4, Appendix D.2); D-FedEM is an instance.

Symbols:
    u_t -> shared            models of client t, leaves [T, M, ...]; u_t^k-1/2 in `work.models` before mixing
    v_t -> state.local       the local variable of client t, a tree of the surrogate's choice; never leaves the client
    g_t -> work.extra        the surrogate near (u_t, v_t), a tree of the surrogate's choice
    ω_t -> work.extra        weight of f_t in the objective, times T: 1, or T·n_t/n
    W_k -> topology, mixing  mixing matrix of round k, [T, T]
Deviations:
    A doubly stochastic W gives all clients equal weight, so ω_t cannot be a weight of the average: it is a weight of
    g_t, and 1/T for any `surrogate.weighting`; `--model.weighting samples` makes it n_t/n.
    All clients are active in the paper. Ours: the weight of an absent neighbour goes to the diagonal, on both sides.
    Ours: an unseen client asks all clients for their models, and fits v_t `unseen_steps` times to their mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import LocalRun, local_result, local_run, ranged
from lit_fed.core.context import Context
from lit_fed.core.graphs.mixing import Gossiping, MixingRule, gossip, traffic
from lit_fed.core.graphs.peers import Peers, own_models
from lit_fed.core.graphs.topology import ErdosRenyi, Topology
from lit_fed.core.mixtures.known_surrogates import MixtureSurrogate
from lit_fed.core.mixtures.surrogate import Surrogate
from lit_fed.core.types import Batch, ClientData, ClientResult, ModelState, Reduced, Tree

__all__ = ["DecentralizedSurrogate", "PeerLocal"]


class PeerLocal(NamedTuple):
    """A client's state."""

    local: Tree  # v_t
    client_id: Tensor  # [] int64, client whose models serve it


@dataclass(frozen=True)
class DecentralizedSurrogate(Gossiping[PeerLocal, LocalRun]):
    """Majorise and minimise without a server: each client trains on a surrogate at its own models, then mixes them.

    Args:
        surrogate: the clients' objectives and their surrogates: `MixtureSurrogate` (D-FedEM), `MoreauSurrogate`
            (pFedMe), `IdentitySurrogate` (decentralised SGD), or a subclass of `lit_fed.Surrogate`.
        topology: the graph between clients.
        mixing: rule for the weights of neighbours; `fmmc` converges fastest.
        unseen_steps: fits of the local variable of an unseen client before it is served.
        common_start: start all clients from the same models; otherwise each from different ones.
    """

    in_every_combination = True
    serving_settings = ("unseen_steps",)

    surrogate: Surrogate = MixtureSurrogate()  # noqa: RUF009 - frozen
    topology: Topology = ErdosRenyi()  # noqa: RUF009 - frozen
    mixing: MixingRule = "fmmc"
    unseen_steps: int = ranged(1, ">= 1")
    common_start: bool = True

    incompatible = {
        **Gossiping.incompatible,
        "loss": "minimises an upper bound of the log-loss, which is none of another loss",
    }

    @property
    def num_models(self) -> int:  # type: ignore[override]
        """The models in u."""
        return self.surrogate.num_models

    def state_init(self, ctx: Context, shared: Peers, data: ClientData) -> PeerLocal:
        """v_t before the first round."""
        return PeerLocal(self.surrogate.local_init(ctx.task, own_models(shared, data.client_id), data), data.client_id)

    def client_init(self, ctx: Context, shared: Peers, state: PeerLocal, data: ClientData, losses: None) -> LocalRun:
        """The surrogate near (u_t, v_t), and its best v_t (Alg. 5: g_t, then v_t <- argmin_v g_t(u, v))."""
        models, local, bounds = own_models(shared, data.client_id), state.local, []
        each = self.surrogate.sample_losses(ctx.task, models, data)
        for _ in range(self.unseen_steps if ctx.phase == "adapt" else 1):
            bounds.append(self.surrogate.build(ctx.task, models, local, data, each))
            local = self.surrogate.argmin_local(bounds[-1])
        share = ctx.client_share(data).to(ctx.task.dtype)
        return local_run(ctx, models, (local, bounds[-1], share))._replace(loss=bounds[0].value)

    def client_step(self, ctx: Context, shared: Peers, work: LocalRun, batch: Batch) -> LocalRun:
        """A step on u -> T·ω_t·g_t(u, v_t) (Alg. 5: LocalSolver)."""
        local, bound, share = work.extra
        gradient, buffers = self.surrogate.gradient(ctx.task, bound, local, work.models, batch)
        scaled = tree.scale(gradient, share)
        parameters, optimizer = ctx.solver.update(work.models.parameters, scaled, work.optimizer, ctx.lr)
        return work._replace(models=ModelState(parameters, buffers), optimizer=optimizer)

    def client_final(self, ctx: Context, shared: Peers, work: LocalRun, data: ClientData) -> ClientResult:
        """Exchange u_t with each neighbour; keep v_t."""
        bits = traffic(ctx, self.topology, work.models, data.client_id)
        return local_result(ctx, work, data, state=PeerLocal(work.extra[0], data.client_id), up=bits, down=bits)

    def server_step(self, ctx: Context, shared: Peers, reduced: Reduced, client_ids: Tensor) -> Peers:
        """u_t^k = Σ_j [W_k]_tj u_j^k-1/2: computed for the whole network in one place."""
        return gossip(ctx, shared, client_ids, reduced.value, self.matrix(ctx))

    def log_prob(self, ctx: Context, shared: Peers, state: PeerLocal, x: Tensor, outputs: None) -> Tensor:
        """The surrogate's prediction from the client's models, [B, C]."""
        own = self.surrogate.outputs(ctx.task, own_models(shared, state.client_id), x)
        return self.surrogate.log_prob(ctx.task, state.local, x, own)
