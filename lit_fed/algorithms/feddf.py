"""FedDF: the server trains the average of the clients' models on their predictions for public samples.

Lin, Kong, Stich, Jaggi. "Ensemble Distillation for Robust Model Fusion in Federated Learning". NeurIPS 2020.
https://arxiv.org/abs/2006.07242, Algorithm 1 with AVGLOGITS.

Symbols:
    x_t   -> shared.models     the global model, leaves [1, ...]
    x̂_k   -> a message         the model of client k after its local steps, leaves [1, ...]
    d     -> a batch           of `ctx.public`, whose labels are unused
    N     -> server_steps      steps of distillation in a round
    η     -> server_optimizer  fresh in each round, its rate by step; the paper takes Adam, 0.001 and `cosine`
Deviations:
    The paper stops when the accuracy on held-out samples has not risen for 1,000 steps, after 10,000 at most. Ours: a
    fixed number of steps, since the server has no samples of the clients' task.
    As in the paper the ensemble's logits are an unweighted mean; the start is the weighted average of the models.
    Steps of the server use no dropout, and keep running statistics of BatchNorm at the clients' average.
    All clients have the same architecture.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import Algorithm, GlobalModels, LocalRun, MessageSpec, Participation
from lit_fed.core.context import Context
from lit_fed.core.reduce import cast_like, stacked_average
from lit_fed.core.seeds import torch_generator
from lit_fed.core.server_optimizer import ServerOptimizer
from lit_fed.core.types import Batch, ModelState, PublicSamples, Reduced
from lit_fed.errors import check_settings

__all__ = ["FedDF"]


@dataclass(frozen=True)
class FedDF(Algorithm[GlobalModels, tuple[()], LocalRun]):
    """FedAvg whose average learns from the mean logits of the clients' models, on public samples.

    Args:
        server_steps: steps of distillation in each round; 0 is FedAvg.
        server_batch_size: public samples per step.
        server_optimizer: the server's optimizer; its schedule counts steps of a round.
    """

    server_steps: int = 100
    server_batch_size: int = 128
    server_optimizer: ServerOptimizer = field(default_factory=lambda: ServerOptimizer("Adam", 1e-3, "cosine"))

    message = MessageSpec("rows", reduce="stack")
    participation = Participation(fills_in_absent=False, needs_public=True)
    incompatible: ClassVar[dict[str, str]] = {
        "size_sampling": "takes the plain mean of the logits of a round's clients, in which each counts once"
    }

    def __post_init__(self) -> None:
        check_settings(self, server_steps=">= 0", server_batch_size=">= 1")
        self.server_optimizer.check("--model.algorithm.server_optimizer")

    def server_step(self, ctx: Context, shared: GlobalModels, reduced: Reduced, client_ids: Tensor) -> GlobalModels:
        """x_{t,0} = Σ_k n_k/n x̂_k, then N steps on KL(mean of logits ‖ prediction) (lines 6-10)."""
        student: ModelState = cast_like(stacked_average(reduced.value, reduced.weight), shared.models)
        teachers = tree.map_leaves(lambda leaf: leaf.squeeze(1), reduced.value)  # one axis for all models, [C, ...]
        moments = self.server_optimizer.init(student.parameters)
        assert ctx.public is not None
        order = torch_generator(ctx.seed, ctx.round_idx, 0, "public")
        for step in range(self.server_steps):
            batch = self._batch(ctx, ctx.public, teachers, order)
            _, gradient, _ = ctx.task.value_and_grad(student, batch, training=False)
            at = ctx._replace(round_idx=step, horizon=self.server_steps)
            parameters, moments = self.server_optimizer.update(at, student.parameters, gradient, moments)
            student = ModelState(parameters, student.buffers)
        return GlobalModels(student)

    def _batch(self, ctx: Context, public: PublicSamples, teachers: ModelState, order: torch.Generator) -> Batch:
        """Public samples, labelled by the ensemble's predictions."""
        size = min(self.server_batch_size, len(public.x))
        rows = torch.randperm(len(public.x), generator=order)[:size].to(public.x.device)
        logits = ctx.task.outputs(teachers, public.x[rows]).mean(1)
        labels = torch.zeros_like(logits if ctx.task.target.vectors else logits[..., 0], dtype=torch.int64)
        y = ctx.task.soft_labels(logits, labels, share=0.0)
        return Batch(public.x[rows], y, rows, torch.ones(size, device=rows.device))
