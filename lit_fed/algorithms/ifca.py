"""IFCA: k cluster models; every client trains the one that fits its samples best.

Ghosh, Chung, Yin, Ramchandran. "An Efficient Framework for Clustered Federated Learning". NeurIPS 2020.
https://arxiv.org/abs/2006.04088, Algorithm 1. With `model.weighting: samples` it is HypCluster of Mansour, Mohri, Ro,
Suresh. "Three Approaches for Personalization with Applications to Federated Learning". 2020.
https://arxiv.org/abs/2002.10619, Section 3.

Symbols:
    θ_j -> shared.models      model of cluster j, leaves [k, ...]
    ĵ   -> work.extra         cluster of client i, argmin_j F_i(θ_j)
    s_i -> state.mixture      its one-hot encoding, [k]
    θ̃_i -> work.models        the chosen model after the local steps, leaves [1, ...]
    γ   -> solver.lr          step size, of the local steps (option II) and of the server's (option I)
    τ   -> solver.local_steps local steps of option II
    m   -> reduced.weight     participants
Deviations:
    F_i is the mean loss over all training samples of the client; ties go to the first cluster.
    Option I is implemented as one local step from θ_ĵ on all samples, with θ_j itself for participants of other
    clusters: with plain SGD that is θ_j − γ/m·Σ_i s_ij g_i. Momentum and Adam have no meaning there.
    The paper restarts several times and keeps the best run, or starts from clustered local models; here the k initial
    models are random and different, and a restart is another run with another seed.
    The authors' code also has a soft choice, with the sign of the loss reversed; it is not offered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import (
    Algorithm,
    GlobalModels,
    LocalRun,
    MessageSpec,
    Participation,
    local_result,
    local_run,
    ranged,
)
from lit_fed.core.context import Context
from lit_fed.core.mixtures.clusters import ClusterChoice, best_fit, one_hot
from lit_fed.core.mixtures.e_step import average_chosen, choose
from lit_fed.core.networks.layers import last_layers
from lit_fed.core.reduce import server_average
from lit_fed.core.types import ClientData, ClientResult, LocalWork, ModelState, Phase, Reduced

__all__ = ["IFCA"]


@dataclass(frozen=True)
class IFCA(Algorithm[GlobalModels, ClusterChoice, LocalRun]):
    """k models, each averaged over the clients for whose samples it is the best.

    Args:
        num_clusters: k.
        averaging: message of the members of a cluster: their `model` after local training (option II), or the
            `gradient` of their loss, with which the server takes one step (option I; local epochs and steps are not
            used).
        clustered_layers: number of layers per cluster, counted from the end of the network; the others are averaged
            over all clients. null: all layers.
    """

    num_clusters: int = ranged(4, ">= 1")
    averaging: Literal["model", "gradient"] = "model"
    clustered_layers: int | None = ranged(None, ">= 0")

    in_every_combination = True
    message = MessageSpec(complete=False)
    participation = Participation(weighting="uniform")
    reads_losses = True
    incompatible = {
        "privacy": "divides by numbers of members, which are private themselves",
        "noise_in_steps": "the choice of a cluster",
        "local_norm": "trains one of the k models at a client, which has no normalisation of its own for the others",
    }

    @property
    def num_models(self) -> int:  # type: ignore[override]
        """The number of clusters, k."""
        return self.num_clusters

    def shared_init(self, ctx: Context) -> GlobalModels:
        """Different random models θ_j; layers that all clients share are those of the first."""
        models = ctx.task.init(self.num_clusters, ctx.seed)
        return GlobalModels(self._with_common(ctx, models, tree.index(models, slice(0, 1))))

    def _common(self, ctx: Context) -> frozenset[str]:
        """Names of the leaves that all clients share."""
        if self.clustered_layers is None:
            return frozenset()
        network = ctx.task.network
        names = {name for name, _ in (*network.named_parameters(), *network.named_buffers())}
        return frozenset(names - last_layers(network, self.clustered_layers, "clustered_layers"))

    def _with_common(self, ctx: Context, models: ModelState, common: ModelState) -> ModelState:
        """The models with those leaves that all clients share from `common`, leaves [1, ...]."""
        names = self._common(ctx)
        parts = zip(models, common, strict=True)
        return ModelState(
            *({n: one[n].expand_as(v) if n in names else v for n, v in part.items()} for part, one in parts)
        )

    def state_init(self, ctx: Context, shared: GlobalModels, data: ClientData) -> ClusterChoice:
        """No choice yet."""
        return ClusterChoice(torch.full((self.num_clusters,), 1 / self.num_clusters, dtype=ctx.task.dtype))

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase]:
        """Option I takes one step on all samples, option II the solver's local work."""
        one_step = LocalWork(steps=1, batch_size=0)
        return (Phase("train", client_ids, one_step if self.averaging == "gradient" else ctx.solver.work),)

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: ClusterChoice, data: ClientData, losses: Tensor
    ) -> LocalRun:
        """The cluster identity estimate ĵ = argmin_j F_i(θ_j), and a copy of θ_ĵ."""
        cluster = best_fit(losses, data.mask)
        return local_run(ctx, tree.take(shared.models, cluster), cluster)

    def client_final(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> ClientResult:
        """Send s_i and θ̃_i: one model and ⌈log2 k⌉ bits up, for k models down."""
        names, spare = self._common(ctx) - ctx.private, self.num_clusters - 1
        common = [leaf for part in work.models for name, leaf in part.items() if name in names]
        up, down = (tree.bits(one, ctx.private) for one in (work.models, shared.models))
        up, down = up + spare.bit_length(), down - spare * tree.bits(common)
        mixture = one_hot(work.extra, self.num_clusters, ctx.task.dtype)
        sent = () if ctx.phase == "adapt" else choose(work.models, mixture)
        return local_result(ctx, work, data, sent, ClusterChoice(mixture), up=up, down=down)

    def server_step(self, ctx: Context, shared: GlobalModels, reduced: Reduced, client_ids: Tensor) -> GlobalModels:
        """θ_j ← mean of its members' θ̃_i (II), or θ_j − γ/m·Σ_i s_ij g_i (I); unchanged without members."""
        models = average_chosen(ctx, shared.models, reduced, all_participants=self.averaging == "gradient")
        if self.clustered_layers is None:
            return GlobalModels(models)
        # a client sends zeros for all clusters but its own, so the sum over clusters is the mean over clients
        sums = tree.map_leaves(lambda leaf: leaf.sum(0, keepdim=True), reduced.value.models)
        common = server_average(ctx, tree.index(shared.models, slice(0, 1)), reduced._replace(value=sums))
        return GlobalModels(self._with_common(ctx, models, common))

    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork:
        """Every client, seen or unseen, chooses among the current models before it is served; no local steps."""
        return LocalWork()

    def log_prob(self, ctx: Context, shared: GlobalModels, state: ClusterChoice, x: Tensor, outputs: Tensor) -> Tensor:
        """Prediction of θ_ĵ, [B, C]."""
        return ctx.task.mix(state.mixture, outputs)
