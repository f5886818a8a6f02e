"""ProxAvg: personal models that are trained towards their average (alternating proximal steps).

The objective is that of Hanzely, Richtárik. "Federated Learning of a Mixture of Global and Local Models". 2020.
https://arxiv.org/abs/2002.05516, Equation 2; the method is what the official FedEM code
(https://github.com/omarfoq/FedEM) runs under the name pFedMe. It is not the pFedMe of Dinh et al.

Symbols:
    x_i -> state.models   the personal model of client i, leaves [1, ...]
    z   -> shared.models  the average of the personal models, leaves [1, ...]
    λ   -> prox_weight    min Σ_i p_i·(f_i(x_i) + λ/2·‖x_i − z‖²) with z = Σ_i p_i x_i; μ in the FedEM code
    p_i -> message.weight samples of client i; the objective of the paper has uniform weights (`model.weighting`)
    One round: x_i <- prox_{f_i/λ}(z), approximately from the old x_i; then z <- Σ_i p_i x_i.
Deviations:
    The FedEM code runs one local epoch of SGD with momentum 0 from the client's own model, which the average never
    replaces; momentum is the solver's here.
    Absent clients keep x_i. With `model.aggregation: stale_fill` x_i still counts in z, as in the FedEM code; by
    default z is the average over the clients of the round.
    An unseen client has no model there. Ours: it trains as in a round, from z towards z.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import (
    GlobalModels,
    LocalRun,
    OwnModel,
    Personal,
    local_result,
    local_run,
    local_step,
    tuned,
)
from lit_fed.core.context import Context
from lit_fed.core.local_solver import Penalty
from lit_fed.core.solvers.newton import minimise, solvable_start
from lit_fed.core.types import Batch, ClientData, ClientResult, LocalWork, Phase
from lit_fed.errors import check_settings

__all__ = ["ProxAvg"]


@dataclass(frozen=True)
class ProxAvg(Personal[GlobalModels, OwnModel, LocalRun]):
    """Every client trains its own model with a proximal term towards the average of all personal models.

    Args:
        prox_weight: λ, the pull towards the average; 0 gives Local.
        local_solve: `sgd`, the solver's local steps, or `exact`, the minimiser of the local objective (small convex
            models).
    """

    prox_weight: float = tuned(1.0, 0.01, 0.1, 1.0, 10.0)
    local_solve: Literal["sgd", "exact"] = "sgd"

    def __post_init__(self) -> None:
        least = "> 0" if self.local_solve == "exact" else ">= 0"
        check_settings(self, prox_weight=least)

    @property
    def incompatible(self) -> dict[str, str]:  # type: ignore[override]
        """Exact solves have no steps that could carry noise."""
        return {"noise_in_steps": "exact solves"} if self.local_solve == "exact" else {}

    def shared_init(self, ctx: Context) -> GlobalModels:
        """The initial z; networks without an exact solve are refused."""
        return GlobalModels(solvable_start(ctx, self.local_solve))

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase]:
        """One phase; an exact solve takes no local steps."""
        return (Phase("train", client_ids, LocalWork() if self.local_solve == "exact" else ctx.solver.work),)

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: OwnModel, data: ClientData, losses: None
    ) -> LocalRun:
        """Training continues from the client's own model, not from the average."""
        return local_run(ctx, state.models, state.models)

    def client_step(self, ctx: Context, shared: GlobalModels, work: LocalRun, batch: Batch) -> LocalRun:
        """A step on f_i(x_i) + λ/2·‖x_i − z‖², z as received."""
        pull = Penalty(self.prox_weight, shared.models.parameters)
        return local_step(ctx, work, batch, penalty=pull)

    def client_final(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> ClientResult:
        """Send x_i; keep and."""
        if self.local_solve == "exact":
            work = self._solved(ctx, shared, work, data)
        sent = work.models
        if ctx.aggregation == "stale_fill":  # z moves by p_i times the change of x_i: absent clients count
            sent = tree.add(shared.models, tree.sub(work.models, work.extra))
        return local_result(ctx, work, data, sent, OwnModel(work.models))

    def _solved(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> LocalRun:
        """x_i = prox_{f_i/λ}(z)."""
        loss, _ = ctx.task.full_gradient(work.models, data)
        models = minimise(ctx.task, work.models, data, Penalty(self.prox_weight, shared.models.parameters))
        return work._replace(models=models, loss=loss.mean(), steps=torch.ones_like(work.steps))

    # server_step: z <- Σ_i p_i x_i is the default

    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork | None:
        """Only a client without a model trains before it is served."""
        if seen:
            return None
        return LocalWork() if self.local_solve == "exact" else ctx.solver.whole_work
