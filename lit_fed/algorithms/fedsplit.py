"""FedSplit: Peaceman-Rachford splitting, proximal steps at reflected models.

Pathak, Wainwright. "FedSplit: An algorithmic framework for fast federated optimization". NeurIPS 2020.
https://arxiv.org/abs/2005.05238, Algorithm 1.

Symbols:
    x         -> shared.models   the common model, the mean of the z_j, leaves [1, ...]
    z_j       -> state.models    the state of device j, leaves [1, ...]
    z_j^{t+½} -> work.models     its proximal step at 2x − z_j, leaves [1, ...]
    1/s       -> penalty_weight  of prox_{sF_j}(u) = argmin F_j(z) + 1/(2s)·‖z − u‖²
Deviations:
    An inexact proximal step is the solver's local work from x, so that the solution is a fixed point for any number
    of steps. All devices take part in each round, as in the paper.
    With `model.weighting: samples` the mean is weighted, and the solution is that of all samples.
    fl-sim replaces z_j by x ahead of the proximal step, which is then taken at x, as in FedProx.
    Running statistics are those of z_j^{t+½}, and are averaged. Clients, seen or unseen, are served by x.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import GlobalModels, OwnModel, Participation
from lit_fed.core.context import Context
from lit_fed.core.solvers.penalised_solve import PenalisedRun, ProximalSplitting
from lit_fed.core.types import ClientData, ClientResult, Message, Phase
from lit_fed.errors import check_settings

__all__ = ["FedSplit"]


@dataclass(frozen=True)
class FedSplit(ProximalSplitting[GlobalModels, OwnModel]):
    """The minimiser of the mean loss: proximal steps, then steps that centre the devices' models."""

    participation = Participation(weighting="uniform", needs_all_clients=True, fills_in_absent=False)

    def __post_init__(self) -> None:
        check_settings(self, penalty_weight="> 0")

    def state_init(self, ctx: Context, shared: GlobalModels, data: ClientData) -> OwnModel:
        """z_j = x."""
        return OwnModel(shared.models)

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase]:
        """One exchange."""
        return (Phase("train", client_ids, self.local_work(ctx)),)

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: OwnModel, data: ClientData, losses: None
    ) -> PenalisedRun:
        """The local proximal step z_j^{t+½} = prox_{sF_j}(2x − z_j)."""
        x, z = shared.models.parameters, state.models.parameters
        return self.near(ctx, state, shared.models, tree.map_leaves(lambda a, b: 2 * a - b, x, z))

    def client_final(self, ctx: Context, shared: GlobalModels, work: PenalisedRun, data: ClientData) -> ClientResult:
        """The local centering step z_j <- z_j + 2(z_j^{t+½} − x); send z_j, and keep it."""
        work = self.solved(ctx, work, data)
        step = tree.sub(work.models.parameters, shared.models.parameters)
        z = tree.add(work.state.models.parameters, tree.scale(step, 2.0))
        kept = work.models._replace(parameters=z)
        return ClientResult(Message(kept, ctx.client_weight(data)), OwnModel(kept), {"loss": work.loss})

    # server_step: x <- mean z_j is the default
