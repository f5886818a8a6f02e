"""FL+HC: after some rounds of FedAvg, clients are clustered once by their updates; clusters then train separately.

Briggs, Fan, Andras. "Federated learning with hierarchical clustering of local updates to improve training on non-IID
data". IJCNN 2020. https://arxiv.org/abs/2004.11791, Algorithm 1.

Symbols:
    w    -> shared.models     the joint model, and then that of each cluster, leaves [C, ...]
    c    -> shared.cluster    cluster of each client, [T]
    Δw_k -> updates           what local training changes in the joint model at client k, leaves [T, ...]
    n    -> warmup_rounds     rounds of FedAvg ahead of the clustering
    P    -> linkage, metric, distance_threshold
Deviations:
    All clients train in the clustering step, without averaging; the round's cohort then trains within the clusters.
    There are at most `max_clusters` clusters, so the server's memory is known beforehand: if the threshold leaves
    more, the tree of merges is cut higher.
    Clusters are numbered by their first client. Distances are those of trained parameters.
    Ours: an unseen client is served by the cluster whose model has the lowest loss on its training samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import LocalRun, MessageSpec, Participation, Served, local_result, local_run, tuned
from lit_fed.core.context import Context
from lit_fed.core.graphs.similarity import cosines, inner_products, square_distances
from lit_fed.core.mixtures.clusters import (
    ClusterChoice,
    Member,
    UnseenMember,
    best_fit,
    cluster_averages,
    one_hot,
)
from lit_fed.core.types import ClientData, ClientResult, LocalWork, ModelState, Phase, Reduced
from lit_fed.errors import check_settings

__all__ = ["FLHC", "UpdateClusters", "agglomerate"]


class UpdateClusters(NamedTuple):
    """The server's state."""

    models: ModelState  # of each cluster, leaves [C, ...]; those that do not exist hold the joint model
    cluster: Tensor  # of each client, [T] int64; 0 for all ahead of the clustering


@dataclass(frozen=True)
class FLHC(Served[UpdateClusters, Member, LocalRun]):
    """FedAvg within clusters of clients with similar updates of a joint model.

    Args:
        warmup_rounds: n, rounds of FedAvg ahead of the clustering.
        distance_threshold: distance, in units of the metric, beyond which sets of clients are not merged.
        linkage: distance of two sets of clients: of their nearest pair (`single`), their farthest (`complete`), on
            average (`average`), or by the variance that merging adds (`ward`, with the metric euclidean).
        metric: distance of two updates: `euclidean`, `manhattan` or `cosine`.
        max_clusters: C, maximum number of clusters.
    """

    warmup_rounds: int = tuned(10, 1, 3, 5, 10)
    distance_threshold: float = 1.0
    linkage: Literal["single", "complete", "average", "ward"] = "ward"
    metric: Literal["euclidean", "manhattan", "cosine"] = "euclidean"
    max_clusters: int = 8

    message = MessageSpec("rows", reduce="stack")
    participation = Participation(fills_in_absent=False)
    incompatible: ClassVar[dict[str, str]] = {"local_norm": "averages the models of whole clusters"}

    def __post_init__(self) -> None:
        check_settings(self, warmup_rounds=">= 0", distance_threshold=">= 0", max_clusters=">= 1")
        suits = self.linkage != "ward" or self.metric == "euclidean", "single, complete or average, or metric euclidean"
        check_settings(self, linkage=suits)

    @property
    def num_models(self) -> int:  # type: ignore[override]
        """Maximum number of clusters, C."""
        return self.max_clusters

    def shared_init(self, ctx: Context) -> UpdateClusters:
        """One joint model for all."""
        joint = ctx.task.init(1, ctx.seed)
        return UpdateClusters(self._all(joint), torch.zeros(ctx.num_clients, dtype=torch.int64))

    def _all(self, joint: ModelState) -> ModelState:
        """A model [1, ...] expanded to all clusters, leaves [C, ...], without a copy."""
        return tree.map_leaves(lambda leaf: leaf.expand(self.max_clusters, *leaf.shape[1:]), joint)  # type: ignore[no-any-return]

    def state_init(self, ctx: Context, shared: UpdateClusters, data: ClientData) -> Member:
        """The first cluster."""
        first = one_hot(torch.tensor(0), self.max_clusters, ctx.task.dtype)
        return UnseenMember(first) if ctx.phase == "adapt" else ClusterChoice(first)

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase, ...]:
        """A round of FedAvg; after n rounds all clients first send their updates of the joint model."""
        everybody = torch.arange(ctx.num_clients, device=client_ids.device)
        work = ctx.solver.work
        clustering = Phase("cluster", everybody, work._replace(straggler_fraction=0.0), waits_for_all=True)
        train = Phase("train", client_ids, work)
        return (clustering, train) if ctx.round_idx == self.warmup_rounds else (train,)

    def client_init(
        self, ctx: Context, shared: UpdateClusters, state: Member, data: ClientData, losses: None
    ) -> LocalRun:
        """Training starts from the cluster's model; serving only looks up the cluster."""
        if isinstance(state, UnseenMember):
            cluster = best_fit(_losses(ctx, shared, data), data.mask, shared.cluster.max() + 1)
        else:
            cluster = tree.take(shared.cluster, data.client_id).squeeze(0)
        models = tree.index(shared.models, slice(0, 0)) if ctx.phase == "adapt" else tree.take(shared.models, cluster)
        return local_run(ctx, models, cluster)

    def client_final(self, ctx: Context, shared: UpdateClusters, work: LocalRun, data: ClientData) -> ClientResult:
        """Send the trained model, one model each way."""
        state = ClusterChoice(one_hot(work.extra, self.max_clusters, ctx.task.dtype))
        return local_result(ctx, work, data, state=state, down=tree.bits(work.models))

    def server_step(self, ctx: Context, shared: UpdateClusters, reduced: Reduced, client_ids: Tensor) -> UpdateClusters:
        """The clusters, from all Δw_k; or the average of the models within each cluster."""
        sent: ModelState = tree.map_leaves(lambda leaf: leaf[:, 0], reduced.value)  # leaves [n, ...]
        if ctx.phase == "cluster":
            joint = tree.index(shared.models, slice(0, 1))
            distances = _distances(tree.sub(sent.parameters, joint.parameters), self.metric)
            found = agglomerate(distances, self.linkage, self.distance_threshold, self.max_clusters)
            return UpdateClusters(self._all(joint), found)
        return shared._replace(models=cluster_averages(shared.models, sent, shared.cluster[client_ids], reduced.weight))

    def sent(self, ctx: Context, shared: UpdateClusters, client_id: int) -> UpdateClusters:
        """The model of the client's cluster; an unseen client gets all models."""
        if client_id >= ctx.num_clients:
            return shared._replace(cluster=shared.cluster.max().view(1))
        own = shared.cluster[client_id].view(1)
        return UpdateClusters(tree.take(shared.models, own), own)

    def received(self, ctx: Context, sent: UpdateClusters, client_id: int) -> UpdateClusters:
        """The received model, in place of those of all clusters."""
        models = sent.models if client_id >= ctx.num_clients else self._all(sent.models)
        return UpdateClusters(models, sent.cluster.expand(ctx.num_clients))

    def num_payloads(self, ctx: Context, shared: UpdateClusters, num_clients: int) -> int:
        """One for each cluster: its model."""
        return int(shared.cluster.max()) + 1

    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork:
        """Every client looks up its cluster before it is served."""
        return LocalWork()

    def served(self, ctx: Context, shared: UpdateClusters, state: Member) -> ModelState:
        """The cluster's model."""
        return tree.take(shared.models, state.mixture.argmax())  # type: ignore[no-any-return]


def _losses(ctx: Context, shared: UpdateClusters, data: ClientData) -> Tensor:
    """Loss of each sample under the model of each cluster, [N, C]."""
    return ctx.task.losses_of(shared.models, data.x, data.y)


def _distances(updates: dict[str, Tensor], metric: Literal["euclidean", "manhattan", "cosine"]) -> Tensor:
    """Distances of the clients' updates with leaves [T, ...], [T, T] float64."""
    if metric == "euclidean":
        return square_distances(updates, updates).sqrt()
    if metric == "cosine":
        return 1 - cosines(inner_products(updates))
    flat = [leaf.reshape(len(leaf), -1).double() for leaf in updates.values()]
    return torch.stack([torch.cdist(rows, rows, p=1.0) for rows in flat]).sum(0)


def agglomerate(
    distances: Tensor, linkage: Literal["single", "complete", "average", "ward"], threshold: float, most: int
) -> Tensor:
    """The cluster of each of n clients, [n] int64, by merging the nearest sets up to a distance; on the CPU.

    Args:
        distances: symmetric, [n, n]; the diagonal is not read.
        linkage: distance of two sets.
        threshold: sets that are farther apart are not merged.
        most: maximum number of clusters; beyond it, the nearest sets are merged further.

    Example:
        >>> apart = torch.tensor([[0.0, 9.0, 1.0], [9.0, 0.0, 8.0], [1.0, 8.0, 0.0]])
        >>> agglomerate(apart, "average", 2.0, 3).tolist(), agglomerate(apart, "average", 2.0, 1).tolist()
        ([0, 1, 0], [0, 0, 0])
    """
    from scipy.cluster import hierarchy  # imported here: it takes half a second that other algorithms save

    n = len(distances)
    if n == 1:
        return torch.zeros(1, dtype=torch.int64, device=distances.device)
    pairs = torch.triu_indices(n, n, offset=1)
    apart = distances.detach().cpu().double()[pairs[0], pairs[1]].clamp(min=0)
    merges = hierarchy.linkage(apart.numpy(), linkage)
    labels = torch.from_numpy(hierarchy.fcluster(merges, threshold, "distance")).long()
    if int(labels.max()) > most:
        labels = torch.from_numpy(hierarchy.fcluster(merges, most, "maxclust")).long()
    first = torch.stack([(labels == label).nonzero()[0, 0] for label in labels])  # client with the lowest number
    return torch.unique(first, return_inverse=True)[1].to(distances.device)  # type: ignore[no-any-return]
