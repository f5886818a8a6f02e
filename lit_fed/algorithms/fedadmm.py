"""FedADMM: local steps on the sampled clients' augmented Lagrangians, whose changes the server sums.

Gong, Li, Freris. "FedADMM: A Robust Federated Deep Learning Framework with Adaptivity to System Heterogeneity". ICDE
2022. https://arxiv.org/abs/2204.03529, Algorithm 1.

Symbols:
    θ   -> shared.models   the global model, leaves [1, ...]
    w_i -> state.models    the model of client i, leaves [1, ...]
    y_i -> state.dual      its dual variable, leaves [1, ...]; −∇f_i at the solution
    u_i -> _augmented      its augmented model w_i + y_i/ρ; Δ_i is its change
    L_i -> f_i(w_i) + ⟨y_i, w_i − θ⟩ + ρ/2·‖w_i − θ‖²
    ρ   -> penalty_weight
    η   -> server_lr
Deviations:
    The local problem is solved by the solver's local work, or exactly; variable work of the clients is
    `solver.straggler_fraction`, not a target accuracy.
    The authors' code, and FL-bench after it, starts the local steps at θ (`start: server`) and takes θ in the place of
    the old w_i, so that Δ_i is 2(w_i − θ); here Δ_i is the change of u_i. Their η falls from 1 to 0.5 after 60 rounds.
    With `model.weighting: samples` changes are weighted, and the solution is that of all samples.
    A client drawn twice counts once. The average change of running statistics is multiplied by η.
    Wang, Marella and Anderson (https://arxiv.org/abs/2203.15104) call another algorithm FedADMM.
    Clients, seen or unseen, are served by θ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import GlobalModels, LocalRun, MessageSpec, Participation, local_result, tuned
from lit_fed.core.context import Context
from lit_fed.core.solvers.penalised_solve import ProximalSplitting
from lit_fed.core.types import ClientData, ClientResult, Leaves, ModelState, Phase, Reduced

__all__ = ["DualState", "FedADMM"]


class DualState(NamedTuple):
    """A client's state."""

    models: ModelState  # w_i, leaves [1, ...]
    dual: Leaves  # y_i, leaves [1, ...]


@dataclass(frozen=True)
class FedADMM(ProximalSplitting[GlobalModels, DualState]):
    """The minimiser of the mean loss: clients keep models and duals, and send their combined change.

    Args:
        server_lr: η, the server's step along the mean change of the sampled clients; null takes their share of all
            clients, so that θ stays the mean of all u_i.
        start: starting point of the local steps: the client's w_i (`local`) or θ (`server`).
    """

    server_lr: float | None = tuned(1.0, 0.5, 1.0, within="> 0")
    start: Literal["local", "server"] = "local"

    message = MessageSpec("changes", accumulates=True)
    participation = Participation(weighting="uniform", counts_draws=False, fills_in_absent=False)

    def state_init(self, ctx: Context, shared: GlobalModels, data: ClientData) -> DualState:
        """w_i = θ and y_i = 0."""
        return DualState(shared.models, tree.zeros_like(shared.models.parameters))

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase]:
        """The sampled clients S_t."""
        return (Phase("train", torch.unique(client_ids), self.local_work(ctx)),)

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: DualState, data: ClientData, losses: None
    ) -> LocalRun:
        """w_i <- argmin L_i(w, y_i, θ), approximately."""
        start = state.models if self.start == "local" else shared.models
        return self.near(ctx, state, start, shared.models.parameters, state.dual)

    def client_final(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> ClientResult:
        """y_i <- y_i + ρ(w_i − θ); send Δ_i, the change of u_i."""
        work = self.solved(ctx, work, data)
        away = tree.sub(work.models.parameters, shared.models.parameters)
        old = work.extra[1]
        new = DualState(work.models, tree.add(old.dual, tree.scale(away, self.penalty_weight)))
        change = tree.sub(self._augmented(new), self._augmented(old))
        return local_result(ctx, work, data, change, new)

    def _augmented(self, state: DualState) -> ModelState:
        """u_i = w_i + y_i/ρ; running statistics are those of w_i."""
        shifted = tree.add(state.models.parameters, tree.scale(state.dual, 1 / self.penalty_weight))
        return state.models._replace(parameters=shifted)

    def server_step(self, ctx: Context, shared: GlobalModels, reduced: Reduced, client_ids: Tensor) -> GlobalModels:
        """θ <- θ + η·mean Δ_i."""
        step = reduced.weight / ctx.total_weight if self.server_lr is None else self.server_lr
        old = tree.map_leaves(lambda leaf: leaf.double(), shared.models)
        return GlobalModels(tree.add(old, tree.scale(reduced.value, step)))
