"""FML: federated mutual learning of personal models with a shared meme model.

Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu, Wu. "Federated Mutual Learning". 2020.
https://arxiv.org/abs/2006.16765, Algorithm 1.

Symbols:
    θ   -> shared.models    the meme model, leaves [1, ...]
    θ_i -> work.models      client i's copy of it during a round, leaves [1, ...]
    φ_i -> state.personal   the personal model of client i, leaves [1, ...]; never leaves the client
    α   -> alpha            L_φ = α·CE(φ) + (1 − α)·KL(p_θ ‖ p_φ)
    β   -> beta             L_θ = β·CE(θ) + (1 − β)·KL(p_φ ‖ p_θ)
    n_i -> message.weight   samples of client i
Deviations:
    Both models have the same architecture and, ours, the same initial weights; the paper allows each client its own.
    Both step simultaneously, with detached predictions from before the step. Ours: these predictions are made in
    evaluation mode, with running statistics and without dropout.
    An unseen client has no personal model in the paper. Ours: a fresh one, with the initial weights, trains as
    in a round on L_φ with the meme model held fixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lit_fed.core.algorithm import GlobalModels, LocalRun, Personal, local_result, local_run, ranged
from lit_fed.core.context import Context
from lit_fed.core.types import Batch, ClientData, ClientResult, ModelState

__all__ = ["FML", "MutualClient"]


class MutualClient(NamedTuple):
    """A client's state."""

    personal: ModelState  # φ_i, leaves [1, ...]


@dataclass(frozen=True)
class FML(Personal[GlobalModels, MutualClient, LocalRun]):
    """Each client trains a personal and a meme model that teach each other; the meme models are averaged.

    Args:
        alpha: share of the labels in the loss of the personal model, in [0, 1]; the rest is the meme's prediction.
        beta: share of the labels in the loss of the meme model, in [0, 1]; the rest is the personal prediction.
    """

    alpha: float = ranged(0.5, "[0, 1]")
    beta: float = ranged(0.5, "[0, 1]")

    incompatible = {"noise_in_steps": "the personal model, which teaches"}

    def state_init(self, ctx: Context, shared: GlobalModels, data: ClientData) -> MutualClient:
        """φ_i starts from the initial weights, also if the meme model has moved away from them."""
        return MutualClient(ctx.task.init(1, ctx.seed) if ctx.phase == "adapt" else shared.models)

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: MutualClient, data: ClientData, losses: None
    ) -> LocalRun:
        """The personal model and a copy of the meme model."""
        optimizer = (ctx.solver.init(shared.models), ctx.solver.init(state.personal))
        return local_run(ctx, shared.models, state.personal)._replace(optimizer=optimizer)

    def client_step(self, ctx: Context, shared: GlobalModels, work: LocalRun, batch: Batch) -> LocalRun:
        """One step of both models, each distilled from the other's predictions ahead of the step."""
        task, solver, (of_meme, of_personal) = ctx.task, ctx.solver, work.optimizer
        own, other = task.outputs(work.extra, batch.x), task.outputs(work.models, batch.x)
        mask = batch.mask.to(own.dtype)
        loss = (task.losses(own, batch.y)[:, 0] * mask).sum() / mask.sum().clamp(min=1)
        taught = batch._replace(y=task.soft_labels(other[:, 0], batch.y, self.alpha))
        personal, of_personal, _ = solver.step(task, work.extra, of_personal, taught, ctx.lr)
        work = work._replace(extra=personal, loss=work.loss + loss, steps=work.steps + 1)
        if ctx.phase != "adapt":
            taught = batch._replace(y=task.soft_labels(own[:, 0], batch.y, self.beta))
            meme, of_meme, _ = solver.step(task, work.models, of_meme, taught, ctx.lr)
            work = work._replace(models=meme)
        return work._replace(optimizer=(of_meme, of_personal))

    def client_final(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> ClientResult:
        """Send the meme model to be averaged as in FedAvg; keep the personal model."""
        return local_result(ctx, work, data, state=MutualClient(work.extra))

    def served(self, ctx: Context, shared: GlobalModels, state: MutualClient) -> ModelState:
        return state.personal
