"""q-FFL: fairer accuracy across clients, by minimising Σ p_k F_k^{q+1}/(q+1); q-FedAvg and q-FedSGD.

Li, Sanjabi, Beirami, Smith. "Fair Resource Allocation in Federated Learning". ICLR 2020.
https://arxiv.org/abs/1905.10497, Algorithms 1 (q-FedSGD) and 2 (q-FedAvg).

Symbols:
    w    -> shared.models    the global model, leaves [1, ...]
    w_k  -> work.models      the model of client k, leaves [1, ...]
    F_k  -> work.loss        mean loss of its samples under the received w, plus 1e-10 as in the authors' code
    q    -> fairness_power
    L    -> lipschitz        1/η by default, η being the local learning rate of the round
    Δw_k = L (w - w_k);  Δ_k = F_k^q Δw_k;  h_k = q F_k^{q-1} ‖Δw_k‖² + L F_k^q
Deviations:
    With P = Σ F_k^q and w̄ = Σ F_k^q w_k / P, the paper's w - ΣΔ_k/Σh_k is w + s (w̄ - w) with s = L P/Σh_k, which is
    computed: for q = 0 it is the average of the models to the last bit. Running statistics are those of w̄.
    The sums are unweighted as in the paper, which draws clients in proportion to their samples
    (`data.client_sampling: size`; the authors' code draws uniformly unless told otherwise).
    q-FedSGD is q-FedAvg with one step of rate 1/L on the whole local set, including the solver's weight decay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import (
    Algorithm,
    GlobalModels,
    LocalRun,
    MessageSpec,
    Participation,
    local_result,
    local_run,
    ranged,
    tuned,
)
from lit_fed.core.context import Context
from lit_fed.core.types import Batch, ClientData, ClientResult, LocalWork, ModelState, Phase, Reduced

__all__ = ["FairUpdate", "QFedAvg", "QFedSGD"]

FLOOR = 1e-10
"""Added to each F_k, so that negative powers of it are finite."""


class FairUpdate(NamedTuple):
    """The summands of the server's sums, in float64; a client needs to send w_k and F_k only."""

    models: ModelState  # F_k^q w_k, leaves [1, ...]
    power: Tensor  # [] F_k^q
    curvature: Tensor  # [] q F_k^{q-1} ‖Δw_k‖² = h_k - L F_k^q


@dataclass(frozen=True)
class QFedAvg(Algorithm[GlobalModels, tuple[()], LocalRun]):
    """FedAvg with larger weights for clients with high losses.

    Args:
        fairness_power: q; 0 is FedAvg with equal weights, larger values make the clients' losses more similar.
        lipschitz: L, an estimate of the Lipschitz constant of the gradient; null takes 1/η.
    """

    fairness_power: float = tuned(1.0, 0.001, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, within=">= 0")
    lipschitz: float | None = ranged(None, "> 0")

    message = MessageSpec("multiples")
    participation = Participation(weighting="uniform", fills_in_absent=False)
    reads_losses = True
    incompatible = {
        "loss": "takes a power of the log-loss whose gradient the clients follow",
        "client_lr": "divides all changes by one rate at the server",
    }

    def step_size(self, ctx: Context) -> Tensor:
        """1/L, [] float64."""
        return ctx.lr.clamp(min=1e-30) if self.lipschitz is None else torch.full_like(ctx.lr, 1 / self.lipschitz)

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: tuple[()], data: ClientData, losses: Tensor
    ) -> LocalRun:
        """F_k of the received model, before any training."""
        risk = (losses[:, 0] * data.mask).sum() / data.num_samples.clamp(min=1)
        return local_run(ctx, shared.models)._replace(loss=risk.to(ctx.task.dtype))

    def client_step(self, ctx: Context, shared: GlobalModels, work: LocalRun, batch: Batch) -> LocalRun:
        """A step of local SGD."""
        models, optimizer, _ = ctx.solver.step(ctx.task, work.models, work.optimizer, batch, ctx.lr)
        return work._replace(models=models, optimizer=optimizer)

    def client_final(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> ClientResult:
        """The terms of ΣΔ_k and Σh_k."""
        q, risk = self.fairness_power, work.loss.double() + FLOOR
        moved = tree.norm(tree.sub(shared.models.parameters, work.models.parameters))
        power, curvature = risk**q, q * risk ** (q - 1) * (moved / self.step_size(ctx)) ** 2
        models = tree.map_leaves(lambda leaf: power * leaf.double(), work.models)
        up = tree.bits((work.models, work.loss), ctx.private)
        return local_result(ctx, work, data, FairUpdate(models, power, curvature), up=up)

    def server_step(self, ctx: Context, shared: GlobalModels, reduced: Reduced, client_ids: Tensor) -> GlobalModels:
        """Step: w <- w - ΣΔ_k / Σh_k."""
        total: FairUpdate = reduced.value
        mean = tree.scale(total.models, 1 / total.power)
        share = total.power / (total.power + self.step_size(ctx) * total.curvature)
        old = tree.map_leaves(Tensor.double, shared.models.parameters)
        models = mean._replace(parameters=tree.lerp(old, mean.parameters, share))
        return GlobalModels(models)


@dataclass(frozen=True)
class QFedSGD(QFedAvg):
    """q-FedAvg whose clients send the gradient of all their samples, as one step of rate 1/L."""

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase]:
        """One step on the whole local set."""
        return (Phase("train", client_ids, LocalWork(steps=1, batch_size=0)),)

    def client_step(self, ctx: Context, shared: GlobalModels, work: LocalRun, batch: Batch) -> LocalRun:
        """w_k = w - ∇F_k(w)/L, so that Δw_k = ∇F_k(w)."""
        return super().client_step(ctx._replace(lr=self.step_size(ctx)), shared, work, batch)
