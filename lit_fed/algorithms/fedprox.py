"""FedProx: FedAvg whose clients stay near the received model, and may do unequal amounts of work.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. "Federated Optimization in Heterogeneous Networks". MLSys 2020.
https://arxiv.org/abs/1812.06127, Algorithm 2.

Symbols:
    w^t  -> shared.models       the global model, leaves [1, ...]; the anchor of the proximal term
    w_k  -> work.models         the model of client k, leaves [1, ...]
    h_k  -> loss + Penalty      F_k(w) + μ/2·‖w − w^t‖²
    μ    -> prox_weight
    γ    -> inexactness         w_k is a γ-inexact solution if ‖∇h_k(w_k)‖ <= γ·‖∇h_k(w^t)‖ (Definition 1)
Deviations:
    Algorithm 2 samples clients in proportion to their size and averages them uniformly: `data.client_sampling: size`
    with `model.weighting: uniform`. The defaults are those of the authors' code, uniform sampling and weights by
    samples. Stragglers (Section 5.2) are `solver.straggler_fraction`; their partial work is averaged.
    The proximal term is part of the gradient that momentum and Adam see; the official FedEM code adds it to the
    momentum itself. The solver's weight decay is no part of h_k.
    γ is one number for all clients and rounds (Definition 2 lets it vary). Ours: a client stops at the first step at
    which its model is γ-inexact.
    Ours: `local_solve: exact` takes the minimiser of h_k (γ = 0) by Newton's method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import Algorithm, GlobalModels, LocalRun, local_run, local_step, tuned
from lit_fed.core.context import Context
from lit_fed.core.local_solver import Penalty
from lit_fed.core.networks.layers import check_sample_losses
from lit_fed.core.solvers.newton import minimise, solvable_start
from lit_fed.core.types import Batch, ClientData, ClientResult, LocalWork, Phase
from lit_fed.errors import ConfigError, check_settings

__all__ = ["FedProx"]


@dataclass(frozen=True)
class FedProx(Algorithm[GlobalModels, tuple[()], LocalRun]):
    """FedAvg with a proximal term that keeps local models near the global one.

    Args:
        prox_weight: μ; 0 is FedAvg.
        inexactness: γ, at which a client stops; null: it takes all its steps. The rule costs a pass over all local
            samples before each step, and excludes BatchNorm.
        local_solve: `sgd` takes the solver's local steps; `exact` finds the minimiser of h_k, for small networks
            without BatchNorm and dropout.
    """

    prox_weight: float = tuned(0.1, 0.001, 0.01, 0.1, 0.5, 1.0)
    inexactness: float | None = None
    local_solve: Literal["sgd", "exact"] = "sgd"

    in_every_combination = True

    def __post_init__(self) -> None:
        exact = self.local_solve == "exact"
        check_settings(self, prox_weight=">= 0", inexactness="[0, 1]")
        if exact and self.prox_weight == 0:
            raise ConfigError("--model.algorithm.prox_weight is 0; give a number > 0, or local_solve sgd")
        if exact and self.inexactness is not None:
            raise ConfigError(f"--model.algorithm.inexactness is {self.inexactness}; give null, or local_solve sgd")

    @property
    def incompatible(self) -> dict[str, str]:  # type: ignore[override]
        """An exact solve and the stop rule read samples outside the local steps."""
        if self.local_solve == "exact":
            return {"noise_in_steps": "exact solves"}
        return {} if self.inexactness is None else {"noise_in_steps": "the stop rule"}

    def shared_init(self, ctx: Context) -> GlobalModels:
        """w^0; networks that do not suit the solve or the stop rule are refused."""
        if self.inexactness is not None:
            check_sample_losses(ctx.task.network, "--model.algorithm.inexactness", "null")
        return GlobalModels(solvable_start(ctx, self.local_solve))

    def penalty(self, shared: GlobalModels) -> Penalty:
        """The proximal term μ/2·‖w − w^t‖²."""
        return Penalty(self.prox_weight, shared.models.parameters)

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase]:
        """One phase; an exact solve takes no steps."""
        return (Phase("train", client_ids, ctx.solver.work if self.local_solve == "sgd" else LocalWork()),)

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: tuple[()], data: ClientData, losses: None
    ) -> LocalRun:
        """The model w_k starts at w^t, where the proximal term has no slope: ∇h_k(w^t) = ∇F_k(w^t)."""
        run = local_run(ctx, shared.models)
        if self.inexactness is None:
            return run
        _, gradient = ctx.task.full_gradient(shared.models, data)
        samples = data.x, data.y, data.mask, data.client_id
        tolerance = self.inexactness * tree.norm(gradient)  # γ‖∇h_k(w^t)‖, [] float64
        return run._replace(extra=(samples, tolerance))

    def client_step(self, ctx: Context, shared: GlobalModels, work: LocalRun, batch: Batch) -> LocalRun:
        """A step on h_k (Alg. 2), unless w_k is γ-inexact already."""
        after = local_step(ctx, work, batch, penalty=self.penalty(shared))
        return after if self.inexactness is None else self.unless_solved(ctx, shared, work, after)

    def unless_solved(self, ctx: Context, shared: GlobalModels, before: LocalRun, after: LocalRun) -> LocalRun:
        """The work after a step, or before it if ‖∇h_k(w_k)‖ <= γ‖∇h_k(w^t)‖ (Definition 1)."""
        (x, y, mask, client_id), tolerance = before.extra
        _, gradient = ctx.task.full_gradient(before.models, ClientData(x, y, None, mask, client_id))
        slope = tree.norm(tree.add(gradient, self.penalty(shared).gradient(before.models.parameters)))
        moves = slope > tolerance
        kept = (one._replace(extra=()) for one in (after, before))
        run: LocalRun = tree.map_leaves(lambda new, old: torch.where(moves, new, old), *kept)
        return run._replace(extra=before.extra)

    def client_final(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> ClientResult:
        """Send the model w_k (Alg. 2); for an exact solve, the loss is that of w^t."""
        if self.local_solve == "exact":
            loss, _ = ctx.task.full_gradient(shared.models, data)
            models = minimise(ctx.task, shared.models, data, self.penalty(shared))
            work = work._replace(models=models, loss=loss.mean())
        return super().client_final(ctx, shared, work, data)

    # server_step: w^{t+1} <- the average of w_k (Alg. 2) is the default
