"""PFLDyn: FedDyn on a meta-objective, the loss after a few gradient steps on the client's own samples.

Acar, Zhao, Zhu, Matas, Mattina, Whatmough, Saligrama. "Debiasing Model Updates for Improving Personalized Federated
Training". ICML 2021. https://proceedings.mlr.press/v139/acar21a.html, with MAML as the meta-function.

Symbols:
    θ^{t-1}   -> shared.models   the server's meta-model, leaves [1, ...]
    h         -> shared.h        mean over all clients of their linear terms, leaves [1, ...]
    θ_k       -> work.models     the meta-model of client k, leaves [1, ...]
    T_k(θ)    -> _adapted        θ after `inner_steps` gradient steps of rate β on a batch D; F_k(θ) = L(T_k(θ); D′)
    ∇F_k(θ_k) -> state.gradient  linear term of client k, leaves [1, ...]; 0 before its first round
    D, D′     -> batch           leaves [2, B, ...], drawn independently for each local step
    α, β      -> alpha, inner_lr
Deviations:
    The updates are those of the authors' program. It has weight decay in the inner steps too, and clips gradients at
    norm 10 (`solver.clip_norm`). Inner steps are plain here; the meta-gradient goes through the local solver.
    Of the paper's other forms, prototypes need samples of every class in each batch, and PFLScaf is SCAFFOLD with the
    same meta-objective; neither is offered.
    The authors' program tunes the mean of the clients of the last round, θ^t + h/α, which is `serve_mean`.
    Running statistics see both batches.
    Every client, seen or unseen, is served by a copy after `adapt_steps` steps of rate β on its whole training set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import LocalRun, Served
from lit_fed.core.context import Context
from lit_fed.core.solvers.dynamic_regularizer import DynamicModels, DynamicRegularizer
from lit_fed.core.types import Batch, ClientData, ClientResult, LocalWork, ModelState, Phase, Tree
from lit_fed.errors import check_settings

__all__ = ["PFLDyn"]


@dataclass(frozen=True)
class PFLDyn(DynamicRegularizer, Served[DynamicModels, Any, LocalRun]):
    """A meta-model for tuning, trained without the bias of local steps.

    Args:
        variant: `exact` meta-gradients by Hessian-vector products (the network must be twice differentiable), or
            `first_order`, without their second-order part.
        inner_lr: β, the rate of the inner steps and of adaptation.
        inner_steps: gradient steps of the meta-function, all on one batch.
        adapt_steps: gradient steps on its training samples before a client is served; null takes `inner_steps`.
    """

    serving_settings = ("serve_mean", "adapt_steps")

    variant: Literal["exact", "first_order"] = "exact"
    inner_lr: float = 0.01
    inner_steps: int = 5
    adapt_steps: int | None = None

    incompatible: ClassVar[dict[str, str]] = DynamicRegularizer.incompatible | {"noise_in_steps": "the inner steps"}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self, inner_lr=">= 0", inner_steps=">= 1", adapt_steps=">= 0")

    # shared_init, state_init: θ^0, h = 0 and ∇F_k(θ_k^0) = 0

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase]:
        """One phase, whose steps take the batches D and D′."""
        return (Phase("train", client_ids, ctx.solver.work._replace(batches_per_step=2)),)

    def client_init(self, ctx: Context, shared: DynamicModels, state: Any, data: ClientData, losses: None) -> LocalRun:
        """θ_k starts at θ^{t-1}; for serving, at the model to be tuned."""
        start = shared._replace(models=self.serving_model(shared)) if ctx.phase == "adapt" else shared
        return super().client_init(ctx, start, state, data, losses)

    def client_step(self, ctx: Context, shared: DynamicModels, work: LocalRun, batch: Batch) -> LocalRun:
        """A step on F_k(θ) − ⟨∇F_k(θ_k^{t-1}), θ⟩ + α/2·‖θ − θ^{t-1}‖²; an inner step while adapting."""
        if ctx.phase == "adapt":
            models, _, loss = self._adapted(ctx, work.models, batch, 1)
            return work._replace(models=models, loss=work.loss + loss, steps=work.steps + 1)
        loss, gradient, buffers = self._meta_gradient(ctx, work.models, batch)
        whole = tree.add(gradient, self.penalty(shared, work).gradient(work.models.parameters))
        parameters, optimizer = ctx.solver.update(work.models.parameters, whole, work.optimizer, ctx.lr)
        work = work._replace(models=ModelState(parameters, buffers), optimizer=optimizer)
        return work._replace(loss=work.loss + loss, steps=work.steps + 1)

    def _adapted(
        self, ctx: Context, models: ModelState, batch: Batch, steps: int
    ) -> tuple[ModelState, list[ModelState], Tensor]:
        """T(θ), the points ahead of each of its steps, and the loss at the first of them, []."""
        points, losses = [], []
        for _ in range(steps):
            loss, gradient, buffers = ctx.task.value_and_grad(models, batch)
            points.append(models)
            losses.append(loss.mean())
            models = ModelState(tree.sub(models.parameters, tree.scale(gradient, self.inner_lr)), buffers)
        return models, points, losses[0]

    def _meta_gradient(
        self, ctx: Context, models: ModelState, batch: Batch
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """L(T(θ); D′), its gradient Π_j (I − β∇²L(θ_j; D))·∇L(T(θ); D′), and the buffers after all passes."""
        support, query = (tree.index(batch, one) for one in range(2))
        tuned, points, _ = self._adapted(ctx, models, support, self.inner_steps)
        loss, gradient, buffers = ctx.task.value_and_grad(tuned, query)
        if self.variant == "exact":
            for point in reversed(points):
                curved = ctx.task.hessian_vector(point, support, gradient)
                gradient = tree.sub(gradient, tree.scale(curved, self.inner_lr))
        return loss.mean(), gradient, buffers

    # server_step: h ← h − α·(1/m)·Σ_{k ∈ P_t} (θ_k − θ^{t-1}); θ^t = mean of θ_k − h/α

    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork:
        """Every client takes the steps of the meta-function before it is served, seen or unseen."""
        return LocalWork(steps=self.inner_steps if self.adapt_steps is None else self.adapt_steps, batch_size=0)

    def client_final(self, ctx: Context, shared: DynamicModels, work: LocalRun, data: ClientData) -> ClientResult:
        """Send θ_k and keep its linear term; the tuned copy is the state of an adapted client."""
        result = super().client_final(ctx, shared, work, data)
        return result._replace(state=work.models) if ctx.phase == "adapt" else result

    def served(self, ctx: Context, shared: DynamicModels, state: Tree) -> ModelState:
        """T_k(θ)."""
        return state  # type: ignore[no-any-return]
