"""Minimise a client's loss plus a penalty that is fixed during a phase, exactly or by local steps."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.local_solver import OptimizerState, Penalty
from lit_fed.core.solvers.newton import minimise
from lit_fed.core.types import Batch, ClientData, ModelState, Tree

__all__ = ["PenalisedRun", "exact_solution", "penalised_run", "penalised_step"]


class PenalisedRun(NamedTuple):
    """Work of a client that minimises f_i(x) + curvature/2·‖x‖² + ⟨linear, x⟩."""

    models: ModelState  # x, leaves [1, ...]
    optimizer: OptimizerState
    loss: Tensor  # [] sum over steps of the mean loss f_i of the batch, before the step; of the minimiser if exact
    steps: Tensor  # [] steps taken
    curvature: Tensor  # [] float64
    linear: dict[str, Tensor]  # leaves [1, ...]
    state: Tree  # the client's state before the phase

    @property
    def penalty(self) -> Penalty:
        """The penalty on f_i."""
        return Penalty(self.curvature, None, self.linear)


def penalised_run(
    ctx: Context, state: Tree, curvature: Tensor | float, linear: dict[str, Tensor], share: Tensor
) -> PenalisedRun:
    """Work that starts from `state.models`; the penalty is divided by the weight of f_i, so that f_i has weight 1.

    Args:
        ctx: the context.
        state: the client's state.
        curvature: curvature of the penalty on share·f_i.
        linear: linear part of that penalty, leaves [1, ...].
        share: the weight of f_i, [].
    """
    loss = ctx.lr.new_zeros((), dtype=ctx.task.dtype)
    optimizer = ctx.solver.init(state.models)
    return PenalisedRun(
        state.models, optimizer, loss, loss.clone(), curvature / share, tree.scale(linear, 1 / share), state
    )


def penalised_step(ctx: Context, run: PenalisedRun, batch: Batch) -> PenalisedRun:
    """One step of the local solver."""
    models, optimizer, loss = ctx.solver.step(ctx.task, run.models, run.optimizer, batch, ctx.lr, penalty=run.penalty)
    return run._replace(models=models, optimizer=optimizer, loss=run.loss + loss.mean(), steps=run.steps + 1)


def exact_solution(ctx: Context, run: PenalisedRun, data: ClientData) -> PenalisedRun:
    """The exact minimiser, and the loss there."""
    models = minimise(ctx.task, run.models, data, run.penalty)
    return run._replace(models=models, loss=ctx.task.full_gradient(models, data)[0].mean())
