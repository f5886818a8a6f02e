"""Per-FedAvg: one global model, personalised by one local gradient step.

Fallah, Mokhtari, Ozdaglar. "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning
Approach". NeurIPS 2020. https://arxiv.org/abs/2002.07948, Algorithm 1 and its approximations FO and HF.

Symbols:
    w         -> shared.models  the global model, leaves [1, ...]; client i minimises F_i(w) = f_i(w − α∇f_i(w))
    w_i       -> work.models    the client's copy of it, leaves [1, ...]
    w̃_i       -> state.models   the copy after the inner step, leaves [1, ...]; exists only while a client is served
    D, D′, D″ -> batch          leaves [3, B, ...], drawn independently for each local step; FO has no D″
    α         -> inner_lr
    β         -> solver.lr
    δ         -> difference
    τ         -> solver.local_steps
Deviations:
    The meta-gradient goes through the local solver like any gradient, so that momentum, weight decay and clipping act
    on the step of rate β; the paper's is plain. The inner step is plain always.
    The paper adapts with an unspecified amount of the client's data. Ours: `adapt_steps` steps of rate α, each on
    the whole local training set. The pFedMe authors' code adapts on a batch of the test set; that leak is not offered.
    The paper weights clients equally, which is the default here.
    Running statistics, absent in the paper, see both batches: D at w_i and D′ at w̃_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import Algorithm, GlobalModels, LocalRun, OwnModel, Participation, local_result, ranged
from lit_fed.core.context import Context
from lit_fed.core.networks.layers import drops_units
from lit_fed.core.networks.products import full_precision
from lit_fed.core.types import Batch, ClientData, ClientResult, Leaves, LocalWork, ModelState, Phase
from lit_fed.errors import ConfigError

__all__ = ["PerFedAvg"]


@dataclass(frozen=True)
class PerFedAvg(Algorithm[GlobalModels, Any, LocalRun]):
    """A global model for tuning: it minimises the loss after a gradient step on the client's data.

    Args:
        variant: computation of the meta-gradient (I − α∇²f)∇f(w̃): `exact` by a Hessian-vector product (the network
            must be twice differentiable), `hessian_free` by a difference of two gradients, `first_order` without
            its second-order part.
        inner_lr: α, the rate of the inner step and of adaptation.
        difference: δ of `hessian_free`: half the distance of the two gradients in units of ∇f(w̃). The error grows with
            its square, and below 1e-4 rounding of float32 shows.
        adapt_steps: gradient steps on its training samples before a client is served.
    """

    in_every_combination = True
    serving_settings = ("adapt_steps",)

    variant: Literal["exact", "first_order", "hessian_free"] = "exact"
    inner_lr: float = ranged(0.01, ">= 0")
    difference: float = ranged(0.001, "> 0")
    adapt_steps: int = ranged(1, ">= 0")

    participation = Participation(weighting="uniform")
    incompatible = {"noise_in_steps": "the inner steps"}

    def shared_init(self, ctx: Context) -> GlobalModels:
        """w; `hessian_free` needs two gradients of one function."""
        if self.variant == "hessian_free" and drops_units(ctx.task.network):
            raise ConfigError(
                "--model.algorithm.variant is hessian_free, which takes the difference of two gradients, and dropout "
                f"in {type(ctx.task.network).__name__} drops other units in each; choose exact or first_order, or a "
                "--model.network without dropout"
            )
        return super().shared_init(ctx)

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase]:
        """One phase, whose steps take the batches D, D′ and, for the curvature, D″."""
        batches = 2 if self.variant == "first_order" else 3
        return (Phase("train", client_ids, ctx.solver.work._replace(batches_per_step=batches)),)

    def client_step(self, ctx: Context, shared: GlobalModels, work: LocalRun, batch: Batch) -> LocalRun:
        """w_i <- w_i − β∇F_i(w_i); an inner step while adapting."""
        models, optimizer = work.models, work.optimizer
        if ctx.phase == "adapt":
            models, loss = self._inner_step(ctx, models, batch)
        else:
            loss, gradient, buffers = self._meta_gradient(ctx, models, batch)
            parameters, optimizer = ctx.solver.update(models.parameters, gradient, optimizer, ctx.lr)
            models = ModelState(parameters, buffers)
        return LocalRun(models, optimizer, work.loss + loss.mean(), work.steps + 1)

    def _inner_step(self, ctx: Context, models: ModelState, batch: Batch) -> tuple[ModelState, Tensor]:
        """w̃ = w − α∇f(w; D), and the loss before it."""
        loss, gradient, buffers = ctx.task.value_and_grad(models, batch)
        moved = tree.sub(models.parameters, tree.scale(gradient, ctx.own_rate(self.inner_lr)))
        return ModelState(moved, buffers), loss

    def _meta_gradient(self, ctx: Context, models: ModelState, batch: Batch) -> tuple[Tensor, Leaves, Leaves]:
        """f(w̃; D′), (I − α∇²f(w; D″))∇f(w̃; D′) and the buffers after both passes."""
        tuned, _ = self._inner_step(ctx, models, tree.index(batch, 0))
        loss, gradient, buffers = ctx.task.value_and_grad(tuned, tree.index(batch, 1))
        if self.variant != "first_order":
            curvature = self._curvature(ctx, models, gradient, tree.index(batch, 2))
            gradient = tree.sub(gradient, tree.scale(curvature, ctx.own_rate(self.inner_lr)))
        return loss, gradient, buffers

    def _curvature(self, ctx: Context, models: ModelState, vector: Leaves, batch: Batch) -> Leaves:
        """∇²f(w; D″) times the vector, or [∇f(w + δ·vector) − ∇f(w − δ·vector)] / 2δ (HF).

        The two gradients of HF differ by less than bfloat16 resolves, so they are computed in the models' type.
        """
        if self.variant == "exact":
            return ctx.task.hessian_vector(models, batch, vector)
        offset = tree.scale(vector, self.difference)
        with full_precision(ctx.lr):
            ahead, behind = (
                ctx.task.value_and_grad(models._replace(parameters=move(models.parameters, offset)), batch)[1]
                for move in (tree.add, tree.sub)
            )
        return tree.scale(tree.sub(ahead, behind), 0.5 / self.difference)  # type: ignore[no-any-return]

    def client_final(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> ClientResult:
        """Send w_i; w̃_i is the state of a client that is served."""
        return local_result(ctx, work, data, state=OwnModel(work.models) if ctx.phase == "adapt" else ())

    # server_step: w <- the mean of the w_i is the default

    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork:
        """Every client takes the inner step before it is served, seen or unseen."""
        return LocalWork(steps=self.adapt_steps, batch_size=0)

    def shared_outputs(self, ctx: Context, shared: GlobalModels, x: Tensor) -> None:
        """None: w̃_i predicts."""
