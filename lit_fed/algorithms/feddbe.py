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
    Both steps are simultaneous, as in their code, but z̄_i^p is trained on features in evaluation mode, and with the
    solver's momentum and weight decay.
    An unseen client has no bias in the paper. Ours: 0, which trains `unseen_epochs` passes under the global model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value

from lit_fed.core import tree
from lit_fed.core.algorithm import Personal
from lit_fed.core.context import Context
from lit_fed.core.local_solver import OptimizerState
from lit_fed.core.prototypes import feature_width, masked_mean
from lit_fed.core.reduce import server_average
from lit_fed.core.targets import ModelView, Objective
from lit_fed.core.types import Batch, ClientData, ClientResult, Message, ModelState, Reduced
from lit_fed.errors import check_settings

__all__ = ["FeatureBias", "FedDBE", "ModelsWithMean", "UnbiasedModels", "UnbiasedRun"]

Bias = dict[str, Tensor]


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


class UnbiasedRun(NamedTuple):
    """A client's phase."""

    models: ModelState  # f and g, leaves [1, ...]
    bias: Bias  # z̄_i^p, one leaf [1, D]
    optimizer: tuple[OptimizerState, OptimizerState]  # of f and g, and of z̄_i^p
    loss: Tensor  # [] sum over steps of the mean loss of the batch without MR, before the step
    steps: Tensor  # [] steps taken
    mean: Tensor  # z̄_i^g, [D]
    total: Tensor  # sum over steps of the batch means of f(x), [D]


@dataclass(frozen=True)
class FedDBE(Personal[UnbiasedModels, FeatureBias, UnbiasedRun]):
    """FedAvg whose clients add a personal bias to their features, and keep their mean features near the global mean.

    Args:
        weight: κ of the mean regulariser.
        momentum: μ of the moving mean, in (0, 1]; 1: the mean of the batch.
    """

    weight: float = 50.0
    momentum: float = 1.0

    incompatible: ClassVar[dict[str, str]] = {
        "privacy": "averages means of features beside models",
        "secure_sums": "sends means of features beside them, which no range bounds",
        "noise_in_steps": "the means of features and the personal biases",
    }

    def __post_init__(self) -> None:
        check_settings(self, weight=">= 0", momentum="(0, 1]")

    def shared_init(self, ctx: Context) -> UnbiasedModels:
        """A fresh model; z̄^g is not known yet."""
        mean = torch.zeros(feature_width(ctx.task, "FedDBE"), dtype=ctx.task.dtype)
        return UnbiasedModels(ctx.task.init(1, ctx.seed), mean, torch.tensor(False))

    def state_init(self, ctx: Context, shared: UnbiasedModels, data: ClientData) -> FeatureBias:
        """z̄_i^p = 0."""
        return FeatureBias({"bias": torch.zeros_like(shared.mean).unsqueeze(0)})

    def client_init(
        self, ctx: Context, shared: UnbiasedModels, state: FeatureBias, data: ClientData, losses: None
    ) -> UnbiasedRun:
        """A copy of the global model, the personal bias, and z̄_i^g = 0."""
        optimizer = (ctx.solver.init(shared.models), ctx.solver.init(ModelState(state.bias, {})))
        zero = torch.zeros((), dtype=ctx.task.dtype, device=ctx.lr.device)
        nothing = torch.zeros_like(shared.mean)
        return UnbiasedRun(shared.models, state.bias, optimizer, zero, zero.clone(), nothing, nothing.clone())

    def client_step(self, ctx: Context, shared: UnbiasedModels, work: UnbiasedRun, batch: Batch) -> UnbiasedRun:
        """Steps of f, g and z̄_i^p on the loss of g(f(x) + z̄_i^p) + κ·MR; without either while z̄^g is unknown."""
        task, solver, (of_models, of_bias) = ctx.task, ctx.solver, work.optimizer
        z = task.features(work.models, batch.x)

        def biased_loss(bias: Bias) -> Tensor:
            outputs = task.head(work.models, z + bias["bias"])
            return masked_mean(task.trained_on.losses(outputs[:, 0], batch.y), batch.mask)

        gradient, loss = grad_and_value(biased_loss)(work.bias)
        stepped, before = solver.update(work.bias, gradient, of_bias, ctx.lr), (work.bias, of_bias)
        learns = shared.known | (ctx.phase == "adapt")
        bias, of_bias = tree.map_leaves(lambda new, old: torch.where(learns, new, old), stepped, before)
        if ctx.phase != "adapt":
            weight = self.weight * shared.known.to(z.dtype)
            constants = (work.bias["bias"], *(one.unsqueeze(0) for one in (work.mean, shared.mean, weight)))
            objective = Objective(self.loss, uses_features=True, over_batch=True, constants=constants)
            models, of_models = solver.step_without_loss(
                task, work.models, of_models, batch, ctx.lr, objective=objective
            )
            work = work._replace(models=models)
        found = feature_mean(z[:, 0], batch.mask)
        mean, total = torch.lerp(work.mean, found, self.momentum), work.total + found
        return UnbiasedRun(work.models, bias, (of_models, of_bias), work.loss + loss, work.steps + 1, mean, total)

    def loss(self, view: ModelView) -> Tensor:
        """The loss of g(f(x) + z̄_i^p), and κ·MR of the batch, [B]."""
        bias, before, wanted, weight = view.constants
        mean = torch.lerp(before, feature_mean(view.features, view.mask), self.momentum)
        regulariser = 0.5 * (mean - wanted).square().mean()
        losses = view.trained_on.losses(view.head(view.features + bias), view.y)
        return losses + weight * regulariser  # type: ignore[no-any-return]

    def client_final(self, ctx: Context, shared: UnbiasedModels, work: UnbiasedRun, data: ClientData) -> ClientResult:
        """Send the model and the mean of its features; keep z̄_i^p."""
        weight, steps = ctx.client_weight(data), work.steps.clamp(min=1)
        down = torch.full_like(weight, tree.bits(shared, ctx.private))
        message = Message(ModelsWithMean(work.models, work.total / steps), weight, bits_down=down)
        return ClientResult(message, FeatureBias(work.bias), {"loss": work.loss / steps})

    def server_step(self, ctx: Context, shared: UnbiasedModels, reduced: Reduced, client_ids: Tensor) -> UnbiasedModels:
        """The average of the models; z̄^g after the first round."""
        models = server_average(ctx, shared.models, reduced._replace(value=reduced.value.models))
        mean = torch.where(shared.known, shared.mean.double(), reduced.value.mean)
        return UnbiasedModels(models, mean, torch.ones_like(shared.known))

    def log_prob(self, ctx: Context, shared: UnbiasedModels, state: FeatureBias, x: Tensor, outputs: None) -> Tensor:
        """The prediction of g(f(x) + z̄_i^p)."""
        z = ctx.task.features(shared.models, x) + state.bias["bias"]
        scores = ctx.task.head(shared.models, z)
        return ctx.task.mix(scores.new_ones(1), scores)


def feature_mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean of vectors [B, D], or of those of all positions [B, L, D], of the samples whose mask [B] is 1: [D]."""
    return masked_mean(values.flatten(1, -2).mean(1) if values.ndim > 2 else values, mask)
