"""UCFL: every client is served by its own weighted average of all models, with weights from gradients at one model.

Mestoukirdi, Zecchin, Gesbert, Li, Gresset. "User-Centric Federated Learning". 2021. https://arxiv.org/abs/2110.09869,
Section III.

Symbols:
    θ_i^t     -> shared.peers      model of user i, leaves [T, 1, ...]
    θ_i^t-1/2 -> work.models       the same after local training, leaves [1, ...]
    θ̂         -> shared.common     model at which similarity is measured, leaves [1, ...]
    ḡ_i, σ_i² -> work.gradient, work.variance  gradient of user i at θ̂ and its variance over K batches
    w_i       -> shared.similarity.rows  mixing coefficients of user i, or ŵ_c of its stream, [T, T]
    c         -> shared.similarity.stream  the stream of each user; users of one stream have the same row, [T]
    n_j       -> message.weight    samples of user j
Deviations:
    The special round comes first in the paper. Ours: after `warmup_rounds` rounds of FedAvg, and with all users even if
    few of them train. Rows are normalised over the participants, and a stream without participants keeps its model.
    Eq. 6 already weights users by n_j; sampling by size would count it twice (`data.client_sampling: size` is refused).
    Ours: σ_i² is that of a random division (the authors' batches overlap), or the mean of the others' where batches
    agree, as with a single sample. ḡ_i is taken without dropout and with running statistics of BatchNorm.
    Ours: an unseen user sends ḡ and σ² at θ̂, and is served the model of the user whose row is closest to its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import NOT_SENT, LocalRun, MessageSpec, Served, local_result, local_run
from lit_fed.core.context import Context
from lit_fed.core.graphs.peers import Peers, draws, own_models, put_models, same_start, some_peers
from lit_fed.core.graphs.similarity import square_distances
from lit_fed.core.reduce import cast_like
from lit_fed.core.types import ClientData, ClientResult, Leaves, LocalWork, Message, ModelState, Phase, Reduced, Tree
from lit_fed.errors import check_settings

__all__ = ["UCFL", "ServedUser", "Similarity", "Statistics", "UserCentric", "user_weights"]

MIN_VARIANCE = 1e-12
"""A smaller σ_i², as of a single sample, counts as unknown: the mean of the known ones replaces it, at least this."""


class Statistics(NamedTuple):
    """A client's measurement at a model: the gradient of its loss, and its variance (Eq. 7)."""

    gradient: Leaves  # leaves [1, ...]
    variance: Tensor  # [] of the gradients of batches, in the gradient's type


UserRun = LocalRun | Statistics


class Similarity(NamedTuple):
    """The server's estimate of the clients' similarity, measured once, in the special round."""

    rows: Tensor  # weight of each client's model for each client, ŵ of its stream, [T, T] float64
    stream: Tensor  # [T] int64; clients with the same number have the same row
    gradients: Leaves  # gradient of each client's loss at a common model, leaves [T, ...]
    variances: Tensor  # variances of these gradients, [T]
    weight: Tensor  # weights of the clients, [T] float64


class UserCentric(NamedTuple):
    """The server's state: all users' models, and their similarity at a common model."""

    peers: Peers  # θ_i, leaves [T, 1, ...]
    similarity: Similarity  # w_i, ḡ_i, σ_i², n_i
    common: ModelState  # θ̂, leaves [1, ...]


class ServedUser(NamedTuple):
    """A client's state: the id of the model that serves it."""

    user: Tensor  # [] int64; T or more, of unseen clients before similarity is measured: the mean of all models


@dataclass(frozen=True)
class UCFL(Served[UserCentric, ServedUser, UserRun]):
    """One aggregation rule for each client, or for each of a few groups of clients.

    Args:
        num_streams: m_t, number of models that the server sends: at most this number, `personal` for one per client, or
            `silhouette` for the number of clusters with the best silhouette of the clients' weights.
        warmup_rounds: rounds of FedAvg before similarity is measured; gradients at random models carry little
            information.
        num_batches: K, number of batches whose gradients give the variance.
    """

    num_streams: int | Literal["personal", "silhouette"] = "silhouette"
    warmup_rounds: int = 5
    num_batches: int = 2

    in_every_combination = True
    message = MessageSpec("rows", reduce="stack")
    state_reads_data = True
    incompatible = {
        "size_sampling": "weighs clients by their samples in its mixing coefficients",
        "local_norm": "mixes all leaves of the clients' models",
    }

    def __post_init__(self) -> None:
        number = self.num_streams
        known = number >= 1 if isinstance(number, int) else number in ("personal", "silhouette")
        streams = known, "a whole number >= 1, personal or silhouette"
        check_settings(self, num_streams=streams, warmup_rounds=">= 0", num_batches=">= 2")

    def shared_init(self, ctx: Context) -> UserCentric:
        """One model for all; similarity is unknown."""
        peers = same_start(ctx.task.init(1, ctx.seed), ctx.num_clients)
        return UserCentric(peers, _not_measured(ctx, peers.parameters), peers.mean)

    def state_init(self, ctx: Context, shared: UserCentric, data: ClientData) -> ServedUser:
        """Each user is served its own model; an unseen client, which has none, the mean of all."""
        return ServedUser(data.client_id)

    def phases(self, ctx: Context, client_ids: Tensor) -> Sequence[Phase]:
        """Training; in the special round all users first measure their gradients."""
        everybody = torch.arange(ctx.num_clients, device=client_ids.device)
        special = Phase("similarity", everybody, LocalWork(), waits_for_all=True)
        train = Phase("train", client_ids, ctx.solver.work)
        return (special, train) if ctx.round_idx == self.warmup_rounds else (train,)

    def client_init(
        self, ctx: Context, shared: UserCentric, state: ServedUser, data: ClientData, losses: None
    ) -> UserRun:
        """A copy of the user's model; or ḡ_i and σ_i² at θ̂ (Eq. 7)."""
        models = shared.common if ctx.phase == "adapt" else own_models(shared.peers, data.client_id)
        if ctx.phase in ("train", "init"):
            return local_run(ctx, models)
        return _statistics(ctx, models, data, self.num_batches)

    def client_final(self, ctx: Context, shared: UserCentric, work: UserRun, data: ClientData) -> ClientResult:
        """Exchange θ_i^t-1/2 for θ_i^t with the server; in the special round ḡ_i and σ_i² for θ̂."""
        state = ServedUser(data.client_id)
        if isinstance(work, LocalRun):
            return local_result(ctx, work, data, state=state)
        if ctx.phase == "adapt":
            state = ServedUser(_closest_user(shared.similarity, work))
        return ClientResult(Message(work, ctx.client_weight(data)), state, {})

    def server_step(self, ctx: Context, shared: UserCentric, reduced: Reduced, client_ids: Tensor) -> UserCentric:
        """θ_i^t <- Σ_j w_ij θ_j^t-1/2 (Eq. 5); in the special round w_i (Eq. 6) and the streams (Section III-B)."""
        if ctx.phase == "similarity":
            found = _measured_similarity(reduced, self.num_streams)
            return UserCentric(shared.peers, found, tree.index(shared.peers.each, 0))
        return shared._replace(peers=_served_models(ctx, shared.similarity, shared.peers, reduced, client_ids))

    def sent(self, ctx: Context, shared: UserCentric, client_id: int) -> UserCentric:
        """The user's model; an unseen client compares itself with all users, and gets one model per different row."""
        if client_id < ctx.num_clients or ctx.round_idx <= self.warmup_rounds:
            return super().sent(ctx, shared._replace(similarity=NOT_SENT, common=NOT_SENT), client_id)  # type: ignore[no-any-return]
        return shared._replace(peers=some_peers(shared.peers, _who_differ(shared.similarity.rows)))

    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork | None:
        """An unseen client measures its gradient, once similarity has been measured."""
        return None if seen or ctx.round_idx <= self.warmup_rounds else LocalWork()

    def collaboration(self, ctx: Context, shared: UserCentric, states: ServedUser) -> Tensor:
        """The mixing coefficients of each user's stream; the same for all before they are measured."""
        return shared.similarity.rows / shared.similarity.rows.sum(1, keepdim=True)

    def num_payloads(self, ctx: Context, shared: UserCentric, num_clients: int) -> int:
        """The number of streams with participants; one before streams exist."""
        stream = shared.similarity.stream if ctx.present is None else shared.similarity.stream[ctx.present]
        return 1 if ctx.round_idx <= self.warmup_rounds else int(stream.bincount().count_nonzero())

    def served(self, ctx: Context, shared: UserCentric, state: ServedUser) -> ModelState:
        """The user's model."""
        return own_models(shared.peers, state.user)


def _not_measured(ctx: Context, gradients: Leaves) -> Similarity:
    """Equal clients, as in FedAvg: one stream, in which each has its weight.

    Args:
        ctx: the context.
        gradients: leaves [T, ...], for their shapes.
    """
    ones = torch.ones(ctx.num_clients, dtype=torch.float64)
    rows = torch.outer(ones, ones) / ctx.total_weight
    zeros = torch.zeros_like(ones)
    nothing = tree.map_leaves(lambda leaf: leaf.new_zeros(()).expand(leaf.shape), gradients)
    return Similarity(rows, zeros.long(), nothing, zeros.to(ctx.task.dtype), ones)


def _statistics(ctx: Context, models: ModelState, data: ClientData, num_batches: int) -> Statistics:
    """Gradient g of a client's mean loss, and the mean of ‖g_k − g‖² over the gradients of its batches (Eq. 7).

    Args:
        ctx: the context.
        models: where the gradient is taken, one model.
        data: the samples.
        num_batches: K; batches that get no sample do not count.
    """
    number = _batch_numbers(ctx, data, num_batches)
    masks = [data.mask * (number == k) for k in range(num_batches)]
    each = [ctx.task.full_gradient(models, data._replace(mask=mask), training=False)[1] for mask in masks]
    sizes = torch.stack([mask.sum(dtype=torch.float64) for mask in masks])
    shares = sizes / sizes.sum().clamp(min=1)
    mean = tree.map_leaves(lambda *parts: sum(s.to(p.dtype) * p for s, p in zip(shares, parts, strict=True)), *each)
    squares = torch.stack([tree.norm(tree.sub(one, mean)).square() for one in each])
    counts = (sizes > 0).double()
    variance = (squares @ counts) / counts.sum().clamp(min=1)
    return Statistics(mean, variance.to(ctx.task.dtype))


def _batch_numbers(ctx: Context, data: ClientData, num_batches: int) -> Tensor:
    """A random division of a client's samples into batches of equal size up to one, [N] in 0 … K − 1."""
    keys = draws(ctx, "division into batches", max(ctx.most_samples, 1), data.client_id)
    rows = torch.arange(len(data.mask), device=data.mask.device) % len(keys)  # unseen clients may have more
    order = torch.argsort(torch.where(data.mask > 0, keys[rows], 2.0), stable=True)
    return torch.argsort(order) % num_batches


def _closest_user(known: Similarity, found: Statistics) -> Tensor:
    """The client whose row is closest to that of an unseen client who measured this, [] int64."""
    gradient, variance = tree.map_leaves(lambda leaf: leaf.unsqueeze(0), found)
    row = user_weights(gradient, variance, (known.gradients, known.variances), known.weight)
    return (known.rows - row).square().sum(1).argmin()


def _who_differ(rows: Tensor) -> Tensor:
    """The first client of each different row, ascending, [k] int64: among clients with equal rows it is the closest.

    Example:
        >>> _who_differ(torch.tensor([[1.0, 0.0], [0.5, 0.5], [1.0, 0.0]])).tolist()
        [0, 1]
    """
    different, same = rows.unique(dim=0, return_inverse=True)
    clients = torch.arange(len(rows), device=rows.device)
    return clients[: len(different)].scatter_reduce(0, same, clients, "amin", include_self=False).sort().values


def user_weights(gradients: Tree, variances: Tensor, of_clients: tuple[Tree, Tensor], weight: Tensor) -> Tensor:
    """Weights of clients for users: the rows w_i of Eq. 6, [R, T] float64, each with sum 1.

    Args:
        gradients: gradients of the users, leaves [R, ...].
        variances: σ² of the users, [R].
        of_clients: the same of the T clients.
        weight: n_j of the clients, [T].

    Example:
        >>> g, variance, n = {"w": torch.tensor([[0.0], [-12.0]])}, torch.tensor([36.0, 144.0]), torch.ones(2)
        >>> [round(one, 8) for one in user_weights(g, variance, (g, variance), n)[0].tolist()]
        [0.73105858, 0.26894142]
    """
    users, clients = (_deviation(one, of_clients[1]) for one in (variances, of_clients[1]))
    distance = square_distances(gradients, of_clients[0])
    return torch.softmax(weight.double().log() - distance / (2 * users[:, None] * clients), dim=1)


def _deviation(variances: Tensor, of_clients: Tensor) -> Tensor:
    """σ, with the mean variance in place of unknown ones."""
    known = (of_clients >= MIN_VARIANCE).double()
    mean = (of_clients.double() @ known / known.sum().clamp(min=1)).clamp(min=MIN_VARIANCE)
    return torch.where(variances >= MIN_VARIANCE, variances.double(), mean).sqrt()


def _measured_similarity(reduced: Reduced, num_streams: int | Literal["personal", "silhouette"]) -> Similarity:
    """The rows of Eq. 6 and the streams of Section III-B, from the gradients and variances of all clients."""
    gradients, variances = reduced.value
    rows = user_weights(gradients, variances, (gradients, variances), reduced.weight)
    stream = _streams_of(rows, num_streams)
    return Similarity(_stream_rows(rows, stream), stream, gradients, variances, reduced.weight)


def _streams_of(rows: Tensor, num_streams: int | Literal["personal", "silhouette"]) -> Tensor:
    """The stream of each client, [T] int64: clients with similar rows share one.

    Args:
        rows: weight of each client for each client, [T, T].
        num_streams: number of clusters of k-means; `personal` is a stream for each client; `silhouette` takes the
            number from 2 to T − 1 with the largest silhouette. Where no more rows differ, those that agree share one.

    Example:
        >>> rows = torch.tensor([[0.5, 0.5, 0.0], [0.4, 0.6, 0.0], [0.0, 0.1, 0.9]])
        >>> found = _streams_of(rows, 2)
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
    from sklearn.cluster import KMeans  # imported here: it takes a second that other algorithms save

    return KMeans(num_clusters, n_init=10, random_state=1).fit(points).labels_  # type: ignore[no-any-return]


def _best_silhouette(points: np.ndarray, distinct: int) -> np.ndarray | None:
    """The clusters with the largest silhouette; None if too few points differ for a silhouette."""
    from sklearn.metrics import silhouette_score

    candidates = [_k_means(points, k) for k in range(2, min(distinct, len(points) - 1) + 1)]
    return max(candidates, key=lambda labels: float(silhouette_score(points, labels)), default=None)


def _stream_rows(rows: Tensor, stream: Tensor) -> Tensor:
    """Each client's row replaced by the mean over its stream, [T, T]; unchanged in a stream of one."""
    same = (stream[:, None] == stream).double()
    return (same @ rows) / same.sum(1, keepdim=True)


def _served_models(ctx: Context, similarity: Similarity, peers: Peers, reduced: Reduced, client_ids: Tensor) -> Peers:
    """The models that serve the clients, each Σ_j w_ij θ_j over the participants (Eq. 5).

    Args:
        ctx: the context. With `renormalised` rows are scaled to sum 1, and a stream without participants keeps its
            model; with `stale_fill` the stream's old model completes each row.
        similarity: the rows.
        peers: the previous models.
        reduced: the models and weights of the participants, leaves [C, ...].
        client_ids: ids of the participants, [C].
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
    return put_models(peers, torch.arange(len(rows), device=rows.device), models)
