"""FedAS: a shared body that each client first aligns with its own features; averages use Fisher information.

Yang, Huang, Ye. "FedAS: Bridging Inconsistency in Personalized Federated Learning". CVPR 2024.
https://openaccess.thecvf.com/content/CVPR2024/html/Yang_FedAS_Bridging_Inconsistency_in_Personalized_Federated_Learning_CVPR_2024_paper.html

Symbols:
    θ        -> shared.models   the body, leaves [1, ...]
    θ_i, φ_i -> state.models    body and head of client i after its last local steps, leaves [1, ...]
    p_i^c    -> work.means      means of the features of its samples of class c under θ_i, [C, D]
    stages   -> `align`, steps of the received body on Σ_c MSE(f(θ; x), p_i^c); `train`, of body and head on the loss;
                `fisher`, a pass that moves nothing
    F_i      -> work.trace      Σ over the batches of that pass of ‖∇ mean loss‖², trace of the Fisher information
    w_i      -> F_i/Σ_j F_j, weights of the average of the bodies
Deviations:
    The authors' code aligns the server's model in place, so each client of a round passes an altered body to the next;
    here, as in the paper, all start from the same one. There unsampled clients compute an unused trace. Its pass takes
    batches of 16; here it takes those of the local work, on which the trace depends.
    The steps of alignment have a fresh optimizer with the rate `align_lr`, by default that of the round.
    A client in its first round aligns the body with the initial network's features, as in the authors' code.
    Buffers of the body, such as running statistics, are averaged with the same weights.
    An unseen client has no model in the paper. Ours: the received body under the initial head trains `unseen_epochs`
    passes, without alignment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import MessageSpec, OwnModel, Participation, Personal, local_result, local_run
from lit_fed.core.context import Context
from lit_fed.core.local_solver import OptimizerState
from lit_fed.core.partial_models import named_part, names_of, whole_models
from lit_fed.core.prototypes import batch_sums, check_classes, class_sums, head_leaves
from lit_fed.core.targets import ModelView, Objective
from lit_fed.core.types import Batch, ClientData, ClientResult, ModelState, Phase, Reduced, Stage
from lit_fed.errors import check_settings

__all__ = ["AlignedRun", "BodyWithHead", "FedAS", "WeighedBody"]


class BodyWithHead(NamedTuple):
    """The server's state; the initial head is no `ModelState`, since it is never sent."""

    models: ModelState  # θ, leaves [1, ...]
    head: dict[str, Tensor]  # the initial head, leaves [1, ...]


class WeighedBody(NamedTuple):
    """A client's message value."""

    models: ModelState  # F_i·θ_i, leaves [1, ...] float64
    trace: Tensor  # F_i, [] float64


class AlignedRun(NamedTuple):
    """A client's phase."""

    models: ModelState  # θ_i and φ_i, leaves [1, ...]
    optimizer: tuple[OptimizerState, OptimizerState]  # optimizers of the alignment and of the local steps
    loss: Tensor  # [] sum over local steps of the mean loss of the batch, before the step
    steps: Tensor  # [] local steps taken
    means: Tensor  # p_i^c, [C, D]
    has: Tensor  # [C] bool, classes present at the client
    trace: Tensor  # F_i so far, [] float64


@dataclass(frozen=True)
class FedAS(Personal[BodyWithHead, OwnModel, AlignedRun]):
    """Personal heads on a shared body; clients align the body before training it, with Fisher information as weights.

    Args:
        align_epochs: passes over the local samples that align the received body.
        align_lr: learning rate of these steps; null takes that of the round.
    """

    align_epochs: int = 1
    align_lr: float | None = 0.01

    message = MessageSpec("multiples")
    participation = Participation(weighting="uniform", fills_in_absent=False)
    incompatible: ClassVar[dict[str, str]] = {"personal_parts": "keeps a personal head itself"}

    def __post_init__(self) -> None:
        check_settings(self, align_epochs=">= 0", align_lr=">= 0")

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
        stages = (Stage("align", self.align_epochs), Stage("train", work.epochs, work.steps), Stage("fisher", 1))
        return (Phase("train", client_ids, work._replace(epochs=None, steps=None, stages=stages)),)

    def client_init(
        self, ctx: Context, shared: BodyWithHead, state: OwnModel, data: ClientData, losses: None
    ) -> AlignedRun:
        """The received body under the personal head, and the class means of the client's features."""
        own = class_sums(lambda x: ctx.task.features(state.models, x)[:, 0], data, ctx.task.target.num_classes)
        run = local_run(ctx, whole_models(ctx.task.network, state.models, shared.models))
        optimizers = (run.optimizer, run.optimizer)
        trace = torch.zeros((), dtype=torch.float64, device=ctx.lr.device)
        return AlignedRun(run.models, optimizers, run.loss, run.steps, own.means, own.counts > 0, trace)

    def client_step(self, ctx: Context, shared: BodyWithHead, work: AlignedRun, batch: Batch) -> AlignedRun:
        """A step of the current stage."""
        task, solver, (of_aligning, of_training) = ctx.task, ctx.solver, work.optimizer
        if ctx.stage == "align":
            lr = ctx.lr if self.align_lr is None else torch.full_like(ctx.lr, self.align_lr)
            constants = (work.means.unsqueeze(0), work.has.unsqueeze(0))
            objective = Objective(alignment, uses_features=True, over_batch=True, constants=constants)
            moved, of_aligning, _ = solver.step(
                task, work.models, of_aligning, batch, lr, objective=objective, moving=names_of(shared.models)
            )
            return work._replace(models=moved, optimizer=(of_aligning, of_training))
        if ctx.stage == "fisher":
            _, gradient, _ = task.value_and_grad(work.models, batch, training=False)
            return work._replace(trace=work.trace + tree.norm(gradient).square())
        models, of_training, loss = solver.step(task, work.models, of_training, batch, ctx.lr)
        return work._replace(
            models=models, optimizer=(of_aligning, of_training), loss=work.loss + loss.mean(), steps=work.steps + 1
        )

    def client_final(self, ctx: Context, shared: BodyWithHead, work: AlignedRun, data: ClientData) -> ClientResult:
        """Send F_i times the body, and F_i; keep the whole model."""
        body, one = named_part(work.models, names_of(shared.models)), torch.ones_like(data.num_samples)
        value = WeighedBody(tree.map_leaves(lambda leaf: work.trace * leaf.double(), body), work.trace)
        up, down = (tree.bits(sent, ctx.private) for sent in ((body, work.trace), shared.models))
        return local_result(ctx, work, data, value, OwnModel(work.models), weight=one, up=up, down=down)

    def server_step(self, ctx: Context, shared: BodyWithHead, reduced: Reduced, client_ids: Tensor) -> BodyWithHead:
        """θ ← Σ_i F_i·θ_i/Σ_i F_i; unchanged if all traces are 0."""
        trace = reduced.value.trace
        divisor = torch.where(trace > 0, trace, 1.0)
        models = tree.map_leaves(
            lambda new, old: torch.where(trace > 0, new / divisor, old.double()), reduced.value.models, shared.models
        )
        return shared._replace(models=models)

    def sent(self, ctx: Context, shared: BodyWithHead, client_id: int) -> BodyWithHead:
        """The body; the initial head only for clients without a model."""
        if client_id >= ctx.num_clients or ctx.phase == "init":
            return shared
        return shared._replace(head={})


def alignment(view: ModelView) -> Tensor:
    """Mean squared error of features to their class mean, summed over the classes of the batch; [B] equal values."""
    means, has = view.constants
    found = batch_sums((view.features - means[view.y]).square().mean(-1, keepdim=True), view.y, view.mask, len(has))
    return torch.where(has, found.means[:, 0], 0.0).sum().expand(len(view.outputs))
