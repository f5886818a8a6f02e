"""D-PSGD: decentralised parallel SGD; clients average their models with neighbours' in parallel with SGD steps.

Lian, Zhang, Zhang, Hsieh, Zhang, Liu. "Can Decentralized Algorithms Outperform Centralized Algorithms? A Case Study for
Decentralized Parallel Stochastic Gradient Descent". NeurIPS 2017. https://arxiv.org/abs/1705.09056, Algorithm 1.
The other order (`order: after`) is that of Koloskova, Loizou, Boreiri, Jaggi, Stich. "A Unified Theory of Decentralized
SGD with Changing Topology and Local Updates". ICML 2020. https://arxiv.org/abs/2003.10422, Algorithm 1.

Symbols:
    x_i -> shared            model of client i, leaves [T, 1, ...]; x_i − γ·∇F_i(x_i; ξ_i) in `work.models`
    γ   -> ctx.lr
    W   -> topology, mixing  mixing matrix of the round, [T, T]
Deviations:
    A round is the solver's local work; the paper takes one step on one batch (`solver.local_steps: 1`). With more
    steps, the sum of their changes is added to the average.
    A doubly stochastic W gives each client's loss the same weight; `--model.weighting samples` scales it by T·n_i/n.
    All clients are active in the paper. Ours: the weight of an absent neighbour goes to the diagonal, on both sides.
    Running statistics are averaged after the steps.
    A client is served by its own model, an unseen one by the mean of all, which is the paper's output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import LocalRun, local_result, local_run, local_step
from lit_fed.core.context import Context
from lit_fed.core.graphs.mixing import Gossiping, MixingRule, gossip, traffic
from lit_fed.core.graphs.peers import Peers, models_of, own_models, put_models
from lit_fed.core.graphs.topology import Ring, Topology
from lit_fed.core.types import Batch, ClientData, ClientResult, ModelState, Reduced

__all__ = ["DPSGD", "PeerNumber"]


class PeerNumber(NamedTuple):
    """A client's state."""

    client_id: Tensor  # [] int64, client whose model serves it


@dataclass(frozen=True)
class DPSGD(Gossiping[PeerNumber, LocalRun]):
    """Decentralised SGD without a server: each client averages its model with those of its neighbours.

    Args:
        topology: the graph between clients.
        mixing: rule for the weights of neighbours; on a ring `lazy_metropolis` is 1/3 for each.
        order: averaged models: those before the steps (`parallel`), so that clients can send while they compute, as in
            D-PSGD; or those after the steps (`after`).
        common_start: start all clients from the same model, as in the paper; otherwise each from a different one.
    """

    topology: Topology = Ring()  # noqa: RUF009 - frozen
    mixing: MixingRule = "lazy_metropolis"
    order: Literal["parallel", "after"] = "parallel"
    common_start: bool = True

    in_every_combination = True

    def state_init(self, ctx: Context, shared: Peers, data: ClientData) -> PeerNumber:
        """The client's id: the network holds x_i."""
        return PeerNumber(data.client_id)

    def client_init(self, ctx: Context, shared: Peers, state: PeerNumber, data: ClientData, losses: None) -> LocalRun:
        """Training continues from x_i."""
        share = ctx.client_share(data).to(ctx.task.dtype)
        return local_run(ctx, own_models(shared, data.client_id), share)

    def client_step(self, ctx: Context, shared: Peers, work: LocalRun, batch: Batch) -> LocalRun:
        """x_i − γ·∇F_i(x_i; ξ_i)."""
        return local_step(ctx, work, batch, weight=work.extra.expand(len(batch.mask), 1))

    def client_final(self, ctx: Context, shared: Peers, work: LocalRun, data: ClientData) -> ClientResult:
        """Exchange models with each neighbour; the network computes with the models after the steps."""
        bits = traffic(ctx, self.topology, work.models, data.client_id)
        work = work._replace(loss=work.loss / work.extra)
        return local_result(ctx, work, data, state=PeerNumber(data.client_id), up=bits, down=bits)

    def server_step(self, ctx: Context, shared: Peers, reduced: Reduced, client_ids: Tensor) -> Peers:
        """x_i <- Σ_j W_ij x_j − γ·∇F_i(x_i; ξ_i) for all i: computed for the whole network in one place."""
        if self.order == "after":
            return gossip(ctx, shared, client_ids, reduced.value, self.matrix(ctx))
        before, stepped = models_of(shared, client_ids).parameters, reduced.value
        mixed = gossip(ctx, shared, client_ids, stepped._replace(parameters=before), self.matrix(ctx))
        average = models_of(mixed, client_ids)
        moved = tree.add(average.parameters, tree.sub(stepped.parameters, before))
        return put_models(mixed, client_ids, average._replace(parameters=moved))

    def served(self, ctx: Context, shared: Peers, state: PeerNumber) -> ModelState:
        """x_i, or the mean of all."""
        return own_models(shared, state.client_id)
