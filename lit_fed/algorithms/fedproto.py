"""FedProto: clients with personal models share only their class means of features.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang. "FedProto: Federated Prototype Learning across Heterogeneous Clients". AAAI
2022. https://arxiv.org/abs/2105.00243, Algorithm 1.

Symbols:
    ω_i      -> state.models       the model of client i, leaves [1, ...]; never leaves the client
    f_i(x)                         its features, the inputs of the last layer, [D]
    C_i^(j)  -> message.value      mean of f_i over D_ij, the samples of class j; sent as sums [C, D] and counts [C]
    C̄^(j)    -> shared.prototypes  mean of C_i^(j) over the clients that have class j, weighted |D_ij|/N_j, [C, D]
    λ        -> weight             of the regulariser Σ_j d(C_i^(j), C̄^(j)), d the mean squared error over D
Deviations:
    The paper's d is the Euclidean distance. The mean squared error, used with λ = 1 in the authors' code, is also
    smooth if a single client has a class, so that its mean is the prototype; the norm would turn rounding errors into
    steps of full length there. The squared norm, D times as large, diverged on digits at a rate of 0.1.
    In a step C_i^(j) is the mean over the class's samples in the batch. The authors' code uses the mean squared error
    of each sample to the prototype of its class instead: `distance: samples`.
    Their code averages prototypes without weights, and accumulates features in the last epoch during training (PFLlib:
    without weights, in all epochs); here C_i^(j) is that of the model after its local steps, over all local samples.
    It predicts one of the client's own classes; here all classes with a prototype can be predicted.
    A class without samples in a round keeps its prototype; a class without a prototype is ignored.
    Ours: probabilities are the softmax of −‖f(x) − C̄^(j)‖², so the nearest prototype is predicted; a class without a
    prototype gets the smallest positive number. Before the first round, and with `predict: head`, the last layer
    predicts.
    All clients have the same architecture and start; the paper allows different architectures.
    An unseen client has no model in the paper. Ours: the initial one trains as in a round, with the
    regulariser.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import (
    LocalRun,
    MessageSpec,
    OwnModel,
    Participation,
    Personal,
    local_result,
    local_run,
    local_step,
    ranged,
)
from lit_fed.core.context import Context
from lit_fed.core.objective import ModelView, Objective
from lit_fed.core.prototypes import batch_sums, check_classes, class_sums, class_vectors, feature_width, per_sample
from lit_fed.core.types import Batch, ClientData, ClientResult, ModelState, Reduced

__all__ = ["FedProto", "Prototypes"]


class Prototypes(NamedTuple):
    """The server's state."""

    models: ModelState  # the start of all clients, leaves [1, ...]
    prototypes: Tensor  # C̄^(j), [C, D]
    known: Tensor  # [C] bool, classes that have a prototype


@dataclass(frozen=True)
class FedProto(Personal[Prototypes, OwnModel, LocalRun]):
    """Personal models whose class means of features are pulled towards those of all clients.

    Args:
        weight: λ; 0 is Local, apart from predictions.
        distance: mean squared error to the prototypes of the `class_means` of a batch, as in the paper, or of the
            features of all `samples`, as in the authors' code.
        predict: by the nearest of the `prototypes`, or by the last layer, `head`.
    """

    serving_settings = ("predict",)

    weight: float = ranged(1.0, ">= 0")
    distance: Literal["class_means", "samples"] = "class_means"
    predict: Literal["prototypes", "head"] = "prototypes"

    message = MessageSpec("statistics")
    participation = Participation(weighting="uniform", fills_in_absent=False)
    start_only = ("models",)

    @property
    def incompatible(self) -> dict[str, str]:  # type: ignore[override]
        """Local normalisation, which it has; fine-tuning of what predicts by prototypes."""
        reasons = {"local_norm": "keeps whole models at its clients anyway"}
        by_head = "predicts by the nearest prototype; give --model.algorithm.predict head"
        return reasons if self.predict == "head" else reasons | {"fine_tuning": by_head}

    def shared_init(self, ctx: Context) -> Prototypes:
        """No class has a prototype yet."""
        target, models = ctx.task.target, ctx.task.init(1, ctx.seed)
        check_classes(target, "FedProto")
        prototypes = class_vectors(ctx.task, feature_width(ctx.task, "FedProto"))
        return Prototypes(models, prototypes, torch.zeros(target.num_classes, dtype=torch.bool))

    def client_init(
        self, ctx: Context, shared: Prototypes, state: OwnModel, data: ClientData, losses: None
    ) -> LocalRun:
        """Training continues from the client's own model."""
        return local_run(ctx, state.models)

    def client_step(self, ctx: Context, shared: Prototypes, work: LocalRun, batch: Batch) -> LocalRun:
        """A step on CE + λ·Σ_j d(C_i^(j), C̄^(j))."""
        constants = tree.map_leaves(lambda leaf: leaf.unsqueeze(0), (shared.prototypes, shared.known))
        of_means = self.distance == "class_means"
        objective = Objective(
            self.means_loss if of_means else self.samples_loss, uses_features=True, over_batch=of_means,
            constants=constants,
        )  # fmt: skip
        return local_step(ctx, work, batch, objective=objective)

    def means_loss(self, view: ModelView) -> Tensor:
        """CE + λ·Σ_j d(C_i^(j), C̄^(j)) over the classes of the batch, [B]."""
        prototypes, known = view.constants
        found = batch_sums(view.features, view.y, view.mask, len(known))
        away = (found.means - prototypes).square().mean(-1)
        return view.losses + self.weight * torch.where(known & (found.counts > 0), away, 0.0).sum()

    def samples_loss(self, view: ModelView) -> Tensor:
        """CE + λ·(mean squared error to the prototype of the class), [B]."""
        prototypes, known = view.constants
        error = (view.features - prototypes[view.y]).square().mean(-1)
        return view.losses + self.weight * per_sample(torch.where(known[view.y], error, 0.0))

    def client_final(self, ctx: Context, shared: Prototypes, work: LocalRun, data: ClientData) -> ClientResult:
        """Send sums and counts of the features of each class; keep the model."""
        sums = class_sums(lambda x: ctx.task.features(work.models, x)[:, 0], data, len(shared.known))
        one = torch.ones_like(data.num_samples)  # classes are weighted by their counts
        return local_result(ctx, work, data, sums, OwnModel(work.models), weight=one)

    def server_step(self, ctx: Context, shared: Prototypes, reduced: Reduced, client_ids: Tensor) -> Prototypes:
        """The weighted mean of the clients' class means."""
        seen = reduced.value.counts > 0
        prototypes = torch.where(seen.unsqueeze(-1), reduced.value.means, shared.prototypes.double())
        return shared._replace(prototypes=prototypes, known=shared.known | seen)

    def log_prob(self, ctx: Context, shared: Prototypes, state: OwnModel, x: Tensor, outputs: None) -> Tensor:
        """Log softmax of −‖f(x) − C̄^(j)‖², in which ‖f(x)‖² cancels."""
        by_head = super().log_prob(ctx, shared, state, x, outputs)
        if self.predict == "head":
            return by_head
        features = ctx.task.features(state.models, x)[:, 0]
        product = (features.unsqueeze(-2) * shared.prototypes).sum(-1)  # a matrix product would be autocast
        near = 2 * product - shared.prototypes.square().sum(-1)
        found = torch.where(shared.known, near, -torch.inf).log_softmax(-1)
        least = math.log(torch.finfo(found.dtype).tiny)
        return torch.where(shared.known.any(), found.clamp(min=least), by_head)
