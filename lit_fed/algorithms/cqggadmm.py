"""CQ-GGADMM: ADMM between neighbours in two groups, which send only large changes, in a few bits per number.

Ben Issaid, Elgabli, Park, Bennis, Debbah. "Communication Efficient Distributed Learning with Censored, Quantized, and
Generalized Group ADMM". 2020. https://arxiv.org/abs/2009.06459
GGADMM without censoring and quantisation, C-GGADMM with the first, Q-GGADMM with the second, CQ-GGADMM with both.
The quantiser, which is unbiased by random rounding, is that of Elgabli, Park, Bedi, Ben Issaid,
Bennis, Aggarwal. "Q-GADMM: Quantized Group ADMM for Communication Efficient Decentralized Machine Learning". IEEE
Transactions on Communications 69(1), 2021. https://arxiv.org/abs/1910.10453

Symbols:
    θ_i          -> state.models          the model of client i, leaves [1, ...]
    θ̂_i          -> shared.network.peers  its last sent model, known to its neighbours, leaves [T, 1, ...]
    α_i          -> shared.network.dual   signed sum of the multipliers of its edges, leaves [T, 1, ...]; Σ_i α_i = 0
    R_i, b_i     -> state.grid            range and bits per number of its last message
    ρ, τ_0, ξ, ω -> penalty_weight, censor_threshold, censor_decay, bit_decay
Deviations:
    Ours: f_i is a client's mean loss, and all clients have equal weights; with `--model.weighting samples` it counts
        T·n_i/n,
    and the local solve divides by that weight: so a rate means the same for all clients.
    All start from the common initial models instead of 0, and the threshold of the first round is τ_0·ξ.
    The exact solve ignores the solver's settings; the inexact one takes its steps, from the last θ_i.
    Ours: R_i and b_i change only when something is sent; a censored change is measured again from θ̂_i.
    Bits per number are at most 32. Running statistics are sent in full, and only with the model.
    Ours: an unseen client, which has no neighbours, is served by the mean of all θ̂_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import LocalRun, MessageSpec, Participation, local_result
from lit_fed.core.context import Context
from lit_fed.core.graphs import group_admm
from lit_fed.core.graphs.group_admm import CostedNetwork
from lit_fed.core.graphs.peers import own_models, put_models
from lit_fed.core.graphs.topology import Bipartite, TimeVarying, Topology
from lit_fed.core.grids import NUMBER_BITS, round_to_grid
from lit_fed.core.reduce import cast_like
from lit_fed.core.seeds import uniforms
from lit_fed.core.solvers.newton import solvable_start
from lit_fed.core.solvers.penalised_solve import LocalSolve, PenalisedSolve
from lit_fed.core.types import ClientData, ClientResult, ModelState, Phase, Reduced, Tree
from lit_fed.errors import check_settings

__all__ = ["CQGGADMM", "QuantisedClient", "QuantiserGrid", "SentModel", "quantise"]

_WIDTH_BITS = 5  # a number of bits from 1 to 32


class QuantiserGrid(NamedTuple):
    """The grid of 2^b points from −R to R on which a difference is sent."""

    radius: Tensor  # R, [] float64; 0 before the first message
    bits: Tensor  # b, [] float64


class QuantisedClient(NamedTuple):
    """A client's state."""

    models: ModelState  # θ_i, leaves [1, ...]
    grid: QuantiserGrid  # R_i and b_i


class SentModel(NamedTuple):
    """A difference for receivers that know the previous value."""

    value: Tree  # value that receivers know afterwards
    grid: QuantiserGrid
    cost: Tensor  # [] float64, bits sent
    is_new: Tensor  # [] bool; False if the difference is 0


@dataclass(frozen=True)
class CQGGADMM(PenalisedSolve[CostedNetwork, QuantisedClient]):
    """The minimiser of Σ_i f_i without a server, on any graph whose neighbours can alternate.

    Args:
        penalty_weight: ρ; fastest near the curvature of the losses.
        topology: the graph between clients: connected, bipartite and fixed.
        bits: bits per number of the first change that a client sends; 0 sends models in full (GGADMM, C-GGADMM).
        bit_decay: ω, factor by which the spacing of a client's quantiser shrinks from one change to the next.
        censor_threshold: τ_0; a change is sent if its norm is at least τ_0·ξ^k in round k; 0 sends all of them.
        censor_decay: ξ.
        local_solve: `exact` by Newton's method, for small convex networks, or `inexact` by the solver's local work.
    """

    penalty_weight: float = 0.1
    topology: Topology = Bipartite()  # noqa: RUF009 - frozen
    bits: int = 2
    bit_decay: float = 0.9
    censor_threshold: float = 0.1
    censor_decay: float = 0.95
    local_solve: LocalSolve = "inexact"

    message = MessageSpec("rows", reduce="stack")
    participation = Participation(weighting="uniform", needs_all_clients=True, fills_in_absent=False)
    state_reads_data = True
    incompatible = {"local_norm": "lets neighbours pull at each other's whole models, normalisation among them"}
    has_server = False

    def __post_init__(self) -> None:
        topology = not isinstance(self.topology, TimeVarying), "a graph that does not change"
        decays = {"bit_decay": "(0, 1]", "censor_decay": "(0, 1)"}
        bits = f"[0, {NUMBER_BITS}]"
        check_settings(self, decays, penalty_weight="> 0", topology=topology, bits=bits, censor_threshold=">= 0")

    def _groups(self, ctx: Context) -> tuple[Tensor, Tensor]:
        return group_admm.two_groups(self.topology, ctx.num_clients, ctx.seed)

    def shared_init(self, ctx: Context) -> CostedNetwork:
        """θ̂_i = θ⁰ for all, and α = 0; a graph without two groups is refused."""
        self._groups(ctx)
        return group_admm.costed_network(solvable_start(ctx, self.local_solve), ctx.num_clients)

    def state_init(self, ctx: Context, shared: CostedNetwork, data: ClientData) -> QuantisedClient:
        """θ_i = θ⁰; an unseen client has the mean of all θ̂_i."""
        zero = torch.zeros_like(data.num_samples)
        return QuantisedClient(own_models(shared.network.peers, data.client_id), QuantiserGrid(zero, zero + self.bits))

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase, ...]:
        """Heads, then tails, which already have the heads' new models."""
        work = self.local_work(ctx)
        return group_admm.group_phases(client_ids, self._groups(ctx)[0], work)

    def client_init(
        self, ctx: Context, shared: CostedNetwork, state: QuantisedClient, data: ClientData, losses: None
    ) -> LocalRun:
        """f_i(θ) + ⟨θ, α_i − ρ·Σ_j θ̂_j⟩ + ρ·d_i/2·‖θ‖², with d_i neighbours j."""
        return group_admm.augmented(ctx, shared.network, state, data, self._groups(ctx)[1], self.penalty_weight)

    def client_final(self, ctx: Context, shared: CostedNetwork, work: LocalRun, data: ClientData) -> ClientResult:
        """The exact θ-update, if chosen; its change is quantised, and sent if it is large enough."""
        work = self.solved(ctx, work, data)
        known, last = own_models(shared.network.peers, data.client_id), work.extra[1].grid
        new, old = work.models.parameters, known.parameters
        sent = _quantised(ctx, new, old, last, self.bit_decay, data.client_id) if self.bits else _in_full(new, last)
        threshold = self.censor_threshold * self.censor_decay ** (ctx.round_idx + 1)
        goes = sent.is_new & (tree.norm(tree.sub(sent.value, old)) >= threshold)
        told = ModelState(sent.value, work.models.buffers)
        value, grid = tree.map_leaves(lambda new, old: torch.where(goes, new, old), (told, sent.grid), (known, last))
        cost = torch.where(goes, sent.cost + tree.bits(work.models.buffers), 1.0)  # one bit signals an empty message
        heard = group_admm.neighbours_of(self._groups(ctx)[1], data.client_id) @ shared.cost  # heads: one round ago
        state, goes = QuantisedClient(work.models, grid), goes.to(ctx.task.dtype)
        return local_result(ctx, work, data, (value, cost), state, up=cost, down=heard, transmissions=goes)

    def server_step(self, ctx: Context, shared: CostedNetwork, reduced: Reduced, client_ids: Tensor) -> CostedNetwork:
        """The network's step: θ̂_i arrive; after the tails all take α_i <- α_i + ρ·Σ_j (θ̂_i − θ̂_j)."""
        value, cost = reduced.value
        network = shared.network._replace(peers=put_models(shared.network.peers, client_ids, value))
        if ctx.phase == "tails":
            network = group_admm.multiplier_step(network, self._groups(ctx)[1], self.penalty_weight)
        return CostedNetwork(network, shared.cost.index_copy(0, client_ids, cost))

    def shared_outputs(self, ctx: Context, shared: CostedNetwork, x: Tensor) -> None:
        """None: each client is served by its own model."""


def _quantised(
    ctx: Context, value: Tree, known: Tree, last: QuantiserGrid, decay: float, client_id: Tensor
) -> SentModel:
    """The difference on the next grid: d numbers of b bits, R in 32 bits and b in 5; a difference of 0 is not sent.

    Args:
        ctx: the context.
        value: the new value, leaves of any shape, d numbers in total.
        known: the value that the receivers know.
        last: the grid of the last difference sent, or the bits of the first one with R = 0.
        decay: ω, factor of the spacing from one grid to the next.
        client_id: client whose random numbers of the round are used, [].
    """
    change = tree.sub(value, known)
    count = sum(leaf.numel() for leaf in tree.leaves(change))
    radius = torch.stack([leaf.double().abs().amax() for leaf in tree.leaves(change)]).amax()
    grid = _next_grid(last, radius, decay)
    rounded = quantise(change, grid, uniforms(ctx.seed, ctx.round_idx, client_id, "quantise", count))
    return SentModel(
        cast_like(tree.add(known, rounded), known), grid, count * grid.bits + NUMBER_BITS + _WIDTH_BITS, radius > 0
    )


def _next_grid(last: QuantiserGrid, radius: Tensor, decay: float) -> QuantiserGrid:
    """A grid from −radius to radius, whose spacing is at most `decay` times the last one, up to `NUMBER_BITS`."""
    needed = torch.log2(1 + (torch.exp2(last.bits) - 1) * radius / (decay * last.radius)).ceil().clamp(1, NUMBER_BITS)
    return QuantiserGrid(radius, torch.where((last.radius > 0) & (radius > 0), needed, last.bits))


def quantise(difference: Tree, grid: QuantiserGrid, chances: Tensor) -> Tree:
    """The difference on a grid, in float64; its expectation is the difference itself.

    Args:
        difference: δ, leaves of any shape, d numbers in total, none beyond the grid.
        grid: R and b; if R is 0, so is the result.
        chances: random numbers in [0, 1), [d].
    """
    parts = iter(torch.split(chances, [leaf.numel() for leaf in tree.leaves(difference)]))
    return tree.map_leaves(lambda leaf: round_to_grid(leaf.double(), grid.radius, grid.bits, next(parts)), difference)


def _in_full(value: Tree, grid: QuantiserGrid) -> SentModel:
    """The value itself; the grid is unchanged."""
    cost = torch.full_like(grid.bits, tree.bits(value))
    return SentModel(value, grid, cost, torch.ones_like(cost, dtype=torch.bool))
