"""User-centric aggregation: how much each client's model counts for each client, and few such rules instead of many.

Mestoukirdi, Zecchin, Gesbert, Li, Gresset. "User-Centric Federated Learning". 2021. https://arxiv.org/abs/2110.09869.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.graphs.peers import Peers, draws, place
from lit_fed.core.local_solver import OptimizerState
from lit_fed.core.reduce import cast_like
from lit_fed.core.types import ClientData, ModelState, Reduced, Tree

__all__ = [
    "Similarity",
    "Statistics",
    "aggregate",
    "batch_numbers",
    "closest_user",
    "measured",
    "not_measured",
    "statistics",
    "stream_rows",
    "streams_of",
    "user_weights",
]


class Statistics(NamedTuple):
    """What a client measures of its loss at a model."""

    gradient: dict[str, Tensor]  # leaves [1, ...]
    variance: Tensor  # [] of the gradients of batches, in the gradient's type
    optimizer: OptimizerState  # not used


class Similarity(NamedTuple):
    """What the server knows of how much clients have in common."""

    rows: Tensor  # how much each client's model counts for each, ŵ of its stream, [T, T] float64
    stream: Tensor  # [T] int64; clients with the same number have the same row
    gradients: dict[str, Tensor]  # of each client's loss at a common model, leaves [T, ...]
    variances: Tensor  # of these gradients, [T]
    weight: Tensor  # of the clients, [T] float64


# ---------------------------------------------------------------------- at a client
def batch_numbers(ctx: Context, data: ClientData, num_batches: int) -> Tensor:
    """A random division of a client's samples into batches of equal size up to one, [N] in 0 … K − 1."""
    keys = draws(ctx, "division into batches", max(ctx.most_samples, 1), data.client_id)
    rows = torch.arange(len(data.mask), device=data.mask.device) % len(keys)  # a newcomer may have more than any client
    order = torch.argsort(torch.where(data.mask > 0, keys[rows], 2.0), stable=True)
    return torch.argsort(order) % num_batches


def statistics(ctx: Context, models: ModelState, data: ClientData, num_batches: int) -> Statistics:
    """Gradient g of a client's mean loss, and the mean of ‖g_k − g‖² over the gradients of its batches (Eq. 7).

    Args:
        ctx: what every client knows.
        models: where the gradient is taken, one model.
        data: the samples.
        num_batches: K; batches that get no sample do not count.
    """
    number = batch_numbers(ctx, data, num_batches)
    masks = [data.mask * (number == k) for k in range(num_batches)]
    each = [ctx.task.full_gradient(models, data._replace(mask=mask), training=False)[1] for mask in masks]
    sizes = torch.stack([mask.sum(dtype=torch.float64) for mask in masks])
    shares = sizes / sizes.sum().clamp(min=1)
    mean = tree.map_leaves(lambda *parts: sum(s.to(p.dtype) * p for s, p in zip(shares, parts, strict=True)), *each)
    squares = torch.stack([tree.norm(tree.sub(one, mean)).square() for one in each])
    counts = (sizes > 0).double()
    variance = (squares @ counts) / counts.sum().clamp(min=1)
    return Statistics(mean, variance.to(ctx.task.dtype), ctx.solver.init(models))


# ---------------------------------------------------------------------- at the server
def not_measured(ctx: Context, gradients: dict[str, Tensor]) -> Similarity:
    """All clients are alike, as in FedAvg: one stream, in which each counts by its weight.

    Args:
        ctx: what every client knows.
        gradients: leaves [T, ...], for their shapes.
    """
    ones = torch.ones(ctx.num_clients, dtype=torch.float64)
    rows = torch.outer(ones, ones) / ctx.total_weight
    zeros = torch.zeros_like(ones)
    return Similarity(rows, zeros.long(), tree.zeros_like(gradients), zeros.to(ctx.task.dtype), ones)


def measured(reduced: Reduced, num_streams: int | Literal["personal", "silhouette"], min_variance: float) -> Similarity:
    """The rows of Eq. 6 and the streams of Section III-B, from the gradients and variances of all clients."""
    gradients, variances = reduced.value
    rows = user_weights(gradients, variances, (gradients, variances), reduced.weight, min_variance)
    stream = streams_of(rows, num_streams)
    return Similarity(stream_rows(rows, stream), stream, gradients, variances, reduced.weight)


def closest_user(known: Similarity, found: Statistics, min_variance: float) -> Tensor:
    """The client whose row is closest to that of a newcomer who measured this, [] int64."""
    gradient, variance = tree.map_leaves(lambda leaf: leaf.unsqueeze(0), found[:2])
    row = user_weights(gradient, variance, (known.gradients, known.variances), known.weight, min_variance)
    return (known.rows - row).square().sum(1).argmin()


def user_weights(
    gradients: Tree, variances: Tensor, of_clients: tuple[Tree, Tensor], weight: Tensor, min_variance: float
) -> Tensor:
    """How much clients count for users: the rows w_i of Eq. 6, [R, T] float64, each with the sum 1.

    Args:
        gradients: of the users, leaves [R, ...].
        variances: σ² of the users, [R].
        of_clients: the same of the T clients.
        weight: n_j of the clients, [T].
        min_variance: less is no variance, as of a single sample, and the mean of the clients' others takes its place.

    Example:
        >>> g, variance, n = {"w": torch.tensor([[0.0], [-12.0]])}, torch.tensor([36.0, 144.0]), torch.ones(2)
        >>> [round(one, 8) for one in user_weights(g, variance, (g, variance), n, 1e-12)[0].tolist()]
        [0.73105858, 0.26894142]
    """
    users, clients = (_deviation(one, of_clients[1], min_variance) for one in (variances, of_clients[1]))
    pairs = zip(tree.leaves(gradients), tree.leaves(of_clients[0]), strict=True)
    distance = torch.stack([_square_distances(user, client) for user, client in pairs]).sum(0)
    return torch.softmax(weight.double().log() - distance / (2 * users[:, None] * clients), dim=1)


def _deviation(variances: Tensor, of_clients: Tensor, min_variance: float) -> Tensor:
    """σ, with the mean variance in the place of those that are not known."""
    known = (of_clients >= min_variance).double()
    mean = (of_clients.double() @ known / known.sum().clamp(min=1)).clamp(min=min_variance)
    return torch.where(variances >= min_variance, variances.double(), mean).sqrt()


def _square_distances(users: Tensor, clients: Tensor) -> Tensor:
    """‖a_i − b_j‖², [R, T]; about the mean of the b_j, so that what they have in common costs no digits."""
    a, b = (rows.reshape(len(rows), -1).double() for rows in (users, clients))
    a, b = a - b.mean(0), b - b.mean(0)
    return (a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T).clamp(min=0)


def streams_of(rows: Tensor, num_streams: int | Literal["personal", "silhouette"]) -> Tensor:
    """The stream of each client, [T] int64: clients with similar rows share one.

    Args:
        rows: how much each client counts for each, [T, T].
        num_streams: number of clusters of k-means; `personal` is a stream for each client; `silhouette` takes the
            number from 2 to T − 1 with the largest silhouette. Where no more rows differ, those that agree share one.

    Example:
        >>> rows = torch.tensor([[0.5, 0.5, 0.0], [0.4, 0.6, 0.0], [0.0, 0.1, 0.9]])
        >>> found = streams_of(rows, 2)
        >>> bool(found[0] == found[1] != found[2])
        True
    """
    if num_streams == "personal":
        return torch.arange(len(rows), device=rows.device)
    points = rows.cpu().double().numpy().round(8)  # so that clients with the same data agree whatever the rounding
    _, same = np.unique(points, axis=0, return_inverse=True)
    distinct = int(same.max()) + 1
    if num_streams == "silhouette":
        found = _best_silhouette(points, distinct)
    else:
        found = None if num_streams >= distinct else _k_means(points, num_streams)
    return torch.from_numpy((same if found is None else found).reshape(-1).astype(np.int64)).to(rows.device)


def _k_means(points: np.ndarray, num_clusters: int) -> np.ndarray:
    from sklearn.cluster import KMeans  # here, since it takes a second that other algorithms need not spend

    return KMeans(num_clusters, n_init=10, random_state=1).fit(points).labels_  # type: ignore[no-any-return]


def _best_silhouette(points: np.ndarray, distinct: int) -> np.ndarray | None:
    """The clusters with the largest silhouette; None where too few points differ for any to have one."""
    from sklearn.metrics import silhouette_score

    candidates = [_k_means(points, k) for k in range(2, min(distinct, len(points) - 1) + 1)]
    return max(candidates, key=lambda labels: float(silhouette_score(points, labels)), default=None)


def stream_rows(rows: Tensor, stream: Tensor) -> Tensor:
    """Each client's row replaced by the mean over its stream, [T, T]; those of a stream of one stay what they are."""
    same = (stream[:, None] == stream).double()
    return (same @ rows) / same.sum(1, keepdim=True)


def aggregate(ctx: Context, similarity: Similarity, peers: Peers, reduced: Reduced, client_ids: Tensor) -> Peers:
    """The models that all clients are served, each Σ_j w_ij θ_j over the clients that took part (Eq. 5).

    Args:
        ctx: what every client knows. With `renormalised` rows are scaled to the sum 1, and a stream of which nobody
            took part keeps its model; with `stale_fill` the stream's old model fills each row up.
        similarity: the rows.
        peers: what they were served before.
        reduced: the models and weights of those that took part, leaves [C, ...].
        client_ids: who they are, [C].
    """
    multiplicity = reduced.weight / similarity.weight[client_ids].clamp(min=1)
    rows = similarity.rows[:, client_ids] * multiplicity
    total = rows.sum(1)
    kept = 1 - total
    if ctx.aggregation == "renormalised":
        served = torch.isin(similarity.stream, similarity.stream[client_ids]) & (total > 0)
        kept = 1 - served.double()
        rows = torch.where(served[:, None], rows / total[:, None], 0.0)

    def combined(new: Tensor, old: Tensor) -> Tensor:
        mixed = rows @ new.reshape(len(new), -1).double() + kept[:, None] * old.reshape(len(old), -1).double()
        return mixed.view(old.shape)

    models = cast_like(tree.map_leaves(combined, reduced.value, peers.each), peers.each)
    return place(peers, torch.arange(len(rows), device=rows.device), models)
