"""Minimise a client's loss plus a penalty that is fixed during a phase, exactly or by local steps."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import Algorithm, GlobalModels
from lit_fed.core.context import Context
from lit_fed.core.local_solver import OptimizerState, Penalty
from lit_fed.core.solvers.newton import minimise, solvable_start
from lit_fed.core.types import Batch, ClientData, LocalWork, ModelState, Tree

__all__ = ["PenalisedRun", "ProximalSplitting", "exact_solution", "penalised_run", "penalised_step"]

Shared = TypeVar("Shared", bound=Any)
State = TypeVar("State", bound=Any)


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


@dataclass(frozen=True)
class ProximalSplitting(Algorithm[Shared, State, PenalisedRun], ABC, Generic[Shared, State]):
    """An algorithm whose clients minimise their loss plus a penalty until all agree on one model.

    Args:
        penalty_weight: weight of the penalty ½·‖x − z‖²; fastest near the curvature of the losses.
        local_solve: `exact` by Newton's method, for small convex networks, or `inexact` by the solver's local work.
    """

    # annotations of this module are not postponed, see `Algorithm`

    penalty_weight: float = 0.1
    local_solve: Literal["exact", "inexact"] = "inexact"

    @property
    def incompatible(self) -> dict[str, str]:  # type: ignore[override]
        """Personal parts; with exact solves also noise in steps, since there are no steps."""
        reasons = {
            "personal_parts": "has a consensus constraint on all leaves",
            "local_norm": "has duals or reflected models that would steer a client's own normalisation",
        }
        return reasons | {"noise_in_steps": "exact solves"} if self.local_solve == "exact" else reasons

    def shared_init(self, ctx: Context) -> Shared:
        """The initial common model; networks without an exact solve are refused."""
        return GlobalModels(solvable_start(ctx, self.local_solve))  # type: ignore[return-value]

    def local_work(self, ctx: Context) -> LocalWork:
        """The solver's local work; an exact solve takes no local steps."""
        return LocalWork() if self.local_solve == "exact" else ctx.solver.work

    def near(self, ctx: Context, state: Tree, start: ModelState, centre: Tree, linear: Tree = None) -> PenalisedRun:
        """The search for argmin f_i(x) + ⟨linear, x⟩ + ρ/2·‖x − centre‖².

        Args:
            ctx: the context.
            state: the client's state, with `models`.
            start: initial point, leaves [1, ...].
            centre: leaves [1, ...].
            linear: leaves [1, ...]; None: zero.
        """
        pull = tree.scale(centre, -self.penalty_weight)
        run = penalised_run(
            ctx, state, self.penalty_weight, pull if linear is None else tree.add(linear, pull), ctx.lr.new_ones(())
        )
        return run._replace(models=start)

    @abstractmethod
    def client_init(self, ctx: Context, shared: Shared, state: State, data: ClientData, losses: None) -> PenalisedRun:
        """The local problem, with `near`."""

    def client_step(self, ctx: Context, shared: Shared, work: PenalisedRun, batch: Batch) -> PenalisedRun:
        """A step of an inexact solve."""
        return penalised_step(ctx, work, batch)

    def solved(self, ctx: Context, work: PenalisedRun, data: ClientData) -> PenalisedRun:
        """The work after the exact solve, if one is wanted, with the mean loss of its steps."""
        work = exact_solution(ctx, work, data) if self.local_solve == "exact" else work
        return work._replace(loss=work.loss / work.steps.clamp(min=1))
