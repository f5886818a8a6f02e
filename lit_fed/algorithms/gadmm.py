"""GADMM: clients in a chain update in two alternating groups, and communicate with two neighbours only; D-GADMM.

Elgabli, Park, Bedi, Bennis, Aggarwal. "GADMM: Fast and Communication Efficient Framework for Distributed Machine
Learning". Journal of Machine Learning Research 21(76), 2020. https://arxiv.org/abs/1909.00047
GADMM, and D-GADMM if the chain changes.

Symbols:
    x_i              -> state.models         the model of client i, leaves [1, ...]
    x_i, as sent     -> shared.peers         the same as its neighbours know it, leaves [T, 1, ...]
    λ_i − λ_{i−1}    -> shared.dual          the multipliers of x_i = x_{i+1} and of x_{i−1} = x_i enter client i's
                                             problem only so; neighbours know all it takes, so they are never sent
    heads, tails     -> phases               clients at odd and at even places of the chain
    ρ, τ             -> penalty_weight, redraw_every
Deviations:
    The paper adds up losses of samples. Ours: f_i is a client's mean loss, and all clients have equal weights; with
    `--model.weighting samples` it counts T·n_i/n, the paper's problem with ρ·n/T for its ρ. The local solve divides by
    that weight: so a rate means the same for all clients.
    All start from the common initial models instead of 0; running statistics are sent with the models.
    The exact solve ignores the solver's settings; the inexact one takes its steps, from the last x_i.
    D-GADMM: distances of random places represent the cost of a link, and after a new draw the second group sends once
    more. Each client keeps its λ_i − λ_{i−1}, as in the authors' code: a solution stays one in every chain.
    Ours: an unseen client is attached to the end of the chain: it minimises f(x) + ρ/2·‖x − x_T‖², or takes
    the local work of a round towards that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import LocalRun, MessageSpec, OwnModel, Participation, local_result, ranged
from lit_fed.core.context import Context
from lit_fed.core.graphs.group_admm import (
    GroupNetwork,
    augmented,
    group_phases,
    initial_network,
    multiplier_step,
    neighbours_of,
)
from lit_fed.core.graphs.peers import own_models, put_models
from lit_fed.core.seeds import generator
from lit_fed.core.solvers.newton import solvable_start
from lit_fed.core.solvers.penalised_solve import LocalSolve, PersonalSolve
from lit_fed.core.types import ClientData, ClientResult, Phase, Reduced

__all__ = ["GADMM", "Chain", "chain"]


class Chain(NamedTuple):
    """A chain of T clients."""

    order: Tensor  # [T] int64, client ids from the first to the last
    heads: Tensor  # [T] bool, whether a client is the first, third, fifth, …
    edges: Tensor  # [T + 1, T] float64 adjacency, 1 for neighbours; the last row is that of unseen clients


@dataclass(frozen=True)
class GADMM(PersonalSolve[GroupNetwork, OwnModel]):
    """The minimiser of Σ_i f_i without a server: each client communicates with its two neighbours in a chain.

    Args:
        penalty_weight: ρ; fastest near the curvature of the losses.
        redraw_every: τ, rounds between new draws of the chain (D-GADMM); 0 keeps the clients in their order.
        local_solve: `exact` by Newton's method, for small convex networks, or `inexact` by the solver's local work.
    """

    penalty_weight: float = ranged(0.1, "> 0")
    redraw_every: int = ranged(0, ">= 0")
    local_solve: LocalSolve = "inexact"

    message = MessageSpec("rows", reduce="stack")
    participation = Participation(weighting="uniform", needs_all_clients=True, fills_in_absent=False)
    state_reads_data = True
    incompatible = {"local_norm": "lets neighbours pull at each other's whole models, normalisation among them"}
    has_server = False

    def _chain(self, ctx: Context) -> Chain:
        draw = ctx.round_idx // self.redraw_every if self.redraw_every else None
        return chain(ctx.num_clients, ctx.seed, draw)

    def _is_redrawn(self, ctx: Context) -> bool:
        return self.redraw_every > 0 and ctx.round_idx > 0 and ctx.round_idx % self.redraw_every == 0

    def shared_init(self, ctx: Context) -> GroupNetwork:
        """x_i = θ⁰ for all, and λ = 0."""
        return initial_network(solvable_start(ctx, self.local_solve), ctx.num_clients)

    def state_init(self, ctx: Context, shared: GroupNetwork, data: ClientData) -> OwnModel:
        """x_i = θ⁰; an unseen client starts from x_T, the last of the chain."""
        client, last = data.client_id, self._chain(ctx).order[-1].to(data.client_id.device)
        return OwnModel(own_models(shared.peers, torch.where(client < ctx.num_clients, client, last)))

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase, ...]:
        """Heads, then tails, which already have the heads' new models."""
        return group_phases(client_ids, self._chain(ctx).heads, self.local_work(ctx))

    def client_init(
        self, ctx: Context, shared: GroupNetwork, state: OwnModel, data: ClientData, losses: None
    ) -> LocalRun:
        """f_i(x) + ⟨λ_i − λ_{i−1} − ρ(x_{i−1} + x_{i+1}), x⟩ + ρ·d_i/2·‖x‖², with d_i neighbours, 1 or 2."""
        return augmented(ctx, shared, state, data, self._chain(ctx).edges, self.penalty_weight)

    def client_final(self, ctx: Context, shared: GroupNetwork, work: LocalRun, data: ClientData) -> ClientResult:
        """The exact x-update, if chosen; send x_i to both neighbours at once, and receive theirs within the round."""
        work = self.solved(ctx, work, data)
        bits = tree.bits(work.models) * torch.ones_like(data.num_samples)
        up, down = bits, bits * neighbours_of(self._chain(ctx).edges, data.client_id).sum()
        if self._is_redrawn(ctx):  # the heads have new neighbours, which send them their models
            up, down = (up, 2 * down) if ctx.phase == "heads" else (2 * up, down)
        return local_result(ctx, work, data, state=OwnModel(work.models), up=up, down=down)

    def server_step(self, ctx: Context, shared: GroupNetwork, reduced: Reduced, client_ids: Tensor) -> GroupNetwork:
        """The network's step: models arrive; after the tails all take λ_i <- λ_i + ρ(x_i − x_{i+1})."""
        network = shared._replace(peers=put_models(shared.peers, client_ids, reduced.value))
        if ctx.phase == "heads":
            return network
        return multiplier_step(network, self._chain(ctx).edges[:-1], self.penalty_weight)


@lru_cache(maxsize=4)
def chain(num_clients: int, seed: int, draw: int | None = None) -> Chain:
    """A chain: in the order of the ids, or by the clients' places.

    Args:
        num_clients: number of clients T.
        seed: seed of the training.
        draw: which draw of random places in a square; the chain starts at client 0 and goes on to the nearest client
            that is not in it yet. None: the order of the ids.

    Example:
        >>> chain(3, seed=0).order.tolist(), chain(3, seed=0).heads.tolist()
        ([0, 1, 2], [True, False, True])
    """
    places = None if draw is None else generator(seed, draw, 0, "places").random((num_clients, 2))
    order = torch.arange(num_clients) if places is None else torch.from_numpy(_nearest(places))
    heads = torch.zeros(num_clients, dtype=torch.bool).index_fill_(0, order[::2], True)
    edges = torch.zeros(num_clients + 1, num_clients, dtype=torch.float64)
    edges[-1, order[-1]] = 1
    edges[order[:-1], order[1:]] = edges[order[1:], order[:-1]] = 1
    return Chain(order, heads, edges)


def _nearest(places: np.ndarray) -> np.ndarray:
    """The path from the first of the places [T, 2] to the nearest one left, and so on, [T] int64."""
    left, path = np.arange(1, len(places)), [0]
    while len(left):
        away = np.square(places[left] - places[path[-1]]).sum(1)
        path.append(int(left[away.argmin()]))
        left = np.delete(left, away.argmin())
    return np.array(path, dtype=np.int64)
