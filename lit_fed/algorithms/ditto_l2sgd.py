"""DittoL2SGD: the baseline that the Ditto repository calls L2SGD.

Li, Hu, Beirami, Smith. "Ditto: Fair and Robust Federated Learning Through Personalization". ICML 2021.
https://arxiv.org/abs/2012.04221 compares with the L2SGD of Hanzely and Richtárik; the code beside the paper
(https://github.com/litian96/ditto) runs another method under that name: proximal SGD towards a global model, without
L2SGD's random coin between local and averaging steps. It is kept here to reproduce that baseline.

Symbols:
    v_i -> state.models   the personal model of client i, leaves [1, ...]
    w   -> shared.models  the global model, leaves [1, ...]: w <- w + 1/N·Σ_i (v_i − w) over the clients of the round
    λ   -> prox_weight    v_i <- v_i − η·(∇f_i(v_i) + λ·(v_i − w)), w as received
    N   -> num_clients    all clients: if all take part, w is the mean of the personal models
Deviations:
    If clients are weighted by samples, p_i replaces 1/N. A client that is drawn twice counts twice, and no step
    overshoots the mean.
    It differs from ProxAvg in the weights of the mean (ProxAvg: samples, as in the FedEM code) and in absent clients,
    which count here with w, and in ProxAvg not at all or with their own models.
    An unseen client has no personal model there. Ours: it trains `unseen_epochs` passes from w towards w.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import GlobalModels, LocalRun, OwnModel, Participation, Personal, local_run, tuned
from lit_fed.core.context import Context
from lit_fed.core.local_solver import Penalty
from lit_fed.core.types import Batch, ClientData, ClientResult, Reduced
from lit_fed.errors import check_settings

__all__ = ["DittoL2SGD"]


@dataclass(frozen=True)
class DittoL2SGD(Personal[GlobalModels, OwnModel, LocalRun]):
    """Personal models trained by proximal SGD towards a global model, which is moved towards their unweighted mean.

    Args:
        prox_weight: λ, the pull towards the global model; 0 gives Local.
    """

    participation = Participation(weighting="uniform", fills_in_absent=False)  # absent ones count with the global model

    prox_weight: float = tuned(1.0, 0.05, 0.1, 0.2, 1.0, 2.0)

    def __post_init__(self) -> None:
        check_settings(self, prox_weight=">= 0")

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: OwnModel, data: ClientData, losses: None
    ) -> LocalRun:
        """Training continues from the client's own model."""
        return local_run(ctx, state.models)

    def client_step(self, ctx: Context, shared: GlobalModels, work: LocalRun, batch: Batch) -> LocalRun:
        """A step on f_i(v_i) + λ/2·‖v_i − w‖²."""
        pull = Penalty(self.prox_weight, shared.models.parameters)
        models, optimizer, loss = ctx.solver.step(ctx.task, work.models, work.optimizer, batch, ctx.lr, penalty=pull)
        return LocalRun(models, optimizer, work.loss + loss.mean(), work.steps + 1)

    def client_final(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> ClientResult:
        """Send v_i to be averaged, and keep it."""
        return super().client_final(ctx, shared, work, data)._replace(state=OwnModel(work.models))

    def server_step(self, ctx: Context, shared: GlobalModels, reduced: Reduced, client_ids: Tensor) -> GlobalModels:
        """The step w <- w + 1/N·Σ_i (v_i − w), which is smaller if fewer clients take part."""
        share = (reduced.weight / ctx.total_weight).clamp(max=1)  # with replacement, draws may exceed clients

        def step(new: Tensor, old: Tensor) -> Tensor:
            return share * new + (1 - share) * old.double()

        return GlobalModels(tree.map_leaves(step, reduced.value, shared.models))
