"""MixtureDCA: personal models around their mean, as a difference of convex functions; plain or accelerated DCA.

min Σ_i f_i(x_i) + λ/2·Σ_i ‖x_i − x̄‖², the objective of Hanzely, Richtárik. "Federated Learning of a Mixture of Global
and Local Models". 2020. https://arxiv.org/abs/2002.05516, Equation 2, is G − H with G(x) = Σ_i (f_i(x_i) + λ/2·‖x_i‖²)
and H(x) = λN/2·‖x̄‖². DCA (Pham Dinh, Le Thi. "Convex Analysis Approach to D.C. Programming: Theory, Algorithms and
Applications". Acta Mathematica Vietnamica, 1997) minimises G − ⟨∇H(x^k), ·⟩. Accelerated DCA: Phan, Le, Le Thi.
"Accelerated Difference of Convex functions Algorithm and its Application to Sparse Binary Logistic Regression". IJCAI
2018. https://doi.org/10.24963/ijcai.2018/190.

Symbols:
    x_i^k  -> state.models   the personal model of client i, leaves [1, ...]
    x̄^k    -> shared.mean    their mean, leaves [1, ...]
    v̄      -> shared.models  the mean of the point at which H is linearised, leaves [1, ...]: ∇H(v)_i = λ·v̄
    z^k    =  x^k + β_k(x^k − x^{k−1}), the extrapolated point
    β_k    -> extrapolation  (t_k − 1)/t_{k+1} with t_{k+1} = (1 + √(1 + 4t_k²))/2
    F(x^k) -> shared.values  the last q + 1 values of the objective over N, [q + 1]; q -> memory
    λ      -> prox_weight
Deviations:
    Without acceleration the iteration is that of `MixtureADMM`, form `alternating_prox`, and of `ProxAvg`, which allows
    absent clients; here all clients take part. The program is unconstrained: x̄ is no variable with a constraint.
    Ours: t_1 = 1, as in FISTA, of which this is the form on Moreau envelopes if all f_i are convex. F(x^0) is unknown.
    Ours: a client sends its part of F(x^k) and F(z^k) with its model, so that a round stays one exchange.
    With `local_solve: inexact` the solver's steps, from the last x_i, replace the minimisation.
    Ours: `--model.weighting samples` gives f_i the weight N·n_i/n, by which the local objective is then divided.
    An unseen client has no model there. Ours: the minimiser of f_i(x) + λ/2·‖x − v̄‖², or a round towards it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import LocalRun, MessageSpec, OwnModel, Participation, local_result, ranged
from lit_fed.core.context import Context
from lit_fed.core.local_solver import Penalty
from lit_fed.core.solvers.newton import solvable_start
from lit_fed.core.solvers.penalised_solve import LocalSolve, PersonalSolve, penalised_run
from lit_fed.core.types import ClientData, ClientResult, Leaves, ModelState, Phase, Reduced

__all__ = ["DCAServer", "MixtureDCA", "ModelWithValues", "extrapolation"]


class DCAServer(NamedTuple):
    """The server's state."""

    models: ModelState  # v̄, leaves [1, ...]
    mean: Leaves  # x̄, leaves [1, ...]
    values: Tensor  # last values of F/N, the newest at the end, [q + 1]; the lowest number before the first


class ModelWithValues(NamedTuple):
    """Message value of a client with acceleration."""

    models: ModelState  # x_i, leaves [1, ...]
    values: Tensor  # f_i(x) + λ/2·‖x − v̄‖² at x_i and at z_i, [2]


@dataclass(frozen=True)
class MixtureDCA(PersonalSolve[DCAServer, OwnModel]):
    """Personal models that are pulled towards their mean, with or without Nesterov's acceleration.

    Args:
        prox_weight: λ; 0 trains every client alone; larger values bring all models closer together.
        accelerated: extrapolate the point at which the concave part is linearised.
        memory: q; extrapolation needs an objective that is at most the largest of the last q + 1.
        local_solve: `exact` by Newton's method, for small convex networks, or `inexact` by the solver's local work.
    """

    server_only = ("mean", "values")

    prox_weight: float = ranged(1.0, ">= 0")
    accelerated: bool = True
    memory: int = ranged(5, ">= 0")
    local_solve: LocalSolve = "inexact"

    participation = Participation(weighting="uniform", needs_all_clients=True, fills_in_absent=False)
    incompatible = {
        "noise_in_steps": "the objective's values",
        "personal_parts": "pulls whole models to their mean",
    }

    @property
    def message(self) -> MessageSpec:  # type: ignore[override]
        """Models; the values of the objective sent with them belong to these models only."""
        return MessageSpec("multiples" if self.accelerated else "models")

    def shared_init(self, ctx: Context) -> DCAServer:
        """x_i^0 = v̄ for all."""
        models = solvable_start(ctx, self.local_solve)
        lowest = torch.finfo(ctx.task.dtype).min
        values = torch.full((self.memory + 1,), lowest, dtype=ctx.task.dtype)
        return DCAServer(models, models.parameters, values)

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase]:
        """One exchange."""
        return (Phase("train", client_ids, self.local_work(ctx)),)

    def client_init(self, ctx: Context, shared: DCAServer, state: OwnModel, data: ClientData, losses: None) -> LocalRun:
        """x_i^{k+1} = argmin f_i(x) + λ/2·‖x‖² − ⟨λ·v̄, x⟩."""
        gradient = tree.scale(shared.models.parameters, self.prox_weight)
        return penalised_run(ctx, state, self.prox_weight, tree.scale(gradient, -1), ctx.client_share(data))

    def client_final(self, ctx: Context, shared: DCAServer, work: LocalRun, data: ClientData) -> ClientResult:
        """The exact solve, if chosen; send x_i, with the client's part of F(x) and F(z)."""
        work = self.solved(ctx, work, data)
        value: ModelState | ModelWithValues = work.models
        if self.accelerated:
            ahead = _extrapolated(work.extra[1].models.parameters, work.models.parameters, ctx.round_idx + 1)
            points = work.models, work.models._replace(parameters=ahead)
            parts = torch.stack([self._part(ctx, shared, one, data) for one in points])
            value = ModelWithValues(work.models, parts)
        one = torch.ones_like(data.num_samples)
        return local_result(ctx, work, data, value, OwnModel(work.models), weight=one)

    def _part(self, ctx: Context, shared: DCAServer, models: ModelState, data: ClientData) -> Tensor:
        """f_i(x) + λ/2·‖x − v̄‖², []."""
        loss = ctx.task.full_gradient(models, data, training=False)[0][0]
        pull = Penalty(self.prox_weight, shared.models.parameters).value(models.parameters)[0]
        return (ctx.client_share(data) * loss + pull).to(loss.dtype)

    def server_step(self, ctx: Context, shared: DCAServer, reduced: Reduced, client_ids: Tensor) -> DCAServer:
        """v^k = z^k if F(z^k) ≤ max(F(x^{k−q}), …, F(x^k)), and x^k otherwise."""
        if not self.accelerated:
            return shared._replace(models=reduced.value, mean=reduced.value.parameters)
        models, parts = reduced.value
        points = models.parameters, _extrapolated(shared.mean, models.parameters, ctx.round_idx + 1)
        # Σ_i ‖x_i − x̄‖² = Σ_i ‖x_i − v̄‖² − N·‖x̄ − v̄‖²
        squares = [tree.norm(tree.sub(one, shared.models.parameters)).square() for one in points]
        at_x, at_z = parts - 0.5 * self.prox_weight * torch.stack(squares)
        values = torch.cat([shared.values[1:], at_x[None]])
        share = (at_z <= values.max()).to(at_z.dtype)
        return DCAServer(models._replace(parameters=tree.lerp(*points, share)), points[0], values)


def _extrapolated(old: Leaves, new: Leaves, k: int) -> Leaves:
    """z^k = x^k + β_k(x^k − x^{k−1}), leaves [1, ...]."""
    return tree.lerp(old, new, 1 + extrapolation(k))  # type: ignore[no-any-return]


def extrapolation(k: int) -> float:
    """β_k = (t_k − 1)/t_{k+1} with t_1 = 1.

    Example:
        >>> [round(extrapolation(k), 3) for k in (1, 2, 3)]
        [0.0, 0.282, 0.434]
    """
    t = ahead = 1.0
    for _ in range(k):
        t, ahead = ahead, (1 + (1 + 4 * ahead * ahead) ** 0.5) / 2
    return (t - 1) / ahead
