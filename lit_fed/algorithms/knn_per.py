"""kNN-Per: FedAvg whose clients predict with the global model and with their nearest own samples.

Marfoq, Neglia, Kameni, Vidal. "Personalized Federated Learning through Local Memorization". ICML 2022.
https://arxiv.org/abs/2111.09360, Algorithm 1.

Symbols:
    h_S    -> shared.models    the global model, leaves [1, ...]
    φ(x)   -> its features, the inputs of the last layer, [D]
    (φ(x_i), y_i)              -> state.features, state.y, datastore of the client's own training samples
    k      -> neighbours       of a sample, nearest in the Euclidean distance d
    h_m    -> p_kNN ∝ Σ_i 1{y = y_i}·exp(−d(φ(x), φ(x_i))) over the k neighbours
    λ_m    -> state.weight     p = λ_m·p_kNN + (1 − λ_m)·p_S
Deviations:
    The paper tunes λ_m on samples that the client holds out. Here it is one number, `knn_weight`; or, with null, the
    best of 0, 0.1, …, 1 for the log-likelihood of the client's training samples, each predicted from its other ones.
    The global model has seen those of clients that were in training, so that this λ_m is rather too small.
    The authors' code has the kernel exp(−d²/D): `kernel: squared`. It mixes logits of the global model with
    probabilities, and picks λ and the capacity on test samples.
    A datastore has as many entries as the largest client of the training has samples, or `capacity`; of a client with
    more its first ones are kept. It is made anew each time the client is served, and never leaves it.
    An unseen client needs nothing else: its datastore is that of its training samples.
    Only FedAvg is offered below it; positions of sequences are refused, as each would be an entry of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name everybody knows

from lit_fed.core.algorithm import Algorithm, GlobalModels, LocalRun
from lit_fed.core.context import Context
from lit_fed.core.prototypes import check_classes, masked_mean
from lit_fed.core.types import ClientData, ClientResult, LocalWork
from lit_fed.errors import ConfigError, check_settings

__all__ = ["Datastore", "KNNPer"]

FAR = 1e30
"""Distance of an entry that does not count; finite, so that a client without any has no NaN."""


class Datastore(NamedTuple):
    """What a client is served with."""

    features: Tensor  # φ(x_i), [S, D]
    y: Tensor  # y_i, [S]
    mask: Tensor  # [S] 1 for an entry
    weight: Tensor  # λ_m, []; 0 without entries


@dataclass(frozen=True)
class KNNPer(Algorithm[GlobalModels, Any, LocalRun]):
    """FedAvg; a client is served a mixture of the global model and of its nearest neighbours in the model's features.

    Args:
        neighbours: k.
        knn_weight: λ of all clients; null: each client's, by its training samples.
        kernel: exp(−d), `distance`, or exp(−d²/D), `squared`.
        capacity: most entries of a datastore; null: the training samples of the largest client.
    """

    serving_settings = ("neighbours", "knn_weight", "kernel", "capacity")

    neighbours: int = 10
    knn_weight: float | None = 0.5
    kernel: Literal["distance", "squared"] = "distance"
    capacity: int | None = None

    conformance_exempt: ClassVar[dict[str, str]] = {
        "regression": "it predicts the classes of neighbours",
        "sequences": "each position would be an entry of its own",
    }

    def __post_init__(self) -> None:
        check_settings(self, neighbours="> 0", knn_weight="[0, 1]", capacity="> 0")

    def shared_init(self, ctx: Context) -> GlobalModels:
        """The initial model; labels that are not one class of a sample are refused."""
        check_classes(ctx.task.target, "KNNPer")
        if ctx.task.target.positions:
            raise ConfigError(
                "KNNPer compares samples, and these are sequences with a label for each position; choose another "
                "--model.algorithm"
            )
        return super().shared_init(ctx)

    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork:
        """Every client makes its datastore, without a step."""
        return LocalWork()

    def client_final(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> ClientResult:
        """The model goes to the server; to be served, the client keeps its features and labels."""
        result = super().client_final(ctx, shared, work, data)
        return result._replace(state=self.datastore(ctx, shared, data)) if ctx.phase == "adapt" else result

    def datastore(self, ctx: Context, shared: GlobalModels, data: ClientData) -> Datastore:
        """(φ(x_i), y_i) of the client's samples, and λ_m."""
        size = min(ctx.most_samples, self.capacity or ctx.most_samples)
        features, y, mask = (
            _resized(leaf, size) for leaf in (ctx.task.features(shared.models, data.x)[:, 0], data.y, data.mask)
        )
        mask = mask.to(features.dtype)
        some = (mask.sum() > 0).to(features.dtype)
        if self.knn_weight is not None:
            return Datastore(features, y, mask, self.knn_weight * some)
        outputs = ctx.task.head(shared.models, features.unsqueeze(1))
        model = ctx.task.mix(outputs.new_ones(1), outputs).exp()
        itself = torch.eye(size, dtype=torch.bool, device=y.device)
        near = self.by_neighbours(
            features, features, y, mask.expand(size, size).masked_fill(itself, 0.0), model.shape[1]
        )
        own = torch.stack([near, model]).gather(-1, y.view(1, -1, 1).expand(2, -1, 1))[..., 0]
        grid = torch.linspace(0, 1, 11, dtype=own.dtype, device=own.device)
        mixed = torch.lerp(own[1], own[0], grid.unsqueeze(1)).clamp(min=torch.finfo(own.dtype).tiny).log()
        best = torch.stack([masked_mean(one, mask) for one in mixed]).argmax()
        return Datastore(features, y, mask, grid.index_select(0, best.view(1))[0] * some)

    def by_neighbours(self, features: Tensor, stored: Tensor, y: Tensor, counts: Tensor, num_classes: int) -> Tensor:
        """p_kNN of each class, [B, C].

        Args:
            features: φ(x), [B, D].
            stored: φ(x_i), [S, D].
            y: y_i, [S].
            counts: whether an entry counts, [S] or for each sample [B, S], 0 or 1.
            num_classes: C.
        """
        away = torch.cdist(features, stored, compute_mode="donot_use_mm_for_euclid_dist")
        away = away if self.kernel == "distance" else away.square() / features.shape[1]
        nearest = away.masked_fill(counts == 0, FAR).topk(min(self.neighbours, len(y)), largest=False)
        share = (-nearest.values).softmax(-1)
        labels = F.one_hot(y, num_classes).to(share.dtype)[nearest.indices]  # [B, k, C]
        return (share.unsqueeze(-1) * labels).sum(1)

    def shared_outputs(self, ctx: Context, shared: GlobalModels, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features [B, 1, D] and outputs [B, 1, K] of the global model."""
        features = ctx.task.features(shared.models, x)
        return features, ctx.task.head(shared.models, features)

    def log_prob(
        self, ctx: Context, shared: GlobalModels, state: Datastore, x: Tensor, outputs: tuple[Tensor, Tensor]
    ) -> Tensor:
        """log(λ_m·p_kNN + (1 − λ_m)·p_S)."""
        features, scores = outputs
        model = ctx.task.mix(scores.new_ones(1), scores).exp()
        near = self.by_neighbours(features[:, 0], state.features, state.y, state.mask, model.shape[1])
        return torch.lerp(model, near, state.weight).clamp(min=torch.finfo(model.dtype).tiny).log()


def _resized(rows: Tensor, size: int) -> Tensor:
    """The first rows, or all of them and zeros behind."""
    return F.pad(rows, (*[0] * (2 * rows.ndim - 2), 0, max(size - len(rows), 0)))[:size]
