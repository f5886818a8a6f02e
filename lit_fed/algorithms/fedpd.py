"""FedPD: local primal-dual steps, with averages in some rounds only.

Zhang, Hong, Dhople, Yin, Liu. "FedPD: A Federated Learning Framework with Adaptivity to Non-IID Data". IEEE TSP 2021.
https://arxiv.org/abs/2005.11418, Algorithm 1 with Oracle I.

Symbols:
    x_0   -> shared.models   the common model of the last communication, leaves [1, ...]
    x_0,i -> state.centre    client i's copy of it, updated locally if communication is skipped, leaves [1, ...]
    x_i   -> state.models    the model of client i, leaves [1, ...]
    λ_i   -> state.dual      its dual variable, leaves [1, ...]; −∇f_i at the solution
    L_i   -> f_i(x_i) + ⟨λ_i, x_i − x_0,i⟩ + 1/(2η)·‖x_i − x_0,i‖²
    1/η   -> penalty_weight
    p     -> skip_probability
Deviations:
    A round is one iteration; if communication is skipped, nothing is sent. The coins follow from the seed and the
    round. fl-sim and the authors' code also offer a fixed pattern.
    The oracle is the solver's local work on L_i from x_i; or its minimiser. Oracle II, with variance reduction, is not
    offered. All clients take part in each round, as in the paper.
    With `model.weighting: samples` the mean is weighted, and the solution is that of all samples.
    Running statistics are those of x_i, and are averaged. Clients, seen or unseen, are served by x_0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import GlobalModels, Participation
from lit_fed.core.context import Context
from lit_fed.core.seeds import generator
from lit_fed.core.solvers.penalised_solve import PenalisedRun, ProximalSplitting
from lit_fed.core.types import ClientData, ClientResult, Message, ModelState, Phase, Reduced
from lit_fed.errors import check_settings

__all__ = ["FedPD", "PrimalDualState"]


class PrimalDualState(NamedTuple):
    """A client's state."""

    models: ModelState  # x_i, leaves [1, ...]
    dual: dict[str, Tensor]  # λ_i, leaves [1, ...]
    centre: dict[str, Tensor]  # x_0,i ahead of the communication, leaves [1, ...]


@dataclass(frozen=True)
class FedPD(ProximalSplitting[GlobalModels, PrimalDualState]):
    """The minimiser of the mean loss: each client works on its augmented Lagrangian, and communication may be skipped.

    Args:
        skip_probability: p, probability of a round without communication; with heterogeneous clients, values above 0
            lead away from the minimiser, the more so the more they differ.
    """

    skip_probability: float = 0.0

    participation = Participation(weighting="uniform", needs_all_clients=True, fills_in_absent=False)

    def __post_init__(self) -> None:
        check_settings(self, penalty_weight="> 0", skip_probability="[0, 1)")

    def state_init(self, ctx: Context, shared: GlobalModels, data: ClientData) -> PrimalDualState:
        """x_i = x_0,i = x_0 and λ_i = 0."""
        parameters = shared.models.parameters
        return PrimalDualState(shared.models, tree.zeros_like(parameters), parameters)

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase]:
        """One iteration; the phase's name says whether clients communicate in this and in the last round."""
        now, before = (self._communicates(ctx, one) for one in (ctx.round_idx, ctx.round_idx - 1))
        name = f"{'train' if now else 'local'}/{'common' if before else 'own'}"
        return (Phase(name, client_ids, self.local_work(ctx)),)

    def _communicates(self, ctx: Context, round_idx: int) -> bool:
        """The coin of a round; before the first round all clients know x_0."""
        if round_idx < 0:
            return True
        return bool(generator(ctx.seed, round_idx, 0, "fedpd").random() >= self.skip_probability)

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: PrimalDualState, data: ClientData, losses: None
    ) -> PenalisedRun:
        """x_i <- Oracle(L_i; x_i), with x_0 in place of x_0,i if it was received."""
        centre = shared.models.parameters if ctx.phase.endswith("common") else state.centre
        return self.near(ctx, state._replace(centre=centre), state.models, centre, state.dual)

    def client_final(self, ctx: Context, shared: GlobalModels, work: PenalisedRun, data: ClientData) -> ClientResult:
        """λ_i <- λ_i + 1/η·(x_i − x_0,i) and x_0,i <- x_i + ηλ_i, which is sent unless skipped."""
        work = self.solved(ctx, work, data)
        old, x = work.state, work.models.parameters
        dual = tree.add(old.dual, tree.scale(tree.sub(x, old.centre), self.penalty_weight))
        centre = tree.add(x, tree.scale(dual, 1 / self.penalty_weight))
        weight = ctx.client_weight(data)
        message = Message(ModelState(centre, work.models.buffers), weight)
        if ctx.phase.startswith("local"):
            message = Message((), weight, 0 * weight, 0 * weight)
        return ClientResult(message, PrimalDualState(work.models, dual, centre), {"loss": work.loss})

    def server_step(self, ctx: Context, shared: GlobalModels, reduced: Reduced, client_ids: Tensor) -> GlobalModels:
        """x_0 <- 1/N·Σ_i x_0,i."""
        return super().server_step(ctx, shared, reduced, client_ids) if ctx.phase.startswith("train") else shared
