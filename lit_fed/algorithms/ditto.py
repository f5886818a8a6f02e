"""Ditto: every client keeps a personal model close to the global one that it helps to train.

Li, Hu, Beirami, Smith. "Ditto: Fair and Robust Federated Learning Through Personalization". ICML 2021.
https://arxiv.org/abs/2012.04221, Algorithm 1 with FedAvg as the global solver.

Symbols:
    w    -> shared.models   the global model, leaves [1, ...]
    w_k  -> work.models     the client's copy of it, leaves [1, ...]; Δ_k = w_k − w
    v_k  -> state           the personal model, near argmin_v f_k(v) + λ/2·‖v − w‖², leaves [1, ...]
    λ    -> prox_weight
    η    -> solver.lr for w_k, personal_lr for v_k
    s    -> local steps times personal_steps
Deviations:
    As in the authors' code, both models step on the same batches in turn, with the local solver's momentum and weight
    decay and separate states; the paper's steps are plain. Their code averages clients uniformly and samples them by
    size; here the average is FedAvg's (`model.weighting` offers the other).
    The paper's choice of λ by validation on each client and its robust aggregators are not offered.
    An unseen client has no model in the paper. Ours: v_k starts as w and trains as in a round.
"""

from __future__ import annotations

from dataclasses import dataclass

from lit_fed.core.algorithm import GlobalModels, LocalRun, Personal, local_result, local_run, ranged, tuned
from lit_fed.core.context import Context
from lit_fed.core.local_solver import Penalty
from lit_fed.core.types import Batch, ClientData, ClientResult, ModelState

__all__ = ["Ditto"]


@dataclass(frozen=True)
class Ditto(Personal[GlobalModels, ModelState, LocalRun]):
    """FedAvg with an additional personal model per client, which is pulled towards the global one.

    Args:
        prox_weight: λ, the pull of a personal model towards the received global one; 0 is local training.
        personal_lr: learning rate of the personal models; null takes that of the solver, with its schedule.
        personal_steps: steps of the personal model per local step, all on its batch.
    """

    prox_weight: float = tuned(1.0, 0.05, 0.1, 0.2, 1.0, 2.0, within=">= 0")
    personal_lr: float | None = ranged(None, ">= 0")
    personal_steps: int = ranged(1, ">= 1")

    in_every_combination = True

    def state_init(self, ctx: Context, shared: GlobalModels, data: ClientData) -> ModelState:
        """v_k starts as the current global model."""
        return shared.models

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: ModelState, data: ClientData, losses: None
    ) -> LocalRun:
        """w_k starts as w; v_k continues."""
        run = local_run(ctx, shared.models)
        optimizers = (run.optimizer, ctx.solver.init(state))
        return run._replace(optimizer=optimizers, extra=state)

    def client_step(self, ctx: Context, shared: GlobalModels, work: LocalRun, batch: Batch) -> LocalRun:
        """A step of w_k on f_k and steps of v_k on its own objective; while adapting, steps of v_k only."""
        work = self._personal_steps(ctx, shared, work, batch)
        if ctx.phase == "adapt":
            return work
        optimizer, personal = work.optimizer
        models, optimizer, _ = ctx.solver.step(ctx.task, work.models, optimizer, batch, ctx.lr)
        return work._replace(models=models, optimizer=(optimizer, personal))

    def _personal_steps(self, ctx: Context, shared: GlobalModels, work: LocalRun, batch: Batch) -> LocalRun:
        """v_k <- v_k − η(∇f_k(v_k) + λ(v_k − w)), with the received w."""
        lr, penalty = ctx.own_rate(self.personal_lr), Penalty(self.prox_weight, shared.models.parameters)
        personal, (untouched, optimizer), total, own = work.extra, work.optimizer, work.loss, ctx.own
        for _ in range(self.personal_steps):
            personal, optimizer, loss = own.solver.step(own.task, personal, optimizer, batch, lr, penalty=penalty)
            total = total + loss.mean()
        steps = work.steps + self.personal_steps
        return work._replace(extra=personal, optimizer=(untouched, optimizer), loss=total, steps=steps)

    def client_final(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> ClientResult:
        """Send w_k = w + Δ_k; keep v_k."""
        return local_result(ctx, work, data, state=work.extra)

    # server_step: w <- w + Σ_k n_k/n Δ_k is the default

    def served(self, ctx: Context, shared: GlobalModels, state: ModelState) -> ModelState:
        """v_k."""
        return state
