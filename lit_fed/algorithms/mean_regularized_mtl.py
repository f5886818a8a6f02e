"""Mean-regularised multi-task learning: one model per client, tied to the mean of all.

Evgeniou, Pontil. "Regularized Multi-Task Learning". KDD 2004. https://dl.acm.org/doi/10.1145/1014052.1014067,
Section 2; by gradient descent with all other models frozen during a round, which PFLlib and the FedU code call MOCHA.

Symbols:
    w_i -> state.models   column i of W, the model of client i, leaves [1, ...]
    w̄   -> shared.models  the mean of all columns, leaves [1, ...]
    λ   -> mean_weight    min Σ_i f_i(w_i) + λ/2·tr(W Ω Wᵀ), Ω = I − 11ᵀ/N, so tr(W Ω Wᵀ) = Σ_i ‖w_i − w̄‖²
    s_i -> share          share of client i in the mean: 1/N, or p_i if weighted by samples
    The derivative of ½·Σ_j ‖w_j − w̄‖² = ½·(Σ_j ‖w_j‖² − N·‖w̄‖²) with respect to w_i is w_i − w̄ exactly, although w̄
    depends on w_i. During a round the mean moves with the own column: w̄ = w̄⁰ + s_i·(w_i − w_i⁰).
    In ProxAvg the anchor is fixed during a round, so both have the same fixed points but different steps; with one
    client there is no pull here.
Deviations:
    The paper solves for support vector machines, by their dual; here any loss, by local steps. It also penalises the
    size of each w_i (`solver.weight_decay`). PFLlib's penalty grows with the mean, ‖W‖² + (N − 1)²·‖w̄‖²; not offered.
    If clients are weighted by samples, so is the mean and with it the regulariser, p_i·λ/2·‖w_i − w̄‖².
    The paper has no sampling. Ours: w̄ must be exactly the mean of all columns, so a client that is drawn twice in a
    round moves and counts once. Sampling frequencies do not change the solution, where no column moves.
    An unseen client has no column. Ours: it trains `unseen_epochs` passes from w̄, which is fixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import GlobalModels, MessageSpec, OwnModel, Participation, Personal, local_step
from lit_fed.core.context import Context
from lit_fed.core.local_solver import OptimizerState, Penalty
from lit_fed.core.reduce import server_average
from lit_fed.core.types import Batch, ClientData, ClientResult, Message, ModelState, Phase, Reduced
from lit_fed.errors import check_settings

__all__ = ["ColumnRun", "MeanRegularizedMTL"]


class ColumnRun(NamedTuple):
    """A client's phase."""

    models: ModelState  # w_i, leaves [1, ...]
    start: ModelState  # w_i⁰, the column before the phase
    share: Tensor  # [] s_i, share of the client in the mean
    optimizer: OptimizerState
    loss: Tensor  # [] sum over steps of the mean loss of the batch, before the step
    steps: Tensor  # [] steps taken


@dataclass(frozen=True)
class MeanRegularizedMTL(Personal[GlobalModels, OwnModel, ColumnRun]):
    """Every client trains its own model, with a penalty on its distance from the mean of all clients' models.

    Args:
        mean_weight: λ, weight of the penalty; 0 gives Local.
    """

    message = MessageSpec(accumulates=True)
    # the mean is over all columns, each counted once
    participation = Participation(weighting="uniform", counts_draws=False, fills_in_absent=False)

    mean_weight: float = 1.0

    def __post_init__(self) -> None:
        check_settings(self, mean_weight=">= 0")

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase]:
        """One phase, in which a client drawn twice counts once."""
        return (Phase("train", torch.unique(client_ids), ctx.solver.work),)

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: OwnModel, data: ClientData, losses: None
    ) -> ColumnRun:
        """Training continues from the own column; an unseen client has no share in the mean."""
        total = ctx.total_samples if ctx.weighting == "samples" else ctx.total_weight
        weight = ctx.client_weight(data) / total
        share = torch.zeros_like(weight) if ctx.phase == "adapt" else weight
        zero = torch.zeros((), dtype=ctx.task.dtype, device=ctx.lr.device)
        return ColumnRun(state.models, state.models, share, ctx.solver.init(state.models), zero, zero.clone())

    def client_step(self, ctx: Context, shared: GlobalModels, work: ColumnRun, batch: Batch) -> ColumnRun:
        """A step on f_i plus the regulariser, whose gradient is λ·(w_i − w̄⁰ − s_i·(w_i − w_i⁰))."""
        rest = tree.sub(shared.models.parameters, tree.scale(work.start.parameters, work.share))
        pull = Penalty(self.mean_weight * (1 - work.share), linear=tree.scale(rest, -self.mean_weight))
        return local_step(ctx, work, batch, penalty=pull)

    def client_final(self, ctx: Context, shared: GlobalModels, work: ColumnRun, data: ClientData) -> ClientResult:
        """Send the mean plus the client's change; keep the column."""
        sent = tree.add(shared.models, tree.sub(work.models, work.start))
        message = Message(sent, ctx.client_weight(data))
        return ClientResult(message, OwnModel(work.models), {"loss": work.loss / work.steps.clamp(min=1)})

    def server_step(self, ctx: Context, shared: GlobalModels, reduced: Reduced, client_ids: Tensor) -> GlobalModels:
        """The mean of all columns, w̄ + Σ_i s_i·(w_i − w_i⁰): absent clients have not moved."""
        return GlobalModels(server_average(ctx._replace(aggregation="stale_fill"), shared.models, reduced))
