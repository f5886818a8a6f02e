"""Consensus ADMM: local models, tied to a common one by dual variables, with exact or inexact local solves.

Boyd, Parikh, Chu, Peleato, Eckstein. "Distributed Optimization and Statistical Learning via the Alternating Direction
Method of Multipliers". Foundations and Trends in Machine Learning 3(1), 2011. https://doi.org/10.1561/2200000016,
Section 7.1.

Symbols:
    z         -> shared.models  the common model, leaves [1, ...]
    x_i       -> state.models   the model of client i, leaves [1, ...]
    y_i       -> state.dual     its dual variable, leaves [1, ...]; Σ_i y_i = 0 after each round of all clients
    x_i+y_i/ρ -> state.sent     its last value known to the server, leaves [1, ...]
    ρ         -> penalty_weight
    α         -> over_relaxation (Section 3.4.3)
Deviations:
    All clients take part in the paper. Ours: absent clients keep x_i and y_i, and z stays the mean of the last values
    of all clients: they send the change of x_i + y_i/ρ, so the server stores only z.
    Ours: `--model.weighting samples` gives f_i the weight N·n_i/n, so that the common solution minimises the mean loss
    of all samples; by default all clients have equal weights. The local solve divides by that weight: so a rate means
    the same for all clients. Messages have equal weights in both cases.
    The inexact solve takes the solver's steps on the augmented loss, from the client's last x_i; the exact one
    ignores the solver's settings, weight decay included.
    ρ is fixed: the balancing of residuals (Section 3.4.1) is left out, and the number of rounds is the stopping rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import GlobalModels, LocalRun, MessageSpec, Participation, local_result, tuned
from lit_fed.core.context import Context
from lit_fed.core.solvers.penalised_solve import ProximalSplitting, penalised_run
from lit_fed.core.types import ClientData, ClientResult, Leaves, LocalWork, Message, ModelState, Phase, Reduced

__all__ = ["ADMMState", "ConsensusADMM"]


class ADMMState(NamedTuple):
    """A client's state."""

    models: ModelState  # x_i, leaves [1, ...]
    dual: Leaves  # y_i, leaves [1, ...]
    sent: Leaves  # x_i + y_i/ρ when it was last sent, leaves [1, ...]
    received: Tensor  # [] int64, round whose z the client already has


@dataclass(frozen=True)
class ConsensusADMM(ProximalSplitting[GlobalModels, ADMMState]):
    """The minimiser of Σ_i f_i: local solves are pulled towards a common model until all agree.

    Args:
        over_relaxation: α; 1.5 to 1.8 often takes fewer rounds than 1.
        serve: seen clients are served by z (`consensus`) or by x_i (`personal`); unseen ones always by z.
    """

    over_relaxation: float = tuned(1.0, 1.0, 1.5, 1.8, within="(0, 2)")
    serve: Literal["consensus", "personal"] = "consensus"

    message = MessageSpec("changes", accumulates=True)
    participation = Participation(weighting="uniform", counts_draws=False, fills_in_absent=False)

    def state_init(self, ctx: Context, shared: GlobalModels, data: ClientData) -> ADMMState:
        """x_i = z and y_i = 0."""
        z = shared.models
        return ADMMState(z, tree.zeros_like(z.parameters), z.parameters, torch.zeros((), dtype=torch.int64))

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase, Phase]:
        """The x- and the z-update; then the dual update with the new z. A client drawn twice counts once."""
        client_ids = torch.unique(client_ids)
        return Phase("train", client_ids, self.local_work(ctx)), Phase("dual", client_ids, LocalWork())

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: ADMMState, data: ClientData, losses: None
    ) -> LocalRun:
        """Continue from x_i; the penalty on f_i is ⟨y_i, x⟩ + ρ/2·‖x − z‖², divided by the weight of f_i."""
        linear = tree.sub(state.dual, tree.scale(shared.models.parameters, self.penalty_weight))
        return penalised_run(ctx, state, self.penalty_weight, linear, ctx.client_share(data))

    def client_final(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> ClientResult:
        """The exact x-update, if chosen, and its message; or the dual update."""
        if ctx.phase == "dual":
            return self._dual_update(ctx, shared, work, data)
        return self._send(ctx, shared, self.solved(ctx, work, data), data)

    def _send(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> ClientResult:
        """Send the change of x_i + y_i/ρ; only clients that missed the end of the last round receive z."""
        old, buffers = work.extra[1], work.models.buffers
        relaxed = tree.lerp(shared.models.parameters, work.models.parameters, self.over_relaxation)
        sent = tree.add(relaxed, tree.scale(old.dual, 1 / self.penalty_weight))
        change = tree.sub(ModelState(sent, buffers), ModelState(old.sent, old.models.buffers))
        one = torch.ones_like(data.num_samples)
        bits_down = tree.bits(shared.models) * one * (old.received != ctx.round_idx)
        state = old._replace(models=work.models, sent=sent)
        return local_result(ctx, work, data, change, state, weight=one, down=bits_down)

    def _dual_update(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> ClientResult:
        """The new y_i = y_i + ρ(x_i − z), which is ρ(x_i + y_i/ρ − z); and the primal residual ‖x_i − z‖."""
        state, z, one = work.extra[1], shared.models.parameters, torch.ones_like(data.num_samples)
        dual = tree.scale(tree.sub(state.sent, z), self.penalty_weight)
        state = state._replace(dual=dual, received=torch.full_like(state.received, ctx.round_idx + 1))
        message = Message((), one, bits_up=0 * one, bits_down=tree.bits(shared.models) * one)
        residual = tree.norm(tree.sub(state.models.parameters, z)).to(ctx.task.dtype)
        return ClientResult(message, state, {"primal_residual": residual})

    def server_step(self, ctx: Context, shared: GlobalModels, reduced: Reduced, client_ids: Tensor) -> GlobalModels:
        """The new z: the mean of the last values of all clients."""
        if ctx.phase == "dual":
            return shared
        change = tree.scale(reduced.value, reduced.weight / ctx.num_clients)
        return GlobalModels(tree.add(shared.models, change))

    def shared_outputs(self, ctx: Context, shared: GlobalModels, x: Tensor) -> Tensor | None:
        """Outputs of z, if clients are served by it."""
        return ctx.task.outputs(shared.models, x) if self.serve == "consensus" else None
