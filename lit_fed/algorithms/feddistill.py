"""FedDistill (FD): clients with personal models share mean outputs per class, and learn from those of the others.

Jeong, Oh, Kim, Park, Bennis, Kim. "Communication-Efficient On-Device Machine Learning: Federated Distillation and
Augmentation under Non-IID Private Data". 2018. https://arxiv.org/abs/1811.11479, Algorithm 1.

Symbols:
    w^(i)     -> state.models     the model of client i, leaves [1, ...]; never leaves the client
    F̄_ℓ^(i)   -> state.means      mean outputs of client i for its samples of class ℓ, [C, K]
    F̄_ℓ       -> shared.sums      sum over the clients of a round that have class ℓ, shared.counts of them, [C, K], [C]
    F̂_ℓ^(i)   -> (F̄_ℓ − F̄_ℓ^(i))/(M − 1), the teacher of client i for class ℓ: the mean of the other clients
    γ         -> weight           of the distance between the outputs for a sample and the teacher for its class
Deviations:
    Client i is subtracted from its teacher if F̄_ℓ contains its last message. M counts the clients with class ℓ; a
    class that no other client has is not distilled, and a class absent from a round keeps its sums. A client does not
    learn that its message was lost (`model.faults`), and subtracts it nevertheless.
    Mean outputs are those of the model after its local steps, over all local samples; the paper accumulates them
    during training.
    The distance is the cross-entropy between the softmax of teacher and outputs, the paper's φ. PFLlib had the mean
    squared error of the logits (`distance: mse`) until April 2024, and since November 2025 has the cross-entropy with
    mean logits instead of probabilities. There a client is part of its own teacher, and outputs are accumulated
    during training, as in the paper.
    Federated augmentation, the paper's second half, is not offered. All clients have the same architecture and start.
    An unseen client has no model in the paper. Ours: the initial one trains `unseen_epochs` passes, distilling the mean
    of all clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import MessageSpec, Participation, Personal, local_run, local_step
from lit_fed.core.context import Context
from lit_fed.core.local_solver import OptimizerState
from lit_fed.core.prototypes import check_classes, class_logits, class_sums, class_vectors, per_sample
from lit_fed.core.targets import ModelView, Objective
from lit_fed.core.types import Batch, ClientData, ClientResult, Message, ModelState, Reduced
from lit_fed.errors import check_settings

__all__ = ["DistillRun", "Distilled", "FedDistill", "MeanOutputs", "SharedOutputs"]


class SharedOutputs(NamedTuple):
    """The server's state."""

    models: ModelState  # the start of all clients, leaves [1, ...]
    sums: Tensor  # F̄_ℓ, [C, K]
    counts: Tensor  # clients in each sum, [C]
    summed_in: Tensor  # [C] int64, round of each sum, from 1; 0: none


class MeanOutputs(NamedTuple):
    """A client's message value."""

    means: Tensor  # F̄_ℓ^(i), [C, K]; 0 for absent classes
    has: Tensor  # [C] 1 for a class that is present


class Distilled(NamedTuple):
    """A client's state."""

    models: ModelState  # w^(i), leaves [1, ...]
    sent: MeanOutputs  # its last message
    round_idx: Tensor  # [] int64, round of the message, from 1; 0: none


class DistillRun(NamedTuple):
    """A client's phase."""

    models: ModelState  # w^(i), leaves [1, ...]
    optimizer: OptimizerState
    loss: Tensor  # [] sum over steps of the mean loss of the batch, before the step
    steps: Tensor  # [] steps taken
    teacher: Tensor  # F̂_ℓ^(i), [C, K]
    others: Tensor  # [C] clients in each teacher


@dataclass(frozen=True)
class FedDistill(Personal[SharedOutputs, Distilled, DistillRun]):
    """Personal models that distil the other clients' mean outputs for the class of each sample.

    Args:
        weight: γ; 0 is Local.
        distance: distance between teacher and outputs: `cross_entropy` of their softmax, or `mse` of the logits.
    """

    weight: float = 1.0
    distance: Literal["cross_entropy", "mse"] = "cross_entropy"

    message = MessageSpec("statistics")
    participation = Participation(weighting="uniform", fills_in_absent=False)
    incompatible: ClassVar[dict[str, str]] = {
        "size_sampling": "sums over clients, each of which leaves itself out once",
        "local_norm": "keeps whole models at its clients anyway",
    }

    def __post_init__(self) -> None:
        check_settings(self, weight=">= 0")

    def shared_init(self, ctx: Context) -> SharedOutputs:
        """No class has a teacher yet."""
        target = ctx.task.target
        check_classes(target, "FedDistill")
        sums = class_vectors(ctx.task, target.num_outputs)
        never = torch.zeros(target.num_classes, dtype=torch.int64)
        return SharedOutputs(ctx.task.init(1, ctx.seed), sums, sums[:, 0].clone(), never)

    def state_init(self, ctx: Context, shared: SharedOutputs, data: ClientData) -> Distilled:
        """The common start, and no message."""
        nothing = MeanOutputs(*tree.zeros_like((shared.sums, shared.counts)))
        return Distilled(shared.models, nothing, torch.zeros_like(shared.summed_in[0]))

    def client_init(
        self, ctx: Context, shared: SharedOutputs, state: Distilled, data: ClientData, losses: None
    ) -> DistillRun:
        """The client's model, and the mean outputs of the others (line 16)."""
        within = state.sent.has * (shared.summed_in == state.round_idx)
        others = shared.counts - within
        teacher = (shared.sums - within.unsqueeze(-1) * state.sent.means) / others.clamp(min=1).unsqueeze(-1)
        return DistillRun(*local_run(ctx, state.models)[:4], teacher=teacher, others=others)

    def client_step(self, ctx: Context, shared: SharedOutputs, work: DistillRun, batch: Batch) -> DistillRun:
        """A step on φ(F(w, x), y) + γ·φ(F(w, x), F̂_y) (line 5)."""
        constants = (work.teacher.unsqueeze(0), (work.others > 0).unsqueeze(0))
        return local_step(ctx, work, batch, objective=Objective(self.loss, constants=constants))

    def loss(self, view: ModelView) -> Tensor:
        """The task's loss and γ times the distance to the teacher, [B]."""
        teacher, known = view.constants
        teacher = teacher[view.y]
        if self.distance == "mse":
            away = (view.outputs - teacher).square().mean(-1)
        else:
            target = class_logits(teacher).softmax(-1)
            away = -(target * class_logits(view.outputs).log_softmax(-1)).sum(-1)
        return view.losses + self.weight * per_sample(torch.where(known[view.y], away, 0.0))

    def client_final(self, ctx: Context, shared: SharedOutputs, work: DistillRun, data: ClientData) -> ClientResult:
        """Send the mean outputs of each class (line 9); keep the model."""
        found = class_sums(lambda x: ctx.task.outputs(work.models, x)[:, 0], data, len(shared.counts))
        sent = MeanOutputs(found.means, (found.counts > 0).to(found.counts.dtype))
        one = torch.ones_like(data.num_samples)
        down = torch.full_like(one, tree.bits(shared[1:]))
        now = torch.full_like(shared.summed_in[0], ctx.round_idx + 1)
        result = super().client_final(ctx, shared, work, data)
        return result._replace(message=Message(sent, one, bits_down=down), state=Distilled(work.models, sent, now))

    def server_step(self, ctx: Context, shared: SharedOutputs, reduced: Reduced, client_ids: Tensor) -> SharedOutputs:
        """Sums over the clients of the round (line 12)."""
        total: MeanOutputs = tree.scale(reduced.value, reduced.weight)
        seen = total.has > 0
        sums = torch.where(seen.unsqueeze(-1), total.means, shared.sums.double())
        counts = torch.where(seen, total.has, shared.counts.double())
        summed_in = torch.where(seen, ctx.round_idx + 1, shared.summed_in)
        return shared._replace(sums=sums, counts=counts, summed_in=summed_in)

    def sent(self, ctx: Context, shared: SharedOutputs, client_id: int) -> SharedOutputs:
        """The sums; the start only for clients without a model."""
        starts = client_id >= ctx.num_clients or ctx.phase == "init"
        return shared if starts else shared._replace(models=ModelState({}, {}))
