"""FedNTD: FedAvg whose clients distil the global model's predictions for the classes other than the true one.

Lee, Jeong, Shin, Bae, Yun. "Preservation of the Global Knowledge by Not-True Distillation in Federated Learning".
NeurIPS 2022. https://arxiv.org/abs/2106.03097, Section 4, Algorithm 1.

Symbols:
    w^t       -> shared.models  the global model, the teacher, leaves [1, ...]
    w_k       -> work.models    the model of client k, leaves [1, ...]
    q^g, q^l  -> softmax of the teacher's and of the client's logits without that of the true class
    β         -> beta           weight of the distillation
    τ         -> temperature
    L_NTD     -> KL(q^g ‖ q^l) = −Σ_{c ≠ y} q^g(c) log[q^l(c)/q^g(c)]
Deviations:
    The teacher predicts in evaluation mode, with running statistics and without dropout.
    The gradient of the KL falls with 1/τ². Later versions of the authors' code multiply it by τ², as is usual in
    distillation; the paper does not: give β·τ². PFLlib has the factor, and averages models without weights.
    With two classes one class is left, and FedNTD is FedAvg. Positions of sequences are distilled separately.
    An unseen client is served by the global model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_fed.core.algorithm import Algorithm, GlobalModels, LocalRun, local_step, ranged
from lit_fed.core.context import Context
from lit_fed.core.objective import ModelView, Objective
from lit_fed.core.prototypes import check_classes, class_logits, per_sample
from lit_fed.core.types import Batch

__all__ = ["FedNTD", "not_true"]


@dataclass(frozen=True)
class FedNTD(Algorithm[GlobalModels, tuple[()], LocalRun]):
    """FedAvg whose local loss preserves the global model's predictions for the classes other than the true one.

    Args:
        beta: β, weight of the distillation; 0 is FedAvg.
        temperature: τ of both predictions.
    """

    beta: float = ranged(1.0, ">= 0")
    temperature: float = ranged(1.0, "> 0")

    def shared_init(self, ctx: Context) -> GlobalModels:
        check_classes(ctx.task.target, "FedNTD")
        return super().shared_init(ctx)

    def client_step(self, ctx: Context, shared: GlobalModels, work: LocalRun, batch: Batch) -> LocalRun:
        """A step on CE + β·L_NTD."""
        teacher = class_logits(ctx.task.outputs(shared.models, batch.x))
        return local_step(ctx, work, batch, objective=Objective(self.loss, rows=teacher))

    def loss(self, view: ModelView) -> Tensor:
        """CE + β·KL(q^g ‖ q^l) of each sample, [B]."""
        teacher, own = (
            torch.log_softmax(not_true(logits, view.y) / self.temperature, -1)
            for logits in (view.rows, class_logits(view.outputs))
        )
        divergence = per_sample((teacher.exp() * (teacher - own)).sum(-1))
        return view.losses + self.beta * divergence


def not_true(logits: Tensor, y: Tensor) -> Tensor:
    """The logits [..., C] without that of the true class [...]: [..., C − 1].

    Example:
        >>> not_true(torch.tensor([[5, 6, 7], [5, 6, 7]]), torch.tensor([1, 2])).tolist()
        [[5, 7], [5, 6]]
    """
    others = torch.arange(logits.shape[-1] - 1, device=y.device)
    return logits.gather(-1, others + (others >= y.unsqueeze(-1)))
