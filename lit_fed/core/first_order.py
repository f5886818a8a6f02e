"""First-order weights of other models: by how much each lowers a loss, for the length of the way to it."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.graphs.peers import Peers, draws, models_of, own_models
from lit_fed.core.reduce import cast_like
from lit_fed.core.types import ClientData, ModelState

__all__ = ["Mixed", "first_order_step", "first_order_weights", "held_out"]


class Mixed(NamedTuple):
    """What a client makes of the models of some clients."""

    models: ModelState  # leaves [1, ...]
    weights: Tensor  # [T] float64; 0 for a model that was not at hand
    shares: Tensor  # [T] float64; sums to 1, or is 0 where no weight is positive


def held_out(ctx: Context, data: ClientData, fraction: float) -> Tensor:
    """The samples that a client of the training puts aside, the same in every round.

    Args:
        ctx: what every client knows.
        data: the client's samples.
        fraction: share of the samples, rounded down.

    Returns:
        True for ⌊fraction·n⌋ samples drawn at random, False for the others and for padding, [N]; of a client that was
        not in training for none, as it does not train.
    """
    places = torch.arange(len(data.mask), device=data.mask.device).clamp(max=ctx.most_samples - 1)
    drawn = draws(ctx._replace(round_idx=0), "held out", ctx.most_samples, data.client_id).index_select(0, places)
    rank = torch.argsort(torch.argsort(drawn.masked_fill(data.mask == 0, torch.inf), stable=True))
    count = torch.floor(fraction * data.num_samples + 1e-9) * (data.client_id < ctx.num_clients)
    return (rank < count) & (data.mask > 0)


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
        ctx: what every client knows.
        previous: θ⁻, leaves [1, ...].
        peers: the models of all clients, leaves [T, 1, ...].
        ids: whose models are at hand, each once, [k].
        data: the client's samples.
        held: True for those that L is the mean over, [N]; where it never is, L is the mean over all.
        keep: what is left where no weight is positive, θ⁻ or the client's own model among the peers.
    """
    fallback = previous if keep == "previous" else own_models(peers, data.client_id)
    models: ModelState = tree.map_leaves(lambda leaf: leaf[:, 0], models_of(peers, ids))
    both = tree.map_leaves(lambda one, others: torch.cat([one, others]), previous, models)
    rows = torch.where(held.any(), held, data.mask > 0)
    each = ctx.task.losses(ctx.task.outputs(both, data.x), data.y) * rows.unsqueeze(1)
    losses = each.sum(0, dtype=torch.float64) / rows.sum().clamp(min=1)
    away = tree.leaves(tree.sub(models.parameters, previous.parameters))
    distances = torch.stack([leaf.double().reshape(len(leaf), -1).square().sum(1) for leaf in away]).sum(0).sqrt()
    weights, shares = first_order_weights(losses, distances)
    # shares sum to 1, so the step is a mean: the only model that helps is kept bit for bit
    mean = tree.map_leaves(
        lambda leaf: (shares @ leaf.double().reshape(len(leaf), -1)).view(1, *leaf.shape[1:]), models
    )
    helped = shares.sum() > 0
    new = tree.map_leaves(lambda a, b: torch.where(helped, a, b), cast_like(mean, previous), fallback)
    none = torch.zeros(ctx.num_clients, dtype=torch.float64, device=ids.device)
    return Mixed(new, none.scatter(0, ids, weights), none.scatter(0, ids, shares))
