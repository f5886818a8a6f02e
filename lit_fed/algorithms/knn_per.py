"""kNN-Per: clients of FedAvg or FedEM that predict with the shared models and their nearest local samples.

Marfoq, Neglia, Kameni, Vidal. "Personalized Federated Learning through Local Memorization". ICML 2022.
https://arxiv.org/abs/2111.09360, Algorithm 1.

Symbols:
    h_S    -> shared.models    the global model, leaves [1, ...]; of FedEM its components, leaves [M, ...]
    φ(x)   -> its features, the inputs of the last layer, [D]; of components all of them, [M·D]
    (φ(x_i), y_i)              -> state.features, state.y, datastore of the client's own training samples
    k      -> neighbours       of a sample, nearest in the Euclidean distance d
    h_m    -> p_kNN ∝ Σ_i 1{y = y_i}·exp(−d(φ(x), φ(x_i))) over the k neighbours
    λ_m    -> state.weight     p = λ_m·p_kNN + (1 − λ_m)·p_S
Deviations:
    The paper tunes λ_m on samples that the client holds out. Here it is one number, `knn_weight`; or, with null, the
    best of 0, 0.1, …, 1 for the leave-one-out log-likelihood of the client's training samples, and 0 for a client with
    a single one. The global model was trained on those of seen clients, so this λ_m is rather too small.
    The authors' code has the kernel exp(−d²/D): `kernel: squared`. It mixes logits of the global model with
    probabilities, and picks λ and the capacity on test samples.
    A datastore has as many entries as the largest seen client has samples, or `capacity`; of more samples the first
    ones are kept. It is rebuilt each time the client is served, and never leaves it.
    An unseen client needs nothing else: it builds a datastore of its training samples.
    Ours: around FedEM (`base`) p_S is the prediction of the client's mixture, and the distance weights the components'
    features by the mixture, d² = Σ_m π_m ‖φ_m(x) − φ_m(x_i)‖²: components with equal features count as one.
    Positions of sequences are refused, as each would be an entry of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name everybody knows

from lit_fed.core.algorithm import Algorithm, MessageSpec, Participation, ranged
from lit_fed.core.context import Context
from lit_fed.core.prototypes import check_classes, masked_mean
from lit_fed.core.types import Batch, ClientData, ClientResult, LocalWork, Message, Phase, Reduced
from lit_fed.errors import ConfigError
from lit_fed.wrappers.base import innermost
from lit_fed.wrappers.mixture_start import with_start

__all__ = ["Datastore", "KNNPer"]

Kernel = Literal["distance", "squared"]

FAR = 1e30
"""Distance of an entry that does not count; finite, so that a client without any has no NaN."""


class Datastore(NamedTuple):
    """A client's state for serving."""

    inner: Any  # the client's state in the base, such as π_t; () if predictions do not need it
    features: Tensor  # φ(x_i), [S, M·D]
    y: Tensor  # y_i, [S]
    mask: Tensor  # [S] 1 for an entry
    weight: Tensor  # λ_m, []; 0 without entries

    @property
    def mixture(self) -> Tensor:
        """π_t, [M], if the base has some."""
        return self.inner.mixture  # type: ignore[no-any-return]


@dataclass(frozen=True)
class KNNPer(Algorithm[Any, Any, Any]):
    """FedAvg or FedEM; a client is served by a mixture of their prediction and that of its nearest neighbours.

    Args:
        base: the algorithm that trains: `FedEM`, or another one whose clients are served by one shared model or by a
            mixture of several, without local steps; null: FedAvg.
        neighbours: k.
        knn_weight: λ of all clients; null: each client's, by its training samples.
        kernel: exp(−d), `distance`, or exp(−d²/D), `squared`.
        capacity: maximum number of entries of a datastore; null: the training samples of the largest client.
    """

    serving_settings = ("neighbours", "knn_weight", "kernel", "capacity")
    program_holds: ClassVar[str] = "features and labels of the client's training samples"
    """Samples contained in an exported model; the export warns of them."""

    neighbours: int = ranged(10, "> 0")
    knn_weight: float | None = ranged(0.5, "[0, 1]")
    kernel: Kernel = "distance"
    capacity: int | None = ranged(None, "> 0")
    base: Algorithm | None = None

    @property
    def trained(self) -> Algorithm:
        """The base; the functions of `Algorithm` are FedAvg's."""
        return Algorithm() if self.base is None else with_start(self.base)

    # ------------------------------------------------------------------ training: all of it is the base's
    @property
    def num_models(self) -> int:  # type: ignore[override]
        return self.trained.num_models

    @property
    def message(self) -> MessageSpec:  # type: ignore[override]
        return self.trained.message

    @property
    def participation(self) -> Participation:  # type: ignore[override]
        return self.trained.participation

    @property
    def incompatible(self) -> dict[str, str]:  # type: ignore[override]
        return self.trained.incompatible | {"fine_tuning": "compares features of the shared models"}

    @property
    def server_only(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.trained.server_only

    def shared_init(self, ctx: Context) -> Any:
        check_served(ctx, innermost(self.trained))
        return self.trained.shared_init(ctx)

    @property
    def state_reads_data(self) -> bool:  # type: ignore[override]  # of the base, which a user chooses
        """As of the base."""
        return self.trained.state_reads_data

    def state_init(self, ctx: Context, shared: Any, data: ClientData) -> Any:
        return self.trained.state_init(ctx, shared, data)

    def phases(self, ctx: Context, client_ids: Tensor) -> Sequence[Phase]:
        return self.trained.phases(ctx, client_ids)

    def shared_losses(self, ctx: Context, shared: Any, batch: Batch) -> Tensor | None:
        return self.trained.shared_losses(ctx, shared, batch)

    def client_init(self, ctx: Context, shared: Any, state: Any, data: ClientData, losses: Any) -> Any:
        """The base's; a seen client is served with its stored π_t, unless the base renews it."""
        work = self.trained.client_init(ctx, shared, state, data, losses)
        if ctx.phase != "adapt" or not hasattr(state, "mixture") or self.trained.adapt_work(ctx, True) is not None:
            return work
        seen = data.client_id < ctx.num_clients
        return work._replace(mixture=torch.where(seen, state.mixture, work.mixture))

    def client_step(self, ctx: Context, shared: Any, work: Any, batch: Batch) -> Any:
        return self.trained.client_step(ctx, shared, work, batch)

    def client_final(self, ctx: Context, shared: Any, work: Any, data: ClientData) -> ClientResult:
        """The base's; for serving, the client keeps its features and labels."""
        result = self.trained.client_final(ctx, shared, work, data)
        if ctx.phase != "adapt":
            return result
        reads_state = type(innermost(self.trained)).log_prob is not Algorithm.log_prob
        state = result.state if reads_state else ()
        return ClientResult(Message((), result.message.weight), datastore(ctx, self, shared, state, data), {})

    def server_step(self, ctx: Context, shared: Any, reduced: Reduced, client_ids: Tensor) -> Any:
        return self.trained.server_step(ctx, shared, reduced, client_ids)

    # ------------------------------------------------------------------ serving
    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork:
        """Every client builds its datastore, without a step."""
        return LocalWork()

    def shared_outputs(self, ctx: Context, shared: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features [B, M, D] and outputs [B, M, K] of the shared models."""
        features = ctx.task.features(shared.models, x)
        return features, ctx.task.head(shared.models, features)

    def log_prob(self, ctx: Context, shared: Any, state: Any, x: Tensor, outputs: tuple[Tensor, Tensor]) -> Tensor:
        """log(λ_m·p_kNN + (1 − λ_m)·p_S); log p_S of a client that has no datastore."""
        features, scores = outputs
        if not isinstance(state, Datastore):
            return self.trained.log_prob(ctx, shared, state, x, scores)
        model = self.trained.log_prob(ctx, shared, state.inner, x, scores).exp()
        near = by_neighbours(self, compared(state.inner, features), state, state.mask, model.shape[1])
        return torch.lerp(model, near, state.weight).clamp(min=torch.finfo(model.dtype).tiny).log()


def check_served(ctx: Context, base: Algorithm) -> None:
    """Refuse labels other than one class per sample, and bases with personal models.

    Raises:
        ConfigError: naming the unsuitable labels or base.
    """
    check_classes(ctx.task.target, "KNNPer")
    if ctx.task.target.positions:
        raise ConfigError(
            "KNNPer compares samples, and these are sequences with a label for each position; choose another "
            "--model.algorithm"
        )
    works = [base.adapt_work(ctx, seen) for seen in (True, False)]
    if type(base).shared_outputs is not Algorithm.shared_outputs or any(work and work.trains for work in works):
        raise ConfigError(
            f"--model.algorithm.base is {type(base).__name__}, which serves clients by personal models, and KNNPer "
            "compares features of shared ones; give FedEM, or leave it out"
        )


def datastore(ctx: Context, knn: KNNPer, shared: Any, state: Any, data: ClientData) -> Datastore:
    """(φ(x_i), y_i) of a client's samples, and λ_m.

    Args:
        ctx: the context.
        knn: the settings.
        shared: the shared state of the base.
        state: the client's state in the base.
        data: its samples.
    """
    size = min(ctx.most_samples, knn.capacity or ctx.most_samples)
    each, y, mask = (_resized(leaf, size) for leaf in (ctx.task.features(shared.models, data.x), data.y, data.mask))
    mask = mask.to(each.dtype)
    some = (mask.sum() > 0).to(each.dtype)
    stored = Datastore(state, compared(state, each), y, mask, some)
    if knn.knn_weight is not None:
        return stored._replace(weight=knn.knn_weight * some)
    outputs = ctx.task.head(shared.models, each)
    model = knn.trained.log_prob(ctx, shared, state, data.x, outputs).exp()
    itself = torch.eye(size, dtype=torch.bool, device=y.device)
    others = mask.expand(size, size).masked_fill(itself, 0.0)
    near = by_neighbours(knn, stored.features, stored, others, model.shape[1])
    own = torch.stack([near, model]).gather(-1, y.view(1, -1, 1).expand(2, -1, 1))[..., 0]
    grid = torch.linspace(0, 1, 11, dtype=own.dtype, device=own.device)
    mixed = torch.lerp(own[1], own[0], grid.unsqueeze(1)).clamp(min=torch.finfo(own.dtype).tiny).log()
    compares = mask * others.amax(1)  # a sample without another entry has no neighbour: padding would decide
    best = torch.stack([masked_mean(one, compares) for one in mixed]).argmax()
    return stored._replace(weight=grid.index_select(0, best.view(1))[0] * some)


def compared(state: Any, features: Tensor) -> Tensor:
    """The features of all components as one vector, [B, M·D], each times √π_m.

    Args:
        state: the client's state in the base, with π_t if there are several components.
        features: φ_m(x), [B, M, D].
    """
    if features.shape[1] > 1:
        features = features * state.mixture.sqrt().unsqueeze(1)
    return features.flatten(1)


def by_neighbours(knn: KNNPer, features: Tensor, stored: Datastore, counts: Tensor, num_classes: int) -> Tensor:
    """p_kNN of each class, [B, C].

    Args:
        knn: the settings.
        features: φ(x), [B, M·D].
        stored: φ(x_i) and y_i.
        counts: whether an entry counts, [S] or for each sample [B, S], 0 or 1.
        num_classes: C.
    """
    away = torch.cdist(features, stored.features, compute_mode="donot_use_mm_for_euclid_dist")
    if knn.kernel == "squared":
        away = away.square() / (features.shape[1] // knn.num_models)
    nearest = away.masked_fill(counts == 0, FAR).topk(min(knn.neighbours, len(stored.y)), largest=False)
    share = (-nearest.values).softmax(-1)
    labels = F.one_hot(stored.y, num_classes).to(share.dtype)[nearest.indices]  # [B, k, C]
    return (share.unsqueeze(-1) * labels).sum(1)


def _resized(rows: Tensor, size: int) -> Tensor:
    """The first rows, or all of them padded with zeros."""
    return F.pad(rows, (*[0] * (2 * rows.ndim - 2), 0, max(size - len(rows), 0)))[:size]
