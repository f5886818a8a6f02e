"""FedAS: a shared body that each client first aligns with its own features; averages use Fisher information.

Yang, Huang, Ye. "FedAS: Bridging Inconsistency in Personalized Federated Learning". CVPR 2024.
https://openaccess.thecvf.com/content/CVPR2024/html/Yang_FedAS_Bridging_Inconsistency_in_Personalized_Federated_Learning_CVPR_2024_paper.html

Symbols:
    θ        -> shared.models   the body, leaves [1, ...]
    θ_i, φ_i -> state.models    body and head of client i after its last local steps, leaves [1, ...]
    p_i^c    -> work.extra      means of the features of its samples of class c under θ_i, [C, D]
    stages   -> `align`, steps of the received body on Σ_c MSE(f(θ; x), p_i^c); `train`, of body and head on the loss;
                `fisher`, a pass that moves nothing
    F_i      -> work.extra      Σ over the batches of that pass of ‖∇ mean loss‖², trace of the Fisher information
    w_i      -> F_i/Σ_j F_j, weights of the average of the bodies
Deviations:
    The authors' code aligns the server's model in place, so each client of a round passes an altered body to the next;
    here, as in the paper, all start from the same one. There unsampled clients compute an unused trace. Its pass takes
    batches of 16; here it takes those of the local work, on which the trace depends.
    The steps of alignment have a fresh optimizer with the rate `align_lr`, by default that of the round.
    A client in its first round aligns the body with the initial network's features, as in the authors' code.
    Buffers of the body, such as running statistics, are averaged with the same weights.
    An unseen client has no model in the paper. Ours: the received body under the initial head trains as in a
    round, without alignment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import (
    LocalRun,
    MessageSpec,
    OwnModel,
    Participation,
    Personal,
    local_result,
    local_run,
    local_step,
    ranged,
)
from lit_fed.core.context import Context
from lit_fed.core.objective import ModelView, Objective
from lit_fed.core.partial_models import named_part, names_of, whole_models
from lit_fed.core.prototypes import batch_sums, check_classes, class_sums, head_leaves
from lit_fed.core.types import Batch, ClientData, ClientResult, Leaves, ModelState, Phase, Reduced, Stage

__all__ = ["BodyWithHead", "FedAS", "WeighedBody"]


class BodyWithHead(NamedTuple):
    """The server's state; the initial head is no `ModelState`, since it is never sent."""

    models: ModelState  # θ, leaves [1, ...]
    head: Leaves  # the initial head, leaves [1, ...]


class WeighedBody(NamedTuple):
    """A client's message value."""

    models: ModelState  # F_i·θ_i, leaves [1, ...] float64
    trace: Tensor  # F_i, [] float64


@dataclass(frozen=True)
class FedAS(Personal[BodyWithHead, OwnModel, LocalRun]):
    """Personal heads on a shared body; clients align the body before training it, with Fisher information as weights.

    Args:
        align_epochs: passes over the local samples that align the received body.
        align_lr: learning rate of these steps; null takes that of the round.
    """

    align_epochs: int = ranged(1, ">= 0")
    align_lr: float | None = ranged(0.01, ">= 0")

    message = MessageSpec("multiples")
    participation = Participation(weighting="uniform", fills_in_absent=False)
    start_only = ("head",)
    incompatible = {"personal_parts": "keeps a personal head itself"}

    def shared_init(self, ctx: Context) -> BodyWithHead:
        """The initial network in two parts."""
        check_classes(ctx.task.target, "FedAS")
        whole = ctx.task.init(1, ctx.seed)
        head = head_leaves(ctx.task, whole)
        return BodyWithHead(named_part(whole, names_of(whole) - head.keys()), head)

    def state_init(self, ctx: Context, shared: BodyWithHead, data: ClientData) -> OwnModel:
        """The initial network."""
        return OwnModel(whole_models(ctx.task.network, shared.models, (shared.head, {})))

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase]:
        """Alignment, local steps, and a pass for the trace."""
        work = ctx.solver.work
        trace = Stage("fisher", 1, is_whole=True)
        stages = (Stage("align", self.align_epochs), Stage("train", work.epochs, work.steps), trace)
        return (Phase("train", client_ids, work._replace(epochs=None, steps=None, stages=stages)),)

    def client_init(
        self, ctx: Context, shared: BodyWithHead, state: OwnModel, data: ClientData, losses: None
    ) -> LocalRun:
        """The received body under the personal head; with p_i^c, a mask [C] of the classes that it has, and F_i."""
        own = class_sums(lambda x: ctx.task.features(state.models, x)[:, 0], data, ctx.task.target.num_classes)
        trace = torch.zeros((), dtype=torch.float64, device=ctx.lr.device)
        models = whole_models(ctx.task.network, state.models, shared.models)
        run = local_run(ctx, models, (own.means, own.counts > 0, trace))
        return run._replace(optimizer=(run.optimizer, run.optimizer))

    def client_step(self, ctx: Context, shared: BodyWithHead, work: LocalRun, batch: Batch) -> LocalRun:
        """A step of the current stage."""
        (of_aligning, of_training), (means, has, trace) = work.optimizer, work.extra
        if ctx.stage == "align":
            constants = (means.unsqueeze(0), has.unsqueeze(0))
            objective = Objective(alignment, uses_features=True, over_batch=True, constants=constants)
            lr, names = ctx.own_rate(self.align_lr), names_of(shared.models)
            moved, of_aligning, _ = ctx.solver.step(
                ctx.task, work.models, of_aligning, batch, lr, objective=objective, moving=names
            )
            return work._replace(models=moved, optimizer=(of_aligning, of_training))
        if ctx.stage == "fisher":
            _, gradient, _ = ctx.task.value_and_grad(work.models, batch, training=False)
            return work._replace(extra=(means, has, trace + tree.norm(gradient).square()))
        run = local_step(ctx, work._replace(optimizer=of_training), batch)
        return run._replace(optimizer=(of_aligning, run.optimizer))

    def client_final(self, ctx: Context, shared: BodyWithHead, work: LocalRun, data: ClientData) -> ClientResult:
        """Send F_i times the body, and F_i; keep the whole model."""
        body, one = named_part(work.models, names_of(shared.models)), torch.ones_like(data.num_samples)
        trace = work.extra[2]
        value = WeighedBody(tree.map_leaves(lambda leaf: trace * leaf.double(), body), trace)
        up = tree.bits((body, trace), ctx.private)
        return local_result(ctx, work, data, value, OwnModel(work.models), weight=one, up=up)

    def server_step(self, ctx: Context, shared: BodyWithHead, reduced: Reduced, client_ids: Tensor) -> BodyWithHead:
        """θ ← Σ_i F_i·θ_i/Σ_i F_i; unchanged if all traces are 0."""
        trace = reduced.value.trace
        divisor = torch.where(trace > 0, trace, 1.0)
        models = tree.map_leaves(
            lambda new, old: torch.where(trace > 0, new / divisor, old.double()), reduced.value.models, shared.models
        )
        return shared._replace(models=models)


def alignment(view: ModelView) -> Tensor:
    """Mean squared error of features to their class mean, summed over the classes of the batch; [B] equal values."""
    means, has = view.constants
    found = batch_sums((view.features - means[view.y]).square().mean(-1, keepdim=True), view.y, view.mask, len(has))
    return torch.where(has, found.means[:, 0], 0.0).sum().expand(len(view.outputs))
