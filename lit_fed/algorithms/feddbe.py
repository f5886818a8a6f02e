"""FedDBE: FedAvg with the domain bias eliminator: personal feature biases and a regulariser of mean features.

Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan. "Eliminating Domain Bias for Federated Learning in Representation Space".
NeurIPS 2023. https://arxiv.org/abs/2311.14975, Algorithm 1.

Symbols:
    f, g   -> shared.models   feature extractor and last layer, leaves [1, ...]
    z̄_i^p  -> state.bias      personal representation bias memory (PRBM) of client i, [1, D]: g(f(x) + z̄_i^p) predicts
    z̄_i^g  -> work.mean       moving mean of f(x) over the batches of a round, [D]; at its start 0
    z̄^g    -> shared.mean     mean of f(x) over all clients, [D]
    μ      -> momentum        z̄_i^g ← (1 − μ)·z̄_i^g + μ·(mean of the batch)
    κ      -> weight          of the mean regulariser (MR), ½·mean over D of (z̄_i^g − z̄^g)²
Deviations:
    The initial period is the first round with clients, which train without DBE; z̄^g is then fixed, and is the mean
    over these clients, not over all. A client's part is the mean over its batches during training; the authors' code
    has the moving mean of the last ones. There the models of this period are discarded; here they are averaged as in
    every round.
    z̄_i^p steps with f and g, as in their code, but with the solver's momentum and weight decay. Means of features are
    those of evaluation mode.
    An unseen client has no bias in the paper. Ours: 0, which trains as in a round under the global model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.core.algorithm import LocalRun, Personal, local_result, local_run, local_step, ranged
from lit_fed.core.context import Context
from lit_fed.core.objective import ModelView, Objective
from lit_fed.core.partial_models import named_part, names_of
from lit_fed.core.prototypes import feature_width, gradient_only, masked_mean
from lit_fed.core.reduce import server_average
from lit_fed.core.types import Batch, ClientData, ClientResult, Leaves, ModelState, Reduced

__all__ = ["FeatureBias", "FedDBE", "ModelsWithMean", "UnbiasedModels"]

Bias = Leaves

BIAS = "prbm.bias"
"""Name of z̄_i^p beside the leaves of the network."""


class UnbiasedModels(NamedTuple):
    """The server's state."""

    models: ModelState  # f and g, leaves [1, ...]
    mean: Tensor  # z̄^g, [D]
    known: Tensor  # [] bool, whether z̄^g is known


class ModelsWithMean(NamedTuple):
    """A client's message value."""

    models: ModelState  # f and g, leaves [1, ...]
    mean: Tensor  # of f(x) over the batches of the round, [D]


class FeatureBias(NamedTuple):
    """A client's state."""

    bias: Bias  # z̄_i^p, one leaf [1, D]


@dataclass(frozen=True)
class FedDBE(Personal[UnbiasedModels, FeatureBias, LocalRun]):
    """FedAvg whose clients add a personal bias to their features, and keep their mean features near the global mean.

    Args:
        weight: κ of the mean regulariser.
        momentum: μ of the moving mean, in (0, 1]; 1: the mean of the batch.
    """

    weight: float = ranged(50.0, ">= 0")
    momentum: float = ranged(1.0, "(0, 1]")

    incompatible = {
        "fine_tuning": "predicts from features with a bias",
        "privacy": "averages means of features beside models",
        "secure_sums": "sends means of features beside them, which no range bounds",
        "noise_in_steps": "the means of features and the personal biases",
    }

    def shared_init(self, ctx: Context) -> UnbiasedModels:
        """A fresh model; z̄^g is not known yet."""
        mean = torch.zeros(feature_width(ctx.task, "FedDBE"), dtype=ctx.task.dtype)
        return UnbiasedModels(ctx.task.init(1, ctx.seed), mean, torch.tensor(False))

    def state_init(self, ctx: Context, shared: UnbiasedModels, data: ClientData) -> FeatureBias:
        """z̄_i^p = 0."""
        return FeatureBias({BIAS: torch.zeros_like(shared.mean).unsqueeze(0)})

    def client_init(
        self, ctx: Context, shared: UnbiasedModels, state: FeatureBias, data: ClientData, losses: None
    ) -> LocalRun:
        """A copy of the global model, the personal bias; z̄_i^g and the sum of the batch means of f(x), [D], are 0."""
        models = shared.models._replace(parameters=shared.models.parameters | state.bias)
        nothing = torch.zeros_like(shared.mean)
        return local_run(ctx, models, (nothing, nothing.clone()))

    def client_step(self, ctx: Context, shared: UnbiasedModels, work: LocalRun, batch: Batch) -> LocalRun:
        """A step of f, g and z̄_i^p on the loss of g(f(x) + z̄_i^p) + κ·MR; without either while z̄^g is unknown."""
        models, adapts = named_part(work.models, names_of(shared.models)), ctx.phase == "adapt"
        found = feature_mean(ctx.task.features(models, batch.x)[:, 0], batch.mask)
        before, total = work.extra
        constants = (before, shared.mean, self.weight * shared.known.to(found.dtype), shared.known | adapts)
        objective = Objective(
            self.loss, uses_features=True, over_batch=True, constants=tuple(one.unsqueeze(0) for one in constants),
            leaves=(BIAS,),
        )  # fmt: skip
        work = local_step(ctx, work, batch, objective=objective, moving=frozenset({BIAS}) if adapts else None)
        return work._replace(extra=(torch.lerp(before, found, self.momentum), total + found))

    def loss(self, view: ModelView) -> Tensor:
        """The loss of g(f(x) + z̄_i^p), [B], with the gradient of κ·MR of the batch."""
        before, wanted, weight, learns = view.constants
        mean = torch.lerp(before, feature_mean(view.features, view.mask), self.momentum)
        regulariser = 0.5 * (mean - wanted).square().mean()
        losses: Tensor = view.trained_on.losses(view.head(view.features + view.leaves[BIAS] * learns), view.y)
        return losses + gradient_only(weight * regulariser)

    def client_final(self, ctx: Context, shared: UnbiasedModels, work: LocalRun, data: ClientData) -> ClientResult:
        """Send the model and the mean of its features; keep z̄_i^p."""
        mean = work.extra[1] / work.steps.clamp(min=1)
        sent = ModelsWithMean(named_part(work.models, names_of(shared.models)), mean)
        state = FeatureBias({BIAS: work.models.parameters[BIAS]})
        return local_result(ctx, work, data, sent, state)

    def server_step(self, ctx: Context, shared: UnbiasedModels, reduced: Reduced, client_ids: Tensor) -> UnbiasedModels:
        """The average of the models; z̄^g after the first round."""
        models = server_average(ctx, shared.models, reduced._replace(value=reduced.value.models))
        mean = torch.where(shared.known, shared.mean.double(), reduced.value.mean)
        return UnbiasedModels(models, mean, torch.ones_like(shared.known))

    def log_prob(self, ctx: Context, shared: UnbiasedModels, state: FeatureBias, x: Tensor, outputs: None) -> Tensor:
        """The prediction of g(f(x) + z̄_i^p)."""
        z = ctx.task.features(shared.models, x) + state.bias[BIAS]
        scores = ctx.task.head(shared.models, z)
        return ctx.task.mix(scores.new_ones(1), scores)


def feature_mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean of vectors [B, D], or of those of all positions [B, L, D], of the samples whose mask [B] is 1: [D]."""
    return masked_mean(values.flatten(1, -2).mean(1) if values.ndim > 2 else values, mask)
