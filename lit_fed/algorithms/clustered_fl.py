"""Clustered FL: clients are divided in two wherever their common model stands still while they would still move.

Sattler, Müller, Samek. "Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization under Privacy
Constraints". IEEE TNNLS 2020. https://arxiv.org/abs/1910.01991, Algorithms 1-3.

Symbols:
    θ_c    -> shared.models    model of cluster c, leaves [C, ...]; those that do not exist yet hold the initial model
    c(i)   -> shared.cluster   cluster of client i, [T]
    Δ_i    -> updates          θ_i − θ_c(i), the update of client i, leaves [T, ...]
    ε1, ε2 -> mean_norm_below, max_norm_above
Deviations:
    Updates are those of local training, the paper's practical variant, not single gradients. Both halves of a split are
    looked at again in the next round, and there are at most `max_clusters` clusters.
    The authors' code divides by complete linkage (`linkage`), which need not be optimal, takes plain means
    (`model.weighting: uniform`) and lets each client keep the best of all ancestors on held-out samples (not offered).
    The paper sends a newcomer down the tree of splits. Ours: `newcomers: loss`, which needs no cached updates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lit_fed.algorithms.base import Algorithm, local_run
from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.division import DivisionRule, divide
from lit_fed.core.errors import check_settings
from lit_fed.core.mixtures.clusters import (
    ClusterChoice,
    ClusterRun,
    Member,
    Newcomer,
    best_fit,
    cluster_averages,
    one_hot,
)
from lit_fed.core.split_memory import Clusters, descend, one_cluster
from lit_fed.core.types import ClientData, ClientResult, LocalWork, Message, ModelState, Reduced

__all__ = ["ClusteredFL"]


@dataclass(frozen=True)
class ClusteredFL(Algorithm[Clusters, Member, ClusterRun]):
    """FedAvg within clusters, which are divided in two when averaging has nothing more to give.

    Args:
        max_clusters: C, most clusters.
        mean_norm_below: ε1; a cluster is divided only if its average update is shorter.
        max_norm_above: ε2; and only if its longest update is longer.
        relative: measure the average update in units of the longest: ε1, in [0, 1), then fits any learning rate.
        warmup_rounds: rounds before the first division.
        min_cluster_size: clusters of no more clients than this stay together.
        gamma_max: divide only if √((1 − α)/2) is larger, α the largest cosine of updates across; null: always.
        linkage: how to divide: `single` minimises that α (the paper), `complete` is the authors' code.
        newcomers: how an unseen client finds its cluster: down the `tree` of splits by its own updates (the paper),
            which takes (C − 1)·(T + 1) models in every checkpoint; or by the lowest `loss` on its training samples.
    """

    max_clusters: int = 8
    mean_norm_below: float = 0.4
    max_norm_above: float = 1.6
    relative: bool = False
    warmup_rounds: int = 20
    min_cluster_size: int = 2
    gamma_max: float | None = None
    linkage: Literal["single", "complete"] = "single"
    newcomers: Literal["tree", "loss"] = "tree"

    reduce: ClassVar[Literal["sum", "stack"]] = "stack"
    needs_all_clients: ClassVar[bool] = True
    fills_in_absent_clients: ClassVar[bool] = False
    conformance_exempt: ClassVar[dict[str, str]] = {
        "client_order": "the server's memory has a row for each client, and clusters are numbered as they appear",
        "local_batch_norm": "a newcomer trains the models of all splits, and has no normalisation of its own for them",
    }

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        low, high, share = self.mean_norm_below, self.max_norm_above, self.relative
        checks = {
            "max_clusters": (self.max_clusters >= 2, "a whole number >= 2"),
            "mean_norm_below": (0 <= low < (1 if share else float("inf")), "a number >= 0, below 1 if relative"),
            "max_norm_above": (high >= (0 if share else low), "a number >= mean_norm_below, >= 0 if relative"),
            "warmup_rounds": (self.warmup_rounds >= 0, "a whole number >= 0"),
            "min_cluster_size": (self.min_cluster_size >= 1, "a whole number >= 1"),
            "gamma_max": (self.gamma_max is None or 0 <= self.gamma_max <= 1, "a number in [0, 1], or null"),
            "linkage": (self.linkage in ("single", "complete"), "single or complete"),
            "newcomers": (self.newcomers in ("tree", "loss"), "tree or loss"),
        }
        check_settings(self, checks)

    @property
    def num_models(self) -> int:  # type: ignore[override]
        """Most clusters, C."""
        return self.max_clusters

    def shared_init(self, ctx: Context) -> Clusters:
        """One cluster of all clients."""
        initial = ctx.task.init(1, ctx.seed)
        return one_cluster(initial, self.max_clusters, ctx.num_clients, remembers=self.newcomers == "tree")

    def state_init(self, ctx: Context, shared: Clusters, data: ClientData) -> Member:
        """Everybody starts in the first cluster."""
        first = one_hot(torch.tensor(0), self.max_clusters, ctx.task.dtype)
        return Newcomer(first) if ctx.phase == "adapt" else ClusterChoice(first)

    def client_init(self, ctx: Context, shared: Clusters, state: Member, data: ClientData, losses: None) -> ClusterRun:
        """Training starts from the cluster's model; that of a newcomer from the models of all splits at once."""
        if isinstance(state, Newcomer):
            return ClusterRun(*local_run(ctx, shared.splits.models), self._first_cluster(ctx, shared, data))
        cluster = tree.take(shared.cluster, data.client_id).squeeze(0)  # who is only served trains no model
        models = tree.index(shared.models, slice(0, 0)) if ctx.phase == "adapt" else tree.take(shared.models, cluster)
        return ClusterRun(*local_run(ctx, models), cluster)

    def _first_cluster(self, ctx: Context, shared: Clusters, data: ClientData) -> Tensor:
        """The root of the tree, or the existing cluster of the lowest loss."""
        if self.newcomers == "tree":
            return torch.zeros_like(data.client_id)
        losses = ctx.task.losses(ctx.task.outputs(shared.models, data.x), data.y)
        return best_fit(losses, data.mask, shared.cluster.max() + 1)

    def client_final(self, ctx: Context, shared: Clusters, work: ClusterRun, data: ClientData) -> ClientResult:
        """θ_i goes to the server, one model each way; a newcomer goes down the tree (Alg. 3)."""
        cluster = descend(shared.splits, work.models, work.cluster) if ctx.phase == "adapt" else work.cluster
        weight = ctx.client_weight(data)
        message = Message(work.models, weight, bits_down=torch.full_like(weight, tree.bits(work.models)))
        state = ClusterChoice(one_hot(cluster, self.max_clusters, ctx.task.dtype))
        return ClientResult(message, state, {"loss": work.loss / work.steps.clamp(min=1)})

    def server_step(self, ctx: Context, shared: Clusters, reduced: Reduced, client_ids: Tensor) -> Clusters:
        """Divide the clusters that ask for it, then FedAvg within each (Alg. 2)."""
        sent: ModelState = tree.map_leaves(lambda leaf: leaf[:, 0], reduced.value)  # leaves [T, ...]
        if ctx.round_idx >= self.warmup_rounds:
            updates = tree.sub(sent.parameters, tree.index(shared.models.parameters, shared.cluster))
            rule = DivisionRule(*(getattr(self, name) for name in DivisionRule._fields))
            shared = divide(shared, updates, reduced.weight, rule)
        return shared._replace(models=cluster_averages(shared.models, sent, shared.cluster, reduced.weight))

    def num_payloads(self, ctx: Context, shared: Clusters, num_clients: int) -> int:
        """The models of all clusters."""
        return int(shared.cluster.max()) + 1

    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork:
        """A newcomer trains as in a round if it goes down the tree; everybody else looks up its cluster."""
        return LocalWork() if seen or self.newcomers == "loss" else ctx.solver.work._replace(straggler_fraction=0.0)

    def shared_outputs(self, ctx: Context, shared: Clusters, x: Tensor) -> None:
        """No predictions of all clusters, of which each client uses one."""

    def log_prob(self, ctx: Context, shared: Clusters, state: Member, x: Tensor, outputs: None) -> Tensor:
        """Prediction of the cluster's model, [B, C]."""
        models = tree.take(shared.models, state.mixture.argmax())
        return super().log_prob(ctx, shared, state, x, ctx.task.outputs(models, x))
