"""APFL: every client mixes the global model with a personal one, in a proportion that it may learn.

Deng, Kamani, Mahdavi. "Adaptive Personalized Federated Learning". 2020. https://arxiv.org/abs/2003.13461, Algorithm 1.

Symbols:
    w   -> shared.models    the global model, leaves [1, ...]
    w_i -> work.models      the client's copy of it during a round, leaves [1, ...]
    v_i -> state.personal   the client's own model, leaves [1, ...]
    v̄_i -> mixed            α_i v_i + (1 − α_i)w_i, the model that is personalised, leaves [1, ...]
    α_i -> state.alpha      share of the personal model, [], in [0, 1]
    η   -> solver.lr
Deviations:
    The gradient with respect to v_i has the factor α_i, which some programs omit.
    The paper learns α_i in every step; the official code in the first step of a round (`alpha_update`), with a penalty
    on α_i², and it mixes the outputs of both models instead of parameters; neither of these two is offered.
    Clients are served by v_i and the current global w, not by the w_i that v_i was trained with.
    Ours: an unseen client is served by w.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import (
    GlobalModels,
    LocalRun,
    Participation,
    Personal,
    local_result,
    local_run,
    tuned,
)
from lit_fed.core.context import Context
from lit_fed.core.types import Batch, ClientData, ClientResult, ModelState, Tree

__all__ = ["APFL", "APFLState"]


class APFLState(NamedTuple):
    """A client's state."""

    personal: ModelState  # v_i, leaves [1, ...]
    alpha: Tensor  # α_i, []


@dataclass(frozen=True)
class APFL(Personal[GlobalModels, APFLState, LocalRun]):
    """FedAvg with an additional personal model, which is trained in a mixture with the global one.

    Args:
        alpha: initial α_i; 0 is FedAvg, 1 is FedAvg beside purely local models.
        alpha_update: when α_i takes a step: never (`fixed`), in the first local step of a round, or in every one.
    """

    alpha: float = tuned(0.5, 0.25, 0.5, 0.75, within="[0, 1]")
    alpha_update: Literal["fixed", "first_step", "every_step"] = "first_step"

    in_every_combination = True
    participation = Participation(weighting="uniform")

    def state_init(self, ctx: Context, shared: GlobalModels, data: ClientData) -> APFLState:
        """v_i starts as w, so v̄_i is w for any α_i."""
        return APFLState(shared.models, torch.tensor(self.alpha, dtype=ctx.task.dtype))

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: APFLState, data: ClientData, losses: None
    ) -> LocalRun:
        """w_i starts as w; v_i and α_i continue."""
        optimizer = ctx.solver.init(shared.models), ctx.solver.init(state.personal)
        return local_run(ctx, shared.models, state)._replace(optimizer=optimizer)

    def client_step(self, ctx: Context, shared: GlobalModels, work: LocalRun, batch: Batch) -> LocalRun:
        """Steps of w_i, v_i and α_i on one batch, all from the values before the step."""
        own, alpha = work.extra
        mixed = tree.lerp(work.models.parameters, own.parameters, alpha)
        loss, gradient, buffers = ctx.own.task.value_and_grad(own._replace(parameters=mixed), batch)
        models, of_global, _ = ctx.solver.step(ctx.task, work.models, work.optimizer[0], batch, ctx.lr)
        personal, of_own = ctx.own.solver.update(own.parameters, tree.scale(gradient, alpha), work.optimizer[1], ctx.lr)
        new = APFLState(ModelState(personal, buffers), self._new_alpha(work, gradient, ctx.lr))
        return LocalRun(models, (of_global, of_own), work.loss + loss.mean(), work.steps + 1, new)

    def _new_alpha(self, work: LocalRun, gradient: Tree, lr: Tensor) -> Tensor:
        """α_i ← α_i − η⟨v_i − w_i, ∇f_i(v̄_i)⟩, kept in [0, 1]."""
        own, alpha = work.extra
        if self.alpha_update == "fixed":
            return alpha  # type: ignore[no-any-return]
        slope = tree.dot(tree.sub(own.parameters, work.models.parameters), gradient)
        new = (alpha - lr * slope).clamp(0, 1).to(alpha.dtype)
        return new if self.alpha_update == "every_step" else torch.where(work.steps == 0, new, alpha)

    def client_final(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> ClientResult:
        """Send w_i; keep v_i and α_i. The logged loss is that of v̄_i; the mean α_i is logged too."""
        return local_result(ctx, work, data, state=work.extra, alpha=work.extra.alpha)

    # server_step: w ← mean of w_i over the clients that took part is the default

    def adapt_work(self, ctx: Context, seen: bool) -> None:
        """An unseen client is served by w."""

    def served(self, ctx: Context, shared: GlobalModels, state: APFLState) -> ModelState:
        """α_i v_i + (1 − α_i)w."""
        return tree.lerp(shared.models, state.personal, state.alpha)  # type: ignore[no-any-return]
