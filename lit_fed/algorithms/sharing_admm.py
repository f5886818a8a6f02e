"""Sharing ADMM: a linear model whose features are divided among parties, fitted without showing them to each other.

Boyd, Parikh, Chu, Peleato, Eckstein. "Distributed Optimization and Statistical Learning via the Alternating Direction
Method of Multipliers". Foundations and Trends in Machine Learning 3(1), 2011. https://doi.org/10.1561/2200000016,
Sections 7.3 and 8.3, in scaled form.

Symbols:
    x_i     -> state.weights    weights of party i's features, [d + 1], 0 at those of the others
    A_i·x_i -> state.fit        its part of the prediction of each training row, [n]
    Āx      -> shared.mean_fit  (1/N)·Σ_i A_i·x_i, [n]
    z̄       -> shared.mean_target what Āx should be, [n]
    u       -> shared.dual      the scaled multiplier of Āx = z̄, [n]
    b       -> message.value[1] the labels, [n], from party 0
    ℓ       -> loss             summed over rows; half the squared error for regression
    r_i, μ  -> regulariser, regularisation
    ρ       -> penalty_weight
Deviations:
    The intercept is the weight of a constant feature of party 0, without penalty.
    Party 0 holds the labels and coordinates, so that labels cost no bits; those of the others are never read.
    The server holds Σ_i x_i for measurements, at no bits: in use the parties add up their A_i·x_i of a new row.
    ρ is fixed, the number of rounds is the stopping rule, and the lasso's x-update takes a fixed number of steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from lit_fed.algorithms.base import Algorithm
from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.errors import check_settings
from lit_fed.core.local_solver import OptimizerState
from lit_fed.core.networks.precision import full_precision
from lit_fed.core.quadratic import Regulariser, regularised_solution
from lit_fed.core.reduce import cast_like
from lit_fed.core.solvers.affine_networks import from_columns
from lit_fed.core.solvers.margin_losses import MarginLoss
from lit_fed.core.types import ClientData, ClientResult, LocalWork, Message, ModelState, Phase, Reduced
from lit_fed.core.vertical import check_parties, holds_labels, label_loss, label_prox, labels_of, party_features

__all__ = ["JointFit", "PartFit", "PartWork", "SharingADMM"]


class JointFit(NamedTuple):
    """What the coordinator knows."""

    models: ModelState  # Σ_i x_i, leaves [1, ...]
    mean_fit: Tensor  # Āx, [n]
    mean_target: Tensor  # z̄, [n]
    dual: Tensor  # u, [n]


class PartFit(NamedTuple):
    """What a party keeps."""

    weights: Tensor  # x_i, [d + 1]
    fit: Tensor  # A_i·x_i, [n]
    gram: Tensor  # A_iᵀ·A_i, [d + 1, d + 1]


class PartWork(NamedTuple):
    """A party's phase."""

    state: PartFit
    wanted: Tensor  # what A_i·x_i should become, [n]
    optimizer: OptimizerState  # of no use here


@dataclass(frozen=True)
class SharingADMM(Algorithm[JointFit, PartFit, PartWork]):
    """Least squares or a linear classifier over parties that hold different features of the same rows.

    Args:
        regularisation: μ.
        regulariser: of each party, `ridge`: μ/2·‖x‖², or `lasso`: μ·‖x‖₁.
        loss: of two classes, `logistic` or `hinge`; regression takes squared errors.
        penalty_weight: ρ.
        inner_steps: steps of the lasso's x-update.
    """

    regularisation: float = 1.0
    regulariser: Regulariser = "ridge"
    loss: MarginLoss = "logistic"
    penalty_weight: float = 1.0
    inner_steps: int = 50

    divided_by = "features"
    default_weighting = "uniform"
    fills_in_absent_clients = False
    needs_all_clients = True
    conformance_exempt: ClassVar[dict[str, str]] = {
        "client_order": "party 0 holds the labels",
        **dict.fromkeys(["mlp", "local_batch_norm", "multiclass", "sequences"], "its model is linear with one output"),
    }

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        checks = {
            "regularisation": (self.regularisation > 0, "a number > 0"),
            "regulariser": (self.regulariser in ("ridge", "lasso"), "ridge or lasso"),
            "loss": (self.loss in ("hinge", "logistic"), "hinge or logistic"),
            "penalty_weight": (self.penalty_weight > 0, "a number > 0"),
            "inner_steps": (self.inner_steps >= 1, "a whole number >= 1"),
        }
        check_settings(self, checks)

    def shared_init(self, ctx: Context) -> JointFit:
        """All at 0."""
        check_parties(ctx, "SharingADMM")
        zeros = (torch.zeros(ctx.most_samples, dtype=ctx.task.dtype) for _ in range(3))
        return JointFit(tree.zeros_like(ctx.task.init(1, ctx.seed)), *zeros)

    def state_init(self, ctx: Context, shared: JointFit, data: ClientData) -> PartFit:
        """x_i = 0."""
        features = party_features(ctx, data)
        with full_precision(features):
            return PartFit(torch.zeros_like(features[0]), torch.zeros_like(shared.dual), features.T @ features)

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase]:
        """No local steps: the x-update is a solve."""
        return (Phase("train", client_ids, LocalWork()),)

    def client_init(self, ctx: Context, shared: JointFit, state: PartFit, data: ClientData, losses: None) -> PartWork:
        """What comes down is z̄ − Āx − u."""
        wanted = state.fit + (shared.mean_target - shared.mean_fit - shared.dual)
        return PartWork(state, wanted, ctx.solver.init(shared.models))

    def client_final(self, ctx: Context, shared: JointFit, work: PartWork, data: ClientData) -> ClientResult:
        """x_i = argmin r_i(x) + ρ/2·‖A_i·x − wanted‖²; A_i·x_i goes up."""
        features, (old, _, gram), rho = party_features(ctx, data), work.state, self.penalty_weight
        with full_precision(features):
            system = rho * gram, rho * (features.T @ work.wanted)
            x = regularised_solution(self.regulariser, *system, self.regularisation, old, self.inner_steps)
            state = PartFit(x, features @ x, gram)
        bits = tree.bits(work.wanted) * torch.ones_like(data.num_samples)
        message = Message((state.fit, labels_of(ctx, data), x), ctx.client_weight(data), bits, bits)
        return ClientResult(message, state, {"loss": self._loss(ctx, shared, data)})

    def _loss(self, ctx: Context, shared: JointFit, data: ClientData) -> Tensor:
        """The joint model's mean loss before the round; party 0 alone knows it, so its number makes up the mean."""
        N, labels = ctx.num_clients, labels_of(ctx, data)
        return N * holds_labels(data) * label_loss(ctx, self.loss, N * shared.mean_fit, labels).mean()

    def server_step(self, ctx: Context, shared: JointFit, reduced: Reduced, client_ids: Tensor) -> JointFit:
        """z̄ = argmin ℓ(N·z̄ − b) + Nρ/2·‖z̄ − u − Āx‖², where N·z̄ is the joint prediction; then u."""
        N, (mean_fit, labels, x) = ctx.num_clients, reduced.value
        point = mean_fit + shared.dual
        target = label_prox(ctx, self.loss, N * point, N * labels, self.penalty_weight / N) / N
        models = ModelState(from_columns(N * x.view(1, 1, -1), shared.models.parameters), {})
        return cast_like(JointFit(models, mean_fit, target, point - target), shared)  # type: ignore[no-any-return]
