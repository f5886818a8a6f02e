"""FedFOMO: every client mixes the models of others by their benefit on held-out samples.

Zhang, Sapra, Fidler, Yeung, Alvarez. "Personalized Federated Learning with First Order Model Optimization". ICLR 2021.
https://arxiv.org/abs/2012.08565, Section 3, Algorithm 1.

Symbols:
    θ_i^(l-1) -> state.models     the model of client i after its last round, leaves [1, ...]
    θ_n^l     -> shared.peers     the model that client n uploaded last, leaves [T, 1, ...]
    P         -> shared.affinity  sums of the weights of client n for client i, [T, T]
    w_n       -> state.weights    decrease of client i's loss by θ_n, per distance to it, [T];
                 state.shares     the positive ones, scaled to sum to 1; 0 if there are none
Deviations:
    Held-out samples are drawn once and masked in their batches; only BatchNorm's statistics see their inputs, and a
    batch of held-out samples alone takes no step.
    Ours: a client with too few samples to hold one out validates on its training samples.
    A client's own new model always counts, and costs no traffic. P starts at 0. The authors' code divides by an L1 norm
    by default and scales the affinities; neither is offered. Ours: the last models of absent clients can be downloaded.
    Ours: an unseen client starts from the mean of all models and weights them once, on its training samples.
    As in the paper, the server sends models of clients to other clients, which can identify their owners.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import LocalRun, MessageSpec, Participation, Served, local_result, local_run, ranged, tuned
from lit_fed.core.context import Context
from lit_fed.core.graphs.neighbours import greedy_neighbours
from lit_fed.core.graphs.peers import Peers, draws, models_of, own_models, put_models, same_start, some_peers
from lit_fed.core.reduce import cast_like
from lit_fed.core.types import Batch, ClientData, ClientResult, LocalWork, Message, ModelState, Phase, Reduced

__all__ = ["FedFOMO", "Mixed", "Offered", "first_order_step", "first_order_weights"]


class Offered(NamedTuple):
    """The server's state."""

    peers: Peers  # θ_n, leaves [T, 1, ...]
    affinity: Tensor  # P, [T, T] float64


class Mixed(NamedTuple):
    """A client's mixture of the models of some clients."""

    models: ModelState  # leaves [1, ...]
    weights: Tensor  # [T] float64; 0 for a model that was not downloaded
    shares: Tensor  # [T] float64; sums to 1, or is 0 if no weight is positive


@dataclass(frozen=True)
class FedFOMO(Served[Offered, Mixed, LocalRun]):
    """Local training, then a first-order step towards the models that perform better on held-out samples.

    Args:
        num_neighbours: M, models of others that a client downloads in a round.
        explore_probability: ε, probability in round 0 of choosing them at random; otherwise by largest affinity.
        explore_decay: decrease of ε per round.
        val_fraction: share of a client's training samples that is held out; 0 validates on the training samples.
        keep: the client's model if no model helps: the `previous` one, or its own `trained` one.
    """

    num_neighbours: int = tuned(5, 5, 10, within=">= 0")
    explore_probability: float = ranged(0.3, "[0, 1]")
    explore_decay: float = ranged(0.05, ">= 0")
    val_fraction: float = ranged(0.2, "[0, 1)")
    keep: Literal["previous", "trained"] = "previous"

    in_every_combination = True
    message = MessageSpec("rows", reduce="stack")
    participation = Participation(counts_draws=False, fills_in_absent=False)
    state_reads_data = True
    incompatible = {"local_norm": "mixes in all leaves of the models of others"}

    def shared_init(self, ctx: Context) -> Offered:
        """All models start equal; P = 0."""
        peers = same_start(ctx.task.init(1, ctx.seed), ctx.num_clients)
        return Offered(peers, torch.zeros(ctx.num_clients, ctx.num_clients, dtype=torch.float64))

    def state_init(self, ctx: Context, shared: Offered, data: ClientData) -> Mixed:
        """θ_i^0; for an unseen client the mean of all models."""
        none = torch.zeros(ctx.num_clients, dtype=torch.float64)
        return Mixed(own_models(shared.peers, data.client_id), none, none.clone())

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase, Phase]:
        """Clients train and upload their models; then they download those of others."""
        return Phase("train", client_ids, ctx.solver.work), Phase("combine", client_ids, LocalWork())

    def client_init(self, ctx: Context, shared: Offered, state: Mixed, data: ClientData, losses: None) -> LocalRun:
        """Start from θ_i^(l-1)."""
        return local_run(ctx, state.models, (_held_out(ctx, data, self.val_fraction), state))

    def client_step(self, ctx: Context, shared: Offered, work: LocalRun, batch: Batch) -> LocalRun:
        """A local step on the samples that are not held out; no step on a batch of held-out samples alone."""
        batch = batch._replace(mask=batch.mask * ~work.extra[0][batch.index])
        after, before = super().client_step(ctx, shared, work, batch), work
        trains = batch.mask.sum() > 0
        return tree.map_leaves(lambda new, old: torch.where(trains, new, old), after, before)  # type: ignore[no-any-return]

    def client_final(self, ctx: Context, shared: Offered, work: LocalRun, data: ClientData) -> ClientResult:
        """Send θ_i^l and keep θ_i^(l-1); then θ_i^l <- θ_i^(l-1) + Σ_n w_n (θ_n^l - θ_i^(l-1)), and send w."""
        held, state = work.extra
        if ctx.phase == "train":
            return local_result(ctx, work, data, state=state, down=0.0)  # it starts from its own model
        ids = self._chosen(ctx, shared.affinity, data.client_id)
        step = first_order_step(ctx, work.models, shared.peers, ids, data, held, self.keep)
        down = tree.bits(work.models) * (ids != data.client_id).sum(dtype=torch.float64)
        message = Message(step.weights, ctx.client_weight(data), torch.full_like(down, tree.bits(ids)), down)
        return ClientResult(message, step, {})

    def _chosen(self, ctx: Context, affinity: Tensor, client_id: Tensor) -> Tensor:
        """Ids of the models that a client weights, its own first, by P or its row of P; all of them if it is unseen."""
        rank = -affinity.index_select(0, client_id.clamp(max=len(affinity) - 1).view(1))[0]
        count = ctx.num_clients if ctx.phase == "adapt" else self.num_neighbours
        epsilon = max(self.explore_probability - self.explore_decay * ctx.round_idx, 0.0)
        return greedy_neighbours(ctx, client_id, rank, count, epsilon, include_self=ctx.phase != "adapt")[0]

    def sent(self, ctx: Context, shared: Offered, client_id: int) -> Offered:
        """The models that a client chose, its own included, for phase `combine`; otherwise only its own."""
        if client_id >= ctx.num_clients:
            return Offered(shared.peers, shared.affinity[-1:])
        own = torch.tensor([client_id], device=ctx.lr.device)
        if ctx.phase == "combine":
            return Offered(some_peers(shared.peers, self._chosen(ctx, shared.affinity, own[0])), shared.affinity[own])
        return Offered(some_peers(shared.peers, own if ctx.phase == "init" else own[:0]), shared.affinity[:0])

    def server_step(self, ctx: Context, shared: Offered, reduced: Reduced, client_ids: Tensor) -> Offered:
        """Keep the models, then add to P."""
        if ctx.phase == "train":
            return shared._replace(peers=put_models(shared.peers, client_ids, reduced.value))
        return shared._replace(affinity=shared.affinity.index_add(0, client_ids, reduced.value))

    def collaboration(self, ctx: Context, shared: Offered, states: Mixed) -> Tensor:
        """w_n of the last step."""
        return states.shares


def _held_out(ctx: Context, data: ClientData, fraction: float) -> Tensor:
    """The held-out samples of a seen client, the same in every round.

    Args:
        ctx: the context.
        data: the client's samples.
        fraction: share of the samples, rounded down.

    Returns:
        True for ⌊fraction·n⌋ samples drawn at random, False for the others and for padding, [N]; for an unseen client,
        which does not train, all False.
    """
    positions = torch.arange(len(data.mask), device=data.mask.device).clamp(max=ctx.most_samples - 1)
    drawn = draws(ctx._replace(round_idx=0), "held out", ctx.most_samples, data.client_id).index_select(0, positions)
    rank = torch.argsort(torch.argsort(drawn.masked_fill(data.mask == 0, torch.inf), stable=True))
    count = torch.floor(fraction * data.num_samples + 1e-9) * (data.client_id < ctx.num_clients)
    return (rank < count) & (data.mask > 0)


def first_order_step(
    ctx: Context,
    previous: ModelState,
    peers: Peers,
    ids: Tensor,
    data: ClientData,
    held: Tensor,
    keep: Literal["previous", "trained"],
) -> Mixed:
    """θ⁻ + Σ_n w_n (θ_n − θ⁻) with the shares of `first_order_weights`.

    Args:
        ctx: the context.
        previous: θ⁻, leaves [1, ...].
        peers: the models of all clients, leaves [T, 1, ...].
        ids: clients whose models are available, without duplicates, [k].
        data: the client's samples.
        held: True for the samples in the mean L, [N]; if none is, L is the mean over all.
        keep: result if no weight is positive: θ⁻ or the client's own model among the peers.
    """
    fallback = previous if keep == "previous" else own_models(peers, data.client_id)
    models: ModelState = tree.map_leaves(lambda leaf: leaf[:, 0], models_of(peers, ids))
    both = tree.map_leaves(lambda one, others: torch.cat([one, others]), previous, models)
    rows = torch.where(held.any(), held, data.mask > 0)
    each = ctx.task.losses_of(both, data.x, data.y) * rows.unsqueeze(1)
    losses = each.sum(0, dtype=torch.float64) / rows.sum().clamp(min=1)
    away = tree.leaves(tree.sub(models.parameters, previous.parameters))
    distances = torch.stack([leaf.double().reshape(len(leaf), -1).square().sum(1) for leaf in away]).sum(0).sqrt()
    weights, shares = first_order_weights(losses, distances)
    # shares sum to 1, so the step is a mean: a single helpful model is kept bit for bit
    mean = tree.map_leaves(
        lambda leaf: (shares @ leaf.double().reshape(len(leaf), -1)).view(1, *leaf.shape[1:]), models
    )
    helped = shares.sum() > 0
    new = tree.map_leaves(lambda a, b: torch.where(helped, a, b), cast_like(mean, previous), fallback)
    none = torch.zeros(ctx.num_clients, dtype=torch.float64, device=ids.device)
    return Mixed(new, none.scatter(0, ids, weights), none.scatter(0, ids, shares))


def first_order_weights(losses: Tensor, distances: Tensor) -> tuple[Tensor, Tensor]:
    """w_n = (L(θ⁻) − L(θ_n)) / ‖θ_n − θ⁻‖, and the positive ones as shares, max(w, 0) / Σ max(w, 0).

    Args:
        losses: L of θ⁻ and of the models θ_n, [1 + k] float64.
        distances: ‖θ_n − θ⁻‖, [k] float64; the weight of a copy of θ⁻ is 0.

    Example:
        >>> w, shares = first_order_weights(torch.tensor([2.0, 1.0, 1.5, 2.5]), torch.tensor([2.0, 1.0, 1.0]))
        >>> w.tolist(), shares.tolist()
        ([0.5, 0.5, -0.5], [0.5, 0.5, 0.0])
    """
    weights = torch.where(distances > 0, (losses[0] - losses[1:]) / distances, 0.0)
    positive = weights.clamp(min=0)
    return weights, torch.where(positive.sum() > 0, positive / positive.sum(), 0.0)
