"""Sharing ADMM: a linear model with features divided among parties, fitted without sharing the features.

Boyd, Parikh, Chu, Peleato, Eckstein. "Distributed Optimization and Statistical Learning via the Alternating Direction
Method of Multipliers". Foundations and Trends in Machine Learning 3(1), 2011. https://doi.org/10.1561/2200000016,
Sections 7.3 and 8.3, in scaled form.

Symbols:
    x_i     -> state.weights    weights of party i's features, [d + 1], 0 at those of the others
    A_i·x_i -> state.fit        its part of the prediction of each training row, [n]
    Āx      -> shared.mean_fit  (1/N)·Σ_i A_i·x_i, [n]
    z̄       -> shared.mean_target target of Āx, [n]
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
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import Algorithm, MessageSpec, Participation, ranged
from lit_fed.core.context import Context
from lit_fed.core.local_solver import OptimizerState
from lit_fed.core.networks.products import full_precision
from lit_fed.core.solvers.linear_models import (
    MarginLoss,
    check_linear_task,
    from_columns,
    margin_loss,
    margin_prox,
    with_constant,
)
from lit_fed.core.types import ClientData, ClientResult, LocalWork, Message, ModelState, Phase, Reduced
from lit_fed.errors import ConfigError

__all__ = ["JointFit", "PartFit", "PartWork", "Regulariser", "SharingADMM", "label_prox", "regularised_solution"]

Regulariser = Literal["ridge", "lasso"]


class JointFit(NamedTuple):
    """The coordinator's state: the joint prediction of each training row, its target, and the multiplier."""

    models: ModelState  # Σ_i x_i, leaves [1, ...]
    mean_fit: Tensor  # Āx, [n]
    mean_target: Tensor  # z̄, [n]
    dual: Tensor  # u, [n]


class PartFit(NamedTuple):
    """A party's state: its weights, and their part of the predictions."""

    weights: Tensor  # x_i, [d + 1]
    fit: Tensor  # A_i·x_i, [n]
    gram: Tensor  # A_iᵀ·A_i, [d + 1, d + 1]


class PartWork(NamedTuple):
    """A party's phase: an x-update towards a target."""

    state: PartFit
    wanted: Tensor  # target of A_i·x_i, [n]
    optimizer: OptimizerState  # fresh and never stepped, as the x-update is a solve


@dataclass(frozen=True)
class SharingADMM(Algorithm[JointFit, PartFit, PartWork]):
    """Least squares or a linear classifier over parties that hold different features of the same rows.

    Args:
        regularisation: μ.
        regulariser: r_i, the same for each party, `ridge`: μ/2·‖x‖², or `lasso`: μ·‖x‖₁.
        loss: loss of two classes, `logistic` or `hinge`; regression takes squared errors.
        penalty_weight: ρ.
        inner_steps: steps of the lasso's x-update.
    """

    regularisation: float = ranged(1.0, "> 0")
    regulariser: Regulariser = "ridge"
    loss: MarginLoss = "logistic"
    penalty_weight: float = ranged(1.0, "> 0")
    inner_steps: int = ranged(50, ">= 1")

    message = MessageSpec("multiples")
    participation = Participation(
        weighting="uniform", needs_all_clients=True, fills_in_absent=False, divided_by="features"
    )
    state_reads_data = True
    incompatible = {
        "fine_tuning": "divides one linear model by features",
        "deployment": "needs rows of the same samples at all parties, which somebody has to align first",
        "loss": "solves for the loss of the joint outputs in closed form",
        "personal_parts": "divides one linear model by features",
        "local_norm": "trains a linear model with one output",
    }

    def shared_init(self, ctx: Context) -> JointFit:
        """Āx, z̄, u and all weights start at 0."""
        _check_same_rows(ctx, "SharingADMM")
        zeros = (torch.zeros(ctx.most_samples, dtype=ctx.task.dtype) for _ in range(3))
        return JointFit(tree.zeros_like(ctx.task.init(1, ctx.seed)), *zeros)

    def state_init(self, ctx: Context, shared: JointFit, data: ClientData) -> PartFit:
        """x_i = 0."""
        features = _party_features(ctx, data)
        with full_precision(features):
            return PartFit(torch.zeros_like(features[0]), torch.zeros_like(shared.dual), features.T @ features)

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase]:
        """No local steps: the x-update is a solve."""
        return (Phase("train", client_ids, LocalWork()),)

    def client_init(self, ctx: Context, shared: JointFit, state: PartFit, data: ClientData, losses: None) -> PartWork:
        """The target of A_i·x_i is its old value plus z̄ − Āx − u, which is received."""
        wanted = state.fit + (shared.mean_target - shared.mean_fit - shared.dual)
        return PartWork(state, wanted, ctx.solver.init(shared.models))

    def client_final(self, ctx: Context, shared: JointFit, work: PartWork, data: ClientData) -> ClientResult:
        """x_i = argmin r_i(x) + ρ/2·‖A_i·x − wanted‖²; send A_i·x_i."""
        features, (old, _, gram), rho = _party_features(ctx, data), work.state, self.penalty_weight
        with full_precision(features):
            system = rho * gram, rho * (features.T @ work.wanted)
            x = regularised_solution(self.regulariser, *system, self.regularisation, old, self.inner_steps)
            state = PartFit(x, features @ x, gram)
        bits = tree.bits(work.wanted) * torch.ones_like(data.num_samples)
        message = Message((state.fit, _labels_of(ctx, data), x), ctx.client_weight(data), bits, bits)
        return ClientResult(message, state, {"loss": self._loss(ctx, shared, data)})

    def _loss(self, ctx: Context, shared: JointFit, data: ClientData) -> Tensor:
        """The joint model's mean loss before the round; only party 0 knows it, so its value is scaled to the mean."""
        N, labels = ctx.num_clients, _labels_of(ctx, data)
        return N * _holds_labels(data) * _label_loss(ctx, self.loss, N * shared.mean_fit, labels).mean()

    def server_step(self, ctx: Context, shared: JointFit, reduced: Reduced, client_ids: Tensor) -> JointFit:
        """z̄ = argmin ℓ(N·z̄ − b) + Nρ/2·‖z̄ − u − Āx‖², where N·z̄ is the joint prediction; then u."""
        N, (mean_fit, labels, x) = ctx.num_clients, reduced.value
        point = mean_fit + shared.dual
        target = label_prox(ctx, self.loss, N * point, N * labels, self.penalty_weight / N) / N
        models = ModelState(from_columns(N * x.view(1, 1, -1), shared.models.parameters), {})
        return JointFit(models, mean_fit, target, point - target)


def _check_same_rows(ctx: Context, algorithm: str) -> None:
    """Refuse anything but one linear output and equal numbers of training rows.

    Raises:
        ConfigError: naming the given and the required values.
    """
    check_linear_task(ctx.task, algorithm, ("regression", "binary"))
    if ctx.most_samples * ctx.num_clients != ctx.total_samples:
        raise ConfigError(
            f"{algorithm} needs the same training rows at each party, and of {ctx.num_clients} parties the largest has "
            f"{ctx.most_samples} of {ctx.total_samples} rows in all; correct --data.dataset"
        )


def _party_features(ctx: Context, data: ClientData) -> Tensor:
    """The features of a party with 0 for those of the others, and a constant that party 0 holds, [n, d + 1]."""
    return with_constant(data.x, _holds_labels(data))[: ctx.most_samples].to(ctx.task.dtype)


def _holds_labels(data: ClientData) -> Tensor:
    """Whether this is party 0, [] bool."""
    return data.client_id == 0


def regularised_solution(
    regulariser: Regulariser, gram: Tensor, linear: Tensor, weight: float, start: Tensor, num_steps: int
) -> Tensor:
    """The x that minimises ½·xᵀGx − ⟨b, x⟩ plus a penalty on all entries but the last, the weight of a constant.

    Args:
        regulariser: the penalty, weight/2·‖x‖² or weight·‖x‖₁.
        gram: G, [d, d].
        linear: b, [d].
        weight: weight of the penalty.
        start: initial point of the steps of a lasso, [d].
        num_steps: number of these steps.
    """
    each = torch.full_like(linear[:-1], weight)
    each = torch.cat([each, torch.zeros_like(linear[-1:])])
    if regulariser == "ridge":
        return _ridge_solution(gram, linear, each)
    return _lasso_solution(gram, linear, each, start, num_steps)


def _ridge_solution(gram: Tensor, linear: Tensor, weight: Tensor) -> Tensor:
    """The same with the penalty ½·Σ_j weight_j·x_j², exactly; entries of features that are 0 everywhere are 0.

    Args:
        gram: G, [d, d].
        linear: b, [d].
        weight: weight of each entry, [d], >= 0.

    Example:
        >>> _ridge_solution(torch.diag(torch.tensor([1.0, 0.0])), torch.tensor([4.0, 0.0]), torch.tensor([1.0, 0.0]))
        tensor([2., 0.])
    """
    absent = (gram.diagonal() == 0).to(gram.dtype)
    return torch.linalg.solve(gram + torch.diag(weight + absent), linear)  # type: ignore[no-any-return]


def _lasso_solution(gram: Tensor, linear: Tensor, weight: Tensor, start: Tensor, num_steps: int) -> Tensor:
    """The same with the penalty Σ_j weight_j·|x_j|, by accelerated proximal gradient steps (FISTA).

    Args:
        gram: G, [d, d].
        linear: b, [d].
        weight: weight of each entry, [d], >= 0.
        start: initial point, [d].
        num_steps: number of steps.

    Example:
        >>> _lasso_solution(torch.eye(2), torch.tensor([3.0, 0.5]), torch.ones(2), torch.zeros(2), 5)
        tensor([2., 0.])
    """
    rate = 1 / torch.linalg.eigvalsh(gram)[-1].clamp(min=torch.finfo(gram.dtype).tiny)
    x, ahead, pace = start, start, 1.0
    for _ in range(num_steps):
        moved = ahead - rate * (gram @ ahead - linear)
        new = moved.sign() * (moved.abs() - rate * weight).clamp(min=0)
        faster = (1 + (1 + 4 * pace * pace) ** 0.5) / 2
        ahead, x, pace = new + (pace - 1) / faster * (new - x), new, faster
    return x


def _labels_of(ctx: Context, data: ClientData) -> Tensor:
    """The labels at party 0, [n]; 0 at all others, whose labels are ignored."""
    labels = data.y[: ctx.most_samples].to(ctx.task.dtype)
    return torch.where(_holds_labels(data), labels, torch.zeros_like(labels))


def _label_loss(ctx: Context, loss: MarginLoss, fit: Tensor, labels: Tensor) -> Tensor:
    """Loss of each row: half the squared error, or that of the margin; [n].

    Args:
        ctx: the context.
        loss: loss of two classes.
        fit: predictions, [n].
        labels: numbers, or 0 and 1, [n].
    """
    if ctx.task.target.continuous:
        return 0.5 * (fit - labels).square()
    return margin_loss(loss, _label_signs(labels) * fit)


def label_prox(ctx: Context, loss: MarginLoss, point: Tensor, labels: Tensor, weight: float) -> Tensor:
    """The s that minimises `_label_loss` plus weight/2·(s − point)², row by row; [n].

    Args:
        ctx: the context.
        loss: loss of two classes.
        point: [n].
        labels: numbers, or 0 and 1, [n].
        weight: > 0.
    """
    if ctx.task.target.continuous:
        return (labels + weight * point) / (1 + weight)
    return _label_signs(labels) * margin_prox(loss, _label_signs(labels) * point, weight)


def _label_signs(labels: Tensor) -> Tensor:
    """±1 for labels 1 and 0, [n]."""
    return torch.where(labels > 0.5, 1.0, -1.0).to(labels.dtype)
