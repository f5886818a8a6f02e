"""FedEMAPFL: the average of the predictions of the FedAvg model and of a purely local one.

Marfoq, Neglia, Bellet, Kameni, Vidal. "Federated Multi-Task Learning under a Mixture of Distributions". NeurIPS 2021.
https://arxiv.org/abs/2108.10252 compares with APFL (Deng, Kamani, Mahdavi, https://arxiv.org/abs/2003.13461). In the
official FedEM code (https://github.com/omarfoq/FedEM) the step that should mix the parameters of the two models has no
effect, so what remains of APFL is an ensemble; it is kept here to reproduce that baseline.

Symbols:
    w   -> shared.models  the global model, leaves [1, ...]
    v_i -> state.local    the local model of client i, leaves [1, ...]; never leaves the client
    w_i -> work.models    client i's copy of w during a round, leaves [1, ...]
Deviations:
    Both models start equal and step on the same batches; in the FedEM code each has its own initial seed, and a round
    is one batch (`solver.local_steps: 1`).
    There a sample has half its weight in the loss of either model, so its steps correspond to half the learning rate
    and twice the weight decay here.
    An unseen client has no local model there. Ours: it is served by the global model alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.core.algorithm import Algorithm, GlobalModels
from lit_fed.core.context import Context
from lit_fed.core.local_solver import OptimizerState
from lit_fed.core.types import Batch, ClientData, ClientResult, ModelState
from lit_fed.errors import check_settings

__all__ = ["EnsembleRun", "FedEMAPFL", "LocalModel"]


class LocalModel(NamedTuple):
    """A client's state."""

    local: ModelState  # v_i, leaves [1, ...]


class EnsembleRun(NamedTuple):
    """A client's phase."""

    models: ModelState  # w_i, leaves [1, ...]
    local: ModelState  # v_i, leaves [1, ...]
    optimizer: tuple[OptimizerState, OptimizerState]  # of w_i and of v_i
    loss: Tensor  # [] sum over steps of the mean loss of the batch, averaged over both models, before the step
    steps: Tensor  # [] steps taken


@dataclass(frozen=True)
class FedEMAPFL(Algorithm[GlobalModels, LocalModel, EnsembleRun]):
    """FedAvg and Local side by side; a client is served by the mixture of both predictions.

    Args:
        local_share: weight of the local model's probabilities, in [0, 1]; the rest is the global model's.
    """

    local_share: float = 0.5

    def __post_init__(self) -> None:
        check_settings(self, local_share="[0, 1]")

    def state_init(self, ctx: Context, shared: GlobalModels, data: ClientData) -> LocalModel:
        """v_i starts as the global model; an unseen client keeps this, so both predict the same."""
        return LocalModel(shared.models)

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: LocalModel, data: ClientData, losses: None
    ) -> EnsembleRun:
        """A copy of the received model, and the client's own."""
        zero = torch.zeros((), dtype=ctx.task.dtype, device=ctx.lr.device)
        optimizer = (ctx.solver.init(shared.models), ctx.solver.init(state.local))
        return EnsembleRun(shared.models, state.local, optimizer, zero, zero.clone())

    def client_step(self, ctx: Context, shared: GlobalModels, work: EnsembleRun, batch: Batch) -> EnsembleRun:
        """A separate step of each model."""
        task, solver, (first, second) = ctx.task, ctx.solver, work.optimizer
        models, first, loss = solver.step(task, work.models, first, batch, ctx.lr)
        local, second, own_loss = ctx.own.solver.step(ctx.own.task, work.local, second, batch, ctx.lr)
        loss = work.loss + (loss.mean() + own_loss.mean()) / 2
        return EnsembleRun(models, local, (first, second), loss, work.steps + 1)

    def client_final(self, ctx: Context, shared: GlobalModels, work: EnsembleRun, data: ClientData) -> ClientResult:
        """Send w_i to be averaged as in FedAvg; keep v_i."""
        return super().client_final(ctx, shared, work, data)._replace(state=LocalModel(work.local))

    def log_prob(self, ctx: Context, shared: GlobalModels, state: LocalModel, x: Tensor, outputs: Tensor) -> Tensor:
        """Log of the mixed probabilities of the new global model and of the local one, [B, C]."""
        shares = outputs.new_tensor([1 - self.local_share, self.local_share])
        return ctx.task.mix(shares, torch.cat([outputs, ctx.task.outputs(state.local, x)], dim=1))
