"""Minimise a client's loss plus a penalty that is fixed during a phase, exactly or by local steps."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import Algorithm, GlobalModels, LocalRun, Personal, local_run, local_step, ranged
from lit_fed.core.context import Context
from lit_fed.core.local_solver import Penalty
from lit_fed.core.solvers.newton import minimise, solvable_start
from lit_fed.core.types import Batch, ClientData, Leaves, LocalWork, ModelState, Tree

__all__ = ["LocalSolve", "PenalisedSolve", "PersonalSolve", "ProximalSplitting", "penalised_run"]

LocalSolve = Literal["exact", "inexact"]
"""By Newton's method, for small convex networks; or by the solver's local work."""

Shared = TypeVar("Shared", bound=Any)
State = TypeVar("State", bound=Any)


def penalised_run(ctx: Context, state: Tree, curvature: Tensor | float, linear: Leaves, share: Tensor) -> LocalRun:
    """Work on f_i(x) + curvature/2·‖x‖² + ⟨linear, x⟩ from `state.models`; `extra` holds this penalty and the state.

    Args:
        ctx: the context.
        state: the client's state.
        curvature: curvature of the penalty on share·f_i; it is divided by the share, so that f_i has weight 1.
        linear: linear part of that penalty, leaves [1, ...]; divided likewise.
        share: the weight of f_i, [].
    """
    return local_run(ctx, state.models, (Penalty(curvature / share, None, tree.scale(linear, 1 / share)), state))


class PenalisedSolve(Algorithm[Shared, State, LocalRun], ABC):
    """An algorithm whose clients minimise their loss plus the penalty of `penalised_run`, exactly or by local steps."""

    # annotations of this module are not postponed, see `Algorithm`
    local_solve: LocalSolve

    def local_work(self, ctx: Context) -> LocalWork:
        """The solver's local work; an exact solve takes no local steps."""
        return LocalWork() if self.local_solve == "exact" else ctx.solver.work

    @abstractmethod
    def client_init(self, ctx: Context, shared: Shared, state: State, data: ClientData, losses: None) -> LocalRun:
        """The local problem, by `penalised_run`."""

    def client_step(self, ctx: Context, shared: Shared, work: LocalRun, batch: Batch) -> LocalRun:
        """A step of an inexact solve."""
        return local_step(ctx, work, batch, penalty=work.extra[0])

    def solved(self, ctx: Context, work: LocalRun, data: ClientData) -> LocalRun:
        """The work after the exact solve, if one is wanted, with the loss of the minimiser."""
        if self.local_solve == "inexact":
            return work
        models = minimise(ctx.task, work.models, data, work.extra[0])
        return work._replace(models=models, loss=ctx.task.full_gradient(models, data)[0].mean())


class PersonalSolve(PenalisedSolve[Shared, State], Personal[Shared, State, LocalRun]):
    """A `PenalisedSolve` for a personal model of each client."""

    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork | None:
        """Only a client without a model searches for one before it is served."""
        return None if seen else self.local_work(ctx)._replace(straggler_fraction=0.0)


@dataclass(frozen=True)
class ProximalSplitting(PenalisedSolve[Shared, State]):
    """An algorithm whose clients minimise their loss plus a penalty until all agree on one model.

    Args:
        penalty_weight: weight of the penalty ½·‖x − z‖²; fastest near the curvature of the losses.
        local_solve: `exact` by Newton's method, for small convex networks, or `inexact` by the solver's local work.
    """

    penalty_weight: float = ranged(0.1, "> 0")
    local_solve: LocalSolve = "inexact"

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

    def near(self, ctx: Context, state: Tree, start: ModelState, centre: Tree, linear: Tree = None) -> LocalRun:
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
