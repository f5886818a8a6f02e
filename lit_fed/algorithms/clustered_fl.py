"""Clustered FL: a cluster is split in two if its model has converged while its clients' updates have not.

Sattler, Müller, Samek. "Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization under Privacy
Constraints". IEEE TNNLS 2020. https://arxiv.org/abs/1910.01991, Algorithms 1-3.

Symbols:
    θ_c    -> shared.models    model of cluster c, leaves [C, ...]; those that do not exist yet hold the initial model
    c(i)   -> shared.cluster   cluster of client i, [T]
    Δ_i    -> updates          θ_i − θ_c(i), the update of client i, leaves [T, ...]
    ε1, ε2 -> mean_norm_below, max_norm_above
    γ_max  -> gamma_max        least √((1 − α)/2) of a division, α the largest cosine of two updates across
    tree   -> shared.splits    split s divides a cluster; the clients that leave it form cluster s + 1
Deviations:
    Updates are those of local training, the paper's practical variant, not single gradients. Both halves of a split can
    be split again in the next round, up to `max_clusters` clusters.
    The authors' code divides by complete linkage (`linkage`), which need not be optimal, takes plain means
    (`model.weighting: uniform`) and lets each client keep the best of all ancestors on held-out samples (not offered).
    The paper sends an unseen client down the tree of splits. Ours: `newcomers: loss`, which needs no cached updates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import NOT_SENT, LocalRun, MessageSpec, Participation, Served, local_result, local_run
from lit_fed.core.context import Context
from lit_fed.core.graphs.similarity import cosines, inner_products
from lit_fed.core.mixtures.clusters import (
    ClusterChoice,
    Member,
    UnseenMember,
    best_fit,
    cluster_averages,
    one_hot,
)
from lit_fed.core.types import ClientData, ClientResult, Leaves, LocalWork, ModelState, Reduced
from lit_fed.errors import check_settings
from lit_fed.system.machine import require_memory

__all__ = ["ClusteredFL", "Clusters", "DivisionRule", "SplitMemory", "bipartition", "divide"]


class SplitMemory(NamedTuple):
    """The server's record of splits, which assigns unseen clients: room for S splits of T clients."""

    parent: Tensor  # [S] int64, the cluster that was divided; -1: no such split yet
    side: Tensor  # [S, T] int64: 1 for a client that stayed in the parent, 2 for one that left it, 0 for others
    models: ModelState  # the parent's model before the split, leaves [S, ...]
    updates: Leaves  # updates of the parent's clients from that model, leaves [S, T, ...]


class Clusters(NamedTuple):
    """The server's state: up to C clusters of its T clients, numbered in order of creation."""

    models: ModelState  # of each cluster, leaves [C, ...]; those that do not exist yet hold the initial model
    cluster: Tensor  # of each client, [T] int64
    splits: SplitMemory  # with room for C − 1 splits, or for none


class DivisionRule(NamedTuple):
    """Conditions for splitting a cluster: the fields of `ClusteredFL` with these names."""

    mean_norm_below: float  # ε1, bound on the average update
    max_norm_above: float  # ε2, bound on the longest update
    relative: bool  # whether ε1 is in units of the longest update
    min_cluster_size: int  # clusters of at most this size are not split
    gamma_max: float | None  # minimum separation of the two sets; None: any
    linkage: Literal["single", "complete"]  # how to divide


@dataclass(frozen=True)
class ClusteredFL(Served[Clusters, Member, LocalRun]):
    """FedAvg within clusters, which are split in two when averaging brings no more progress.

    Args:
        max_clusters: C, maximum number of clusters.
        mean_norm_below: ε1; a cluster is split only if its average update is shorter.
        max_norm_above: ε2; and only if its longest update is longer.
        relative: measure the average update in units of the longest, so that ε1, in [0, 1), suits any learning rate.
        warmup_rounds: rounds before the first split.
        min_cluster_size: clusters of at most this size are not split.
        gamma_max: split only if √((1 − α)/2) is larger, α the largest cosine of updates across; null: always.
        linkage: how to split: `single` minimises that α (the paper), `complete` is the authors' code.
        newcomers: cluster of an unseen client: down the `tree` of splits by its own updates (the paper),
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

    in_every_combination = True
    message = MessageSpec("rows", reduce="stack")
    participation = Participation(needs_all_clients=True, fills_in_absent=False)
    incompatible = {
        "local_norm": "trains the models of all splits at an unseen client, without a normalisation of its own"
    }

    def __post_init__(self) -> None:
        low, high, share = self.mean_norm_below, self.max_norm_above, self.relative
        norms = {
            "mean_norm_below": (0 <= low < (1 if share else float("inf")), "a number >= 0, below 1 if relative"),
            "max_norm_above": (high >= (0 if share else low), "a number >= mean_norm_below, >= 0 if relative"),
        }
        check_settings(
            self, norms, max_clusters=">= 2", warmup_rounds=">= 0", min_cluster_size=">= 1", gamma_max="[0, 1]"
        )

    @property
    def num_models(self) -> int:  # type: ignore[override]
        """Maximum number of clusters, C."""
        return self.max_clusters

    def shared_init(self, ctx: Context) -> Clusters:
        """One cluster of all clients."""
        initial, remembers = ctx.task.init(1, ctx.seed), self.newcomers == "tree"
        rows = self.max_clusters * (2 + ctx.num_clients if remembers else 1)  # models, and updates at each split
        place = f"--model.algorithm.max_clusters {self.max_clusters}"
        require_memory(rows * tree.bits(initial) // 8, place, "give at most as many as there are clients")
        return _one_cluster(initial, self.max_clusters, ctx.num_clients, remembers=remembers)

    def state_init(self, ctx: Context, shared: Clusters, data: ClientData) -> Member:
        """Every client starts in the first cluster."""
        first = one_hot(torch.tensor(0), self.max_clusters, ctx.task.dtype)
        return UnseenMember(first) if ctx.phase == "adapt" else ClusterChoice(first)

    def client_init(self, ctx: Context, shared: Clusters, state: Member, data: ClientData, losses: None) -> LocalRun:
        """Training starts from the cluster's model; an unseen client trains from the models of all splits at once."""
        if isinstance(state, UnseenMember):
            return local_run(ctx, shared.splits.models, self._first_cluster(ctx, shared, data))
        cluster = tree.take(shared.cluster, data.client_id).squeeze(0)  # serving alone trains no model
        models = tree.index(shared.models, slice(0, 0)) if ctx.phase == "adapt" else tree.take(shared.models, cluster)
        return local_run(ctx, models, cluster)

    def _first_cluster(self, ctx: Context, shared: Clusters, data: ClientData) -> Tensor:
        """The root of the tree, or the existing cluster of the lowest loss."""
        if self.newcomers == "tree":
            return torch.zeros_like(data.client_id)
        losses = ctx.task.losses_of(shared.models, data.x, data.y)
        return best_fit(losses, data.mask, shared.cluster.max() + 1)

    def client_final(self, ctx: Context, shared: Clusters, work: LocalRun, data: ClientData) -> ClientResult:
        """Send θ_i, one model each way; an unseen client descends the tree (Alg. 3)."""
        cluster = _descend(shared.splits, work.models, work.extra) if ctx.phase == "adapt" else work.extra
        state = ClusterChoice(one_hot(cluster, self.max_clusters, ctx.task.dtype))
        return local_result(ctx, work, data, state=state)

    def server_step(self, ctx: Context, shared: Clusters, reduced: Reduced, client_ids: Tensor) -> Clusters:
        """Split the clusters that meet the conditions, then FedAvg within each (Alg. 2)."""
        sent: ModelState = tree.map_leaves(lambda leaf: leaf[:, 0], reduced.value)  # leaves [T, ...]
        if ctx.round_idx >= self.warmup_rounds:
            updates = tree.sub(sent.parameters, tree.index(shared.models.parameters, shared.cluster))
            rule = DivisionRule(*(getattr(self, name) for name in DivisionRule._fields))
            shared = divide(shared, updates, reduced.weight, rule)
        return shared._replace(models=cluster_averages(shared.models, sent, shared.cluster, reduced.weight))

    def sent(self, ctx: Context, shared: Clusters, client_id: int) -> Clusters:
        """The model of the client's cluster; an unseen client gets all models, and the updates for its descent."""
        if client_id >= ctx.num_clients:
            return shared._replace(cluster=shared.cluster.max().view(1))
        own = shared.cluster[client_id].view(1)
        return Clusters(tree.take(shared.models, own), own, NOT_SENT)

    def received(self, ctx: Context, sent: Clusters, client_id: int) -> Clusters:
        """The received model, expanded to all clusters without a copy."""
        models = tree.map_leaves(lambda leaf: leaf.expand(self.max_clusters, *leaf.shape[1:]), sent.models)
        return sent._replace(models=models, cluster=sent.cluster.expand(ctx.num_clients))

    def num_payloads(self, ctx: Context, shared: Clusters, num_clients: int) -> int:
        """One for each cluster: its model."""
        return int(shared.cluster.max()) + 1

    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork:
        """An unseen client trains as in a round if it descends the tree; other clients only look up their cluster."""
        return LocalWork() if seen or self.newcomers == "loss" else ctx.solver.whole_work

    def served(self, ctx: Context, shared: Clusters, state: Member) -> ModelState:
        """The cluster's model."""
        return tree.take(shared.models, state.mixture.argmax())  # type: ignore[no-any-return]


def _one_cluster(initial: ModelState, most: int, num_clients: int, *, remembers: bool) -> Clusters:
    """All clients in one cluster; models [1, ...] are expanded to the maximum number `most`."""
    models = tree.map_leaves(lambda leaf: leaf.expand(most, *leaf.shape[1:]), initial)
    splits = _no_splits(initial, most - 1 if remembers else 0, num_clients)
    return Clusters(models, torch.zeros(num_clients, dtype=torch.int64), splits)


def _no_splits(models: ModelState, num_splits: int, num_clients: int) -> SplitMemory:
    """Memory without a split; models [1, ...] are placeholders."""
    side = torch.zeros(num_splits, num_clients, dtype=torch.int64)
    updates = {n: leaf.new_zeros(()).expand(*side.shape, *leaf.shape[1:]) for n, leaf in models.parameters.items()}
    held = tree.map_leaves(lambda leaf: leaf.expand(num_splits, *leaf.shape[1:]), models)
    return SplitMemory(torch.full((num_splits,), -1), side, held, updates)


def _descend(memory: SplitMemory, trained: ModelState, cluster: Tensor) -> Tensor:
    """An unseen client's cluster: at each split it takes the side with the most similar update (Alg. 3).

    Args:
        memory: the splits.
        trained: the unseen client's models, trained from those of the first splits, leaves [s, ...].
        cluster: the cluster where it starts, [] int64.

    Returns:
        The cluster where it ends, [] int64; in a tie it stays in the parent.
    """
    count = len(tree.leaves(trained)[0])
    if not count:
        return cluster
    parent, side, models, updates = tree.index(memory, slice(0, count))
    dots = squares = torch.zeros((), dtype=torch.float64, device=cluster.device)
    for name, cached in updates.items():
        own = (trained.parameters[name] - models.parameters[name]).reshape(count, -1, 1)  # [s, d, 1]
        rows = cached.reshape(*cached.shape[:2], -1)  # [s, T, d]
        dots, squares = dots + (rows @ own).squeeze(2), squares + rows.square().sum(2)
    cosine = dots / squares.sqrt().clamp(min=1e-300)  # [s, T], up to the unseen client's own norm
    for s in range(count):
        stay, leave = (cosine[s].masked_fill(side[s] != one, -torch.inf).amax() for one in (1, 2))
        cluster = torch.where((cluster == parent[s]) & (leave > stay), s + 1, cluster)
    return cluster


def divide(clusters: Clusters, updates: Leaves, weight: Tensor, rule: DivisionRule) -> Clusters:
    """The clusters after the splits of a round (Alg. 2), up to the maximum number; new ones are not split yet.

    Args:
        clusters: the clusters before.
        updates: updates of the clients from the models of their clusters, leaves [T, ...].
        weight: weight of each client, [T].
        rule: conditions and method of splitting.
    """
    products, most = inner_products(updates), len(tree.leaves(clusters.models)[0])
    for c in range(int(clusters.cluster.max()) + 1):
        if int(clusters.cluster.max()) + 1 == most:
            break
        members = (clusters.cluster == c).nonzero()[:, 0]
        leave = _leavers(products[members][:, members], weight[members], rule)
        if leave is not None:
            clusters = _split_cluster(clusters, c, members[leave], updates)
    return clusters


def _leavers(products: Tensor, weight: Tensor, rule: DivisionRule) -> Tensor | None:
    """Which members leave a cluster, [n] bool, from the products of their updates [n, n]; None: all stay."""
    mean_norm, max_norm = _mean_and_longest(products, weight)
    at_rest = mean_norm < rule.mean_norm_below * (max_norm if rule.relative else 1)
    if len(weight) <= rule.min_cluster_size or not at_rest & (max_norm > rule.max_norm_above):
        return None
    similarity = cosines(products)
    leave = bipartition(similarity, rule.linkage)
    far_apart = rule.gamma_max is None or _separation(similarity, leave) > rule.gamma_max
    return leave if far_apart else None


def _mean_and_longest(products: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Length of the weighted mean of n vectors and of the longest one, [] each.

    Args:
        products: their inner products, [n, n].
        weight: weight of each vector, [n].

    Example:
        >>> mean, longest = _mean_and_longest(torch.tensor([[9.0, -3.0], [-3.0, 1.0]]), torch.tensor([1.0, 3.0]))
        >>> float(mean), float(longest)
        (0.0, 3.0)
    """
    share = weight / weight.sum().clamp(min=1)
    return (share @ products @ share).clamp(min=0).sqrt(), products.diagonal().max().sqrt()


def bipartition(similarity: Tensor, linkage: Literal["single", "complete"] = "single") -> Tensor:
    """Divide n clients into two sets, by merging the most similar sets until two are left.

    With `single` linkage no division has a smaller largest similarity between the two sets, since more similar pairs
    are merged earlier (Alg. 1). It is computed on the CPU, whichever device holds the similarities.

    Args:
        similarity: cosines, symmetric, [n, n], n >= 2; the diagonal is not read.
        linkage: similarity of two sets: that of their most similar pair (`single`) or least similar pair (`complete`).

    Returns:
        Whether each client is in the set without the first client, [n] bool.

    Example:
        >>> bipartition(torch.tensor([[1.0, -0.9, 0.8], [-0.9, 1.0, -0.7], [0.8, -0.7, 1.0]])).tolist()
        [False, True, False]
    """
    from scipy.cluster import hierarchy  # imported here: it takes half a second that other algorithms save

    n = len(similarity)
    pairs = torch.triu_indices(n, n, offset=1)
    distance = (1 - similarity.detach().cpu().double()[pairs[0], pairs[1]]).clamp(min=0)
    root = hierarchy.to_tree(hierarchy.linkage(distance.numpy(), linkage))
    side = torch.zeros(n, dtype=torch.bool)
    side[root.left.pre_order()] = True  # the two sets of the last merge, also with equal similarities
    return (side != side[0]).to(similarity.device)


def _separation(similarity: Tensor, side: Tensor) -> float:
    """Separation of two sets of clients: √((1 − α)/2), in [0, 1], α the largest similarity across.

    Args:
        similarity: cosines, [n, n].
        side: set of each client, [n] bool.

    Example:
        >>> _separation(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]), torch.tensor([False, True]))
        1.0
    """
    return math.sqrt(max(1 - float(similarity[side][:, ~side].max()), 0) / 2)


def _split_cluster(clusters: Clusters, parent: int, leavers: Tensor, updates: Leaves) -> Clusters:
    """The clusters with one more, formed by clients that leave their parent.

    Args:
        clusters: the clusters so far.
        parent: the cluster that is divided.
        leavers: clients that leave it, [n] int64.
        updates: updates of all clients from the models of their clusters, leaves [T, ...].
    """
    count = int(clusters.cluster.max()) + 1
    side = (clusters.cluster == parent).long().index_fill(0, leavers, 2)
    splits = _remember_split(clusters.splits, count - 1, parent, side, tree.index(clusters.models, parent), updates)
    return clusters._replace(cluster=torch.where(side == 2, count, clusters.cluster), splits=splits)


def _remember_split(
    memory: SplitMemory, split: int, parent: int, side: Tensor, models: ModelState, updates: Leaves
) -> SplitMemory:
    """The memory with one more split; a memory without room stays empty.

    Args:
        memory: the memory so far.
        split: s.
        parent: the cluster that is divided.
        side: side of each client, as in `SplitMemory`, [T].
        models: the parent's model, leaves without a leading axis.
        updates: updates of all clients, leaves [T, ...]; those of other clusters are ignored.
    """
    if not len(memory.parent):
        return memory
    inside = {name: leaf * (side > 0).to(leaf.dtype).view(-1, *[1] * (leaf.ndim - 1)) for name, leaf in updates.items()}
    row = torch.full((1,), split, device=side.device)
    new = SplitMemory(torch.full_like(side[0], parent), side, models, inside)
    return tree.map_leaves(lambda table, one: table.index_copy(0, row, one[None]), memory, new)  # type: ignore[no-any-return]
