"""UCFL: every client is served an average of all models with weights of its own, from gradients at a common model.

Mestoukirdi, Zecchin, Gesbert, Li, Gresset. "User-Centric Federated Learning". 2021. https://arxiv.org/abs/2110.09869,
Section III.

Symbols:
    θ_i^t     -> shared.peers      model of user i, leaves [T, 1, ...]
    θ_i^t-1/2 -> work.models       the same after local training, leaves [1, ...]
    θ̂         -> shared.common     model at which similarity is measured, leaves [1, ...]
    ḡ_i, σ_i² -> work.gradient, work.variance  gradient of user i at θ̂ and its variance over K batches
    w_i       -> shared.similarity.rows  mixing coefficients of user i, or ŵ_c of its stream, [T, T]
    n_j       -> message.weight    samples of user j
Deviations:
    The special round comes first in the paper. Ours: after `warmup_rounds` rounds of FedAvg, and with all users even if
    few of them train. Rows are scaled to those that do, and a stream of which none does keeps its model.
    Eq. 6 weighs users by n_j already; draws by size would count it twice (`data.client_sampling: size` is refused).
    Ours: σ_i² is that of a random division (the authors' batches overlap), or the mean of the others' where batches
    agree, as with a single sample. ḡ_i is taken without dropout and with running statistics of BatchNorm.
    Ours: an unseen user sends ḡ and σ² at θ̂, and is served the model of the user whose row is closest to its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from lit_fed.algorithms.base import Algorithm, LocalRun, local_run
from lit_fed.core import streams, tree
from lit_fed.core.context import Context
from lit_fed.core.errors import check_settings
from lit_fed.core.graphs.peers import Peers, own_models, same_start
from lit_fed.core.streams import Similarity, Statistics
from lit_fed.core.types import ClientData, ClientResult, LocalWork, Message, ModelState, Phase, Reduced

__all__ = ["UCFL", "Served", "UserCentric"]

UserRun = LocalRun | Statistics


class UserCentric(NamedTuple):
    """What the server knows."""

    peers: Peers  # θ_i, leaves [T, 1, ...]
    similarity: Similarity  # w_i, ḡ_i, σ_i², n_i
    common: ModelState  # θ̂, leaves [1, ...]


class Served(NamedTuple):
    """What a client keeps."""

    user: Tensor  # [] int64, whose model it is served; in the warm-up T or more stands for the common one


@dataclass(frozen=True)
class UCFL(Algorithm[UserCentric, Served, UserRun]):
    """One aggregation rule for each client, or for each of a few groups of clients.

    Args:
        num_streams: m_t, models that the server sends: at most this number, `personal` for one to each client, or
            `silhouette` for the number of clusters that the clients' weights fit best.
        warmup_rounds: rounds of FedAvg before similarity is measured; gradients at random models tell little.
        num_batches: K, batches of the variance.
        min_variance: a smaller σ_i² is none; σ_i² where no client has any.
    """

    num_streams: int | Literal["personal", "silhouette"] = "silhouette"
    warmup_rounds: int = 5
    num_batches: int = 2
    min_variance: float = 1e-12

    reduce = "stack"
    refuses_size_sampling = "weighs clients by their samples in its mixing coefficients"
    conformance_exempt: ClassVar[dict[str, str]] = {
        "client_order": "the server's memory has a row for each client",
        "local_batch_norm": "all leaves of the clients' models are mixed",
    }

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        number = self.num_streams
        known = number >= 1 if isinstance(number, int) else number in ("personal", "silhouette")
        checks = {
            "num_streams": (known, "a whole number >= 1, personal or silhouette"),
            "warmup_rounds": (self.warmup_rounds >= 0, "a whole number >= 0"),
            "num_batches": (self.num_batches >= 2, "a whole number >= 2"),
            "min_variance": (self.min_variance > 0, "a number > 0"),
        }
        check_settings(self, checks)

    def shared_init(self, ctx: Context) -> UserCentric:
        """One model for all, and nothing known of their similarity."""
        peers = same_start(ctx.task.init(1, ctx.seed), ctx.num_clients)
        return UserCentric(peers, streams.not_measured(ctx, peers.parameters), peers.mean)

    def state_init(self, ctx: Context, shared: UserCentric, data: ClientData) -> Served:
        """Everybody is served a model of their own, if there is one."""
        return Served(data.client_id)

    def phases(self, ctx: Context, client_ids: Tensor) -> Sequence[Phase]:
        """Training; in the special round all users measure their gradients before."""
        everybody = torch.arange(ctx.num_clients, device=client_ids.device)
        special = (Phase("similarity", everybody, LocalWork()),) if ctx.round_idx == self.warmup_rounds else ()
        return (*special, Phase("train", client_ids, ctx.solver.work))

    def client_init(self, ctx: Context, shared: UserCentric, state: Served, data: ClientData, losses: None) -> UserRun:
        """A copy of the user's model; or ḡ_i and σ_i² at θ̂ (Eq. 7)."""
        models = shared.common if ctx.phase == "adapt" else own_models(shared.peers, data.client_id)
        if ctx.phase == "train":
            return local_run(ctx, models)
        return streams.statistics(ctx, models, data, self.num_batches)

    def client_final(self, ctx: Context, shared: UserCentric, work: UserRun, data: ClientData) -> ClientResult:
        """θ_i^t-1/2 goes to the server and θ_i^t comes back; in the special round ḡ_i and σ_i² go for θ̂."""
        weight, state = ctx.client_weight(data), Served(data.client_id)
        down = torch.full_like(weight, tree.bits(shared.common))
        if isinstance(work, LocalRun):
            loss = work.loss / work.steps.clamp(min=1)
            return ClientResult(Message(work.models, weight, bits_down=down), state, {"loss": loss})
        if ctx.phase == "adapt":
            state = Served(streams.closest_user(shared.similarity, work, self.min_variance))
        return ClientResult(Message(work[:2], weight, bits_down=down), state, {})

    def server_step(self, ctx: Context, shared: UserCentric, reduced: Reduced, client_ids: Tensor) -> UserCentric:
        """θ_i^t <- Σ_j w_ij θ_j^t-1/2 (Eq. 5); in the special round w_i (Eq. 6) and the streams (Section III-B)."""
        if ctx.phase == "similarity":
            found = streams.measured(reduced, self.num_streams, self.min_variance)
            return UserCentric(shared.peers, found, tree.index(shared.peers.each, 0))
        return shared._replace(peers=streams.aggregate(ctx, shared.similarity, shared.peers, reduced, client_ids))

    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork | None:
        """An unseen client measures its gradient, once there is something to compare it with."""
        return None if seen or ctx.round_idx <= self.warmup_rounds else LocalWork()

    def collaboration(self, ctx: Context, shared: UserCentric, states: Served) -> Tensor:
        """The mixing coefficients of each user's stream; the same for all before they are measured."""
        return shared.similarity.rows / shared.similarity.rows.sum(1, keepdim=True)

    def num_payloads(self, ctx: Context, shared: UserCentric, num_clients: int) -> int:
        """The streams with users that take part; before there are streams, one."""
        stream = shared.similarity.stream if ctx.present is None else shared.similarity.stream[ctx.present]
        return 1 if ctx.round_idx <= self.warmup_rounds else int(stream.bincount().count_nonzero())

    def shared_outputs(self, ctx: Context, shared: UserCentric, x: Tensor) -> None:
        """Nothing is shared by all: each user has a model of its own."""

    def log_prob(self, ctx: Context, shared: UserCentric, state: Served, x: Tensor, outputs: None) -> Tensor:
        """Prediction of the user's model, [B, C]."""
        return super().log_prob(ctx, shared, state, x, ctx.task.outputs(own_models(shared.peers, state.user), x))
