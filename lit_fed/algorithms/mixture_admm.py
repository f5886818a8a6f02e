"""MixtureADMM: personal models around their mean, by alternating minimisation without random steps; in three forms.

min Σ_i f_i(x_i) + λ/2·Σ_i ‖x_i − x̄‖², the objective of Hanzely, Richtárik. "Federated Learning of a Mixture of Global
and Local Models". 2020. https://arxiv.org/abs/2002.05516, Equation 2. As a sharing problem it is, for N·z = Σ_i x_i,
min Σ_i (f_i(x_i) + λ/2·‖x_i‖²) − λN/2·‖z‖². Form `gauss_seidel` is the flexible ADMM of Hong, Luo, Razaviyayn.
"Convergence Analysis of Alternating Direction Method of Multipliers for a Family of Nonconvex Problems". SIAM J. Optim.
2016. https://arxiv.org/abs/1410.1390, Algorithm 4.

Symbols:
    x_i  -> state.models  the personal model of client i, leaves [1, ...]
    z    -> shared.models the mean model, leaves [1, ...]; y -> shared.dual, the multiplier of N·z = Σ_i x_i
    Σ    -> shared.total  sum of all x_i, to which clients add by sending how theirs has changed
    λ, ρ, β -> prox_weight, penalty_weight, dual_step
Deviations:
    Hong et al. update the clients one after another; `jacobi` updates all at once, without a proof. No proximal term
    (ρN/2)·‖x − x_i‖² is added to it.
    All clients take part there. Ours: absent ones keep their models, which still count in Σ.
    With `local_solve: inexact` the solver's steps, from the last x_i, replace the minimisation.
    Ours: `--model.weighting samples` gives f_i the weight N·n_i/n, by which the local objective is then divided.
    An unseen client has no model there. Ours: the minimiser of f_i(x) + λ/2·‖x − z‖², or a round towards it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import LocalRun, MessageSpec, OwnModel, Participation, local_result, ranged
from lit_fed.core.context import Context
from lit_fed.core.solvers.newton import solvable_start
from lit_fed.core.solvers.penalised_solve import LocalSolve, PersonalSolve, penalised_run
from lit_fed.core.types import ClientData, ClientResult, Leaves, ModelState, Phase, Reduced
from lit_fed.errors import ConfigError

__all__ = ["MixtureADMM", "SharingServer", "SharingWeights"]


class SharingWeights(NamedTuple):
    """The numbers of the problem and of its augmented Lagrangian."""

    num_clients: int  # N
    prox: float  # λ
    penalty: float  # ρ, of N·z = Σ_i x_i
    dual_step: float  # β


class SharingServer(NamedTuple):
    """The server's state."""

    models: ModelState  # z, leaves [1, ...]
    dual: Leaves  # y, the multiplier of N·z = Σ_i x_i, leaves [1, ...]
    total: Leaves  # Σ, the sum of all x_i, leaves [1, ...]


@dataclass(frozen=True)
class MixtureADMM(PersonalSolve[SharingServer, OwnModel]):
    """Personal models that are pulled towards their mean.

    Args:
        prox_weight: λ; 0 trains every client alone; larger values bring all models closer together.
        form: `alternating_prox`, minimisers near z and then their mean; `jacobi`, all clients at once under the
            constraint; `gauss_seidel`, one client after another.
        penalty_weight: ρ, with N·ρ > λ; null takes 10·λ/N. Form `jacobi` diverges near N·ρ = λ, and is mostly safe
            from 4·λ on.
        dual_step: β; null takes ρ.
        local_solve: `exact` by Newton's method, for small convex networks, or `inexact` by the solver's local work.
    """

    prox_weight: float = ranged(1.0, ">= 0")
    form: Literal["alternating_prox", "jacobi", "gauss_seidel"] = "alternating_prox"
    penalty_weight: float | None = ranged(None, "> 0")
    dual_step: float | None = ranged(None, "> 0")
    local_solve: LocalSolve = "inexact"

    message = MessageSpec("changes", accumulates=True)
    participation = Participation(weighting="uniform", counts_draws=False, fills_in_absent=False)
    incompatible = {
        "noise_in_steps": "the responsibilities",
        "personal_parts": "has a consensus constraint on all leaves",
        "local_norm": "adds up changes of whole models at the server, the clients' normalisation among them",
    }

    def _weights(self, ctx: Context) -> SharingWeights:
        """N, λ, ρ and β; none of those given is 0."""
        N, prox = ctx.num_clients, self.prox_weight
        rho = self.penalty_weight or 10 * prox / N
        return SharingWeights(N, prox, rho, self.dual_step or rho)

    def shared_init(self, ctx: Context) -> SharingServer:
        """x_i = z for all, and y = 0; a ρ without a minimum in z is refused."""
        if self.form != "alternating_prox":
            _check_weights(self._weights(ctx))
        return _initial_server(solvable_start(ctx, self.local_solve), ctx.num_clients)

    def state_init(self, ctx: Context, shared: SharingServer, data: ClientData) -> OwnModel:
        """x_i = z."""
        return OwnModel(shared.models)

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase, ...]:
        """One phase; `gauss_seidel` takes one per client, which sees the others' new models in Σ."""
        work = self.local_work(ctx)
        ids = torch.unique(client_ids)  # a client drawn twice counts once
        turns = len(ids) - 1 if self.form == "gauss_seidel" else 0
        return (*(Phase("turn", ids[one : one + 1], work) for one in range(turns)), Phase("train", ids[turns:], work))

    def client_init(
        self, ctx: Context, shared: SharingServer, state: OwnModel, data: ClientData, losses: None
    ) -> LocalRun:
        """Penalty on f_i up to a constant, divided by the weight of f_i: curvature/2·‖x‖² + ⟨linear, x⟩."""
        weights, x = self._weights(ctx), state.models.parameters
        if self.form == "alternating_prox" or ctx.phase == "adapt":  # λ/2·‖x − z‖²
            more, pull = 0.0, tree.scale(shared.models.parameters, self.prox_weight)
        else:  # λ/2·‖x‖² + ρ/2·‖N·z − Σ_{j≠i} x_j − x‖² − ⟨y, x⟩
            more, pull = weights.penalty, tree.add(tree.scale(x, weights.penalty), _others(shared, weights))
        return penalised_run(ctx, state, self.prox_weight + more, tree.scale(pull, -1), ctx.client_share(data))

    def client_final(self, ctx: Context, shared: SharingServer, work: LocalRun, data: ClientData) -> ClientResult:
        """The exact x-update, if chosen; send the change."""
        work = self.solved(ctx, work, data)
        change = tree.sub(work.models, work.extra[1].models)
        state = OwnModel(work.models)
        return local_result(ctx, work, data, change, state, weight=torch.ones_like(data.num_samples))

    def server_step(self, ctx: Context, shared: SharingServer, reduced: Reduced, client_ids: Tensor) -> SharingServer:
        """The new sum; at the end of the round, z <- (ρΣ − y) / (ρN − λ) and y <- y + β(N·z − Σ)."""
        new = _add_changes(shared, reduced, ctx.num_clients)
        if self.form == "alternating_prox":  # z <- Σ / N
            new = new._replace(models=new.models._replace(parameters=tree.scale(new.total, 1 / ctx.num_clients)))
        elif ctx.phase != "turn":
            new = _mean_step(new, self._weights(ctx))
        return new

    def sent(self, ctx: Context, shared: SharingServer, client_id: int) -> SharingServer:
        """z, or instead the vector that a client needs from the others."""
        if self.form != "alternating_prox" and ctx.phase in ("turn", "train"):
            others = _others(shared, self._weights(ctx))
            shared = shared._replace(models=shared.models._replace(parameters=others))
        return shared._replace(dual={}, total={})


def _check_weights(weights: SharingWeights) -> None:
    """Refuse weights for which the update of z has no minimum."""
    num_clients, limit, rho, _ = weights
    if num_clients * rho <= limit:
        raise ConfigError(
            f"--model.algorithm.penalty_weight is {rho:g}, and {num_clients} clients times that is not above "
            f"prox_weight {limit:g}; give a number > {limit / num_clients:g}, better > {4 * limit / num_clients:g}"
        )


def _initial_server(models: ModelState, num_clients: int) -> SharingServer:
    """All N clients at z, and y = 0."""
    return SharingServer(models, tree.zeros_like(models.parameters), tree.scale(models.parameters, num_clients))


def _others(server: SharingServer, weights: SharingWeights) -> Leaves:
    """The vector y + ρ(N·z − Σ): all that a client needs from the others; it is sent instead of z."""
    if not server.total:
        return server.models.parameters
    gap = tree.sub(tree.scale(server.models.parameters, weights.num_clients), server.total)
    return tree.add(server.dual, tree.scale(gap, weights.penalty))  # type: ignore[no-any-return]


def _add_changes(server: SharingServer, reduced: Reduced, num_clients: int) -> SharingServer:
    """The new Σ, in float64, from the mean change of the participants, each with weight 1."""
    change: ModelState = tree.scale(reduced.value, reduced.weight)
    buffers = tree.add(server.models.buffers, tree.scale(change.buffers, 1 / num_clients))
    models = ModelState(server.models.parameters, buffers)
    return server._replace(models=models, total=tree.add(server.total, change.parameters))


def _mean_step(server: SharingServer, weights: SharingWeights) -> SharingServer:
    """The new z = (ρΣ − y) / (ρN − λ), and y + β(N·z − Σ)."""
    num_clients, prox, penalty, dual_step = weights
    z = tree.scale(tree.sub(tree.scale(server.total, penalty), server.dual), 1 / (penalty * num_clients - prox))
    gap = tree.sub(tree.scale(z, num_clients), server.total)
    dual = tree.add(server.dual, tree.scale(gap, dual_step))
    return server._replace(models=server.models._replace(parameters=z), dual=dual)
