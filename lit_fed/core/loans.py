"""Models that are trained by others than their owners: borrowed, worked on, and given back with a weight.

Two exchanges: `gradient` gives back the gradient over all samples, which goes through the owner's optimizer;
`pseudo_gradient` gives back what local steps made of the model, and the owner takes the weighted mean of the changes.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.graphs.peers import Peers, models_of, place, same_start
from lit_fed.core.local_solver import OptimizerState
from lit_fed.core.reduce import cast_like
from lit_fed.core.types import Batch, ClientData, Message, ModelState, Tree

__all__ = [
    "Borrowed",
    "Exchange",
    "Owned",
    "Returned",
    "borrow",
    "give_back",
    "loan_work",
    "owners",
    "take_back",
    "work_on",
]

Exchange = Literal["gradient", "pseudo_gradient"]


class Owned(NamedTuple):
    """One model for each client, and its owner's optimizer."""

    peers: Peers  # leaves [T, 1, ...]
    optimizer: OptimizerState | None  # leaves [T, ...]; None where no gradients are given back


class Borrowed(NamedTuple):
    """A client's work on models of others."""

    models: ModelState  # leaves [k, ...]
    optimizer: Tree  # of the local steps; () without any
    gradient: dict[str, Tensor]  # so far, leaves [k, ...]; {} where local steps are taken
    divisor: Tensor  # by what the sum of losses is divided, []
    owners: Tensor  # whose models, [k]
    asked: Tensor  # False for owners that are absent, [k]
    weights: Tensor  # with which they are given back, [k] float64; 0 where the owner is absent
    kept: Tree = None  # what the client keeps of its own


class Returned(NamedTuple):
    """What a client gives back."""

    owners: Tensor  # [k]
    weights: Tensor  # [k] float64
    models: ModelState  # the gradient or the new parameters, and the running statistics, leaves [k, ...]


def owners(ctx: Context, exchange: Exchange, *, common_start: bool) -> Owned:
    """The first models of all clients: all alike, or each from a seed of its own."""
    peers = same_start(ctx.task.init(1, ctx.seed), ctx.num_clients)
    if not common_start:
        own = tree.map_leaves(lambda leaf: leaf.unsqueeze(1), ctx.task.init(ctx.num_clients, ctx.seed))
        peers = place(peers, torch.arange(ctx.num_clients), own)
    if exchange == "pseudo_gradient":
        return Owned(peers, None)
    optimizer = ctx.solver.init(ModelState(peers.parameters, {}))
    return Owned(peers, optimizer._replace(step=optimizer.step.repeat(ctx.num_clients)))


def borrow(owned: Owned, ids: Tensor) -> ModelState:
    """The models of some clients [k], leaves [k, ...]."""
    return tree.map_leaves(lambda leaf: leaf[:, 0], models_of(owned.peers, ids))  # type: ignore[no-any-return]


def loan_work(
    ctx: Context, exchange: Exchange, models: ModelState, ids: Tensor, asked: Tensor, divisor: Tensor, weights: Tensor
) -> Borrowed:
    """The start of the work on borrowed models.

    Args:
        ctx: what every client knows.
        exchange: what will be given back.
        models: leaves [k, ...].
        ids: their owners, [k].
        asked: False for owners that are absent, [k].
        divisor: by what the sum of losses is divided, [].
        weights: of all clients' models for this client, [T] float64.
    """
    steps = exchange == "pseudo_gradient"
    optimizer = ctx.solver.init(models) if steps else ()
    gradient = {} if steps else tree.zeros_like(models.parameters)
    return Borrowed(models, optimizer, gradient, divisor, ids, asked, weights.gather(0, ids) * asked)


def work_on(ctx: Context, exchange: Exchange, work: Borrowed, batch: Batch) -> Borrowed:
    """The gradient of one more batch, or one more local step."""
    if exchange == "gradient":
        gradient, buffers = ctx.task.grad(work.models, batch)
        share = batch.mask.sum() / work.divisor
        return work._replace(
            models=work.models._replace(buffers=buffers),
            gradient=tree.add(work.gradient, tree.scale(gradient, share)),
        )
    models, optimizer = ctx.solver.move(ctx.task, work.models, work.optimizer, batch, ctx.lr)
    return work._replace(models=models, optimizer=optimizer)


def give_back(ctx: Context, work: Borrowed, data: ClientData) -> Message:
    """What goes to the owners; from each of them but the client itself a model came, and as much goes back."""
    found = ModelState(work.gradient or work.models.parameters, work.models.buffers)
    others = (work.asked & (work.owners != data.client_id)).sum(dtype=torch.float64)
    bits = tree.bits(found) // len(work.owners) * others
    return Message(Returned(work.owners, work.weights, found), ctx.client_weight(data), bits, bits)


def take_back(ctx: Context, owned: Owned, returned: Returned) -> Owned:
    """All owners, after they took in what clients gave back, leaves [C, k, ...]: φ_i ← Opt(φ_i, Σ_j w_ji g_ji).

    Changes by local steps, and running statistics, move a model at most to the weighted mean of what came back,
    φ_i + Σ_j w_ji (φ_ji − φ_i) / max(1, Σ_j w_ji): the length of Adam's steps knows nothing of how many clients use a
    model, and a variance would become negative beyond it. Owners that are absent stay as they are.
    """
    rows: Returned = tree.map_leaves(lambda leaf: leaf.flatten(0, 1), returned)
    rows = rows._replace(models=tree.map_leaves(lambda leaf: leaf.unsqueeze(1), rows.models))
    old, num_clients = owned.peers.each, ctx.num_clients
    total: Tensor = _sums(num_clients, rows, torch.ones_like(rows.weights))
    found: ModelState = _sums(num_clients, rows, rows.models)
    share = 1 / total.clamp(min=1)
    means = tree.map_leaves(partial(_by, share), found)
    moved: ModelState = tree.map_leaves(partial(_moved, 1 - share * total), old, means)
    optimizer, parameters = None, moved.parameters  # which mean nothing where gradients came back
    if owned.optimizer is not None:
        gradient = cast_like(found.parameters, old.parameters)
        step = vmap(lambda *own: ctx.solver.update(own[0], own[1], own[2], ctx.lr))
        parameters, optimizer = step(old.parameters, gradient, owned.optimizer)
        if ctx.present is not None:
            parameters = tree.map_leaves(partial(_chosen, ctx.present), parameters, old.parameters)
            optimizer = tree.map_leaves(partial(_chosen, ctx.present), optimizer, owned.optimizer)
    new = cast_like(ModelState(parameters, moved.buffers), old)
    return Owned(place(owned.peers, torch.arange(num_clients, device=total.device), new), optimizer)


def _sums(num_clients: int, rows: Returned, leaves: Tree) -> Tree:
    """Σ_r w_r x_r over the rows r of each owner, leaves [T, ...] float64."""

    def total(leaf: Tensor) -> Tensor:
        weighted = leaf.reshape(len(leaf), -1).double() * rows.weights[:, None]
        sums = weighted.new_zeros(num_clients, weighted.shape[1]).index_add(0, rows.owners, weighted)
        return sums.view(num_clients, *leaf.shape[1:])

    return tree.map_leaves(total, leaves)


def _by(factor: Tensor, leaf: Tensor) -> Tensor:
    return factor.view(-1, *[1] * (leaf.ndim - 1)) * leaf


def _moved(kept: Tensor, old: Tensor, new: Tensor) -> Tensor:
    return _by(kept, old) + new


def _chosen(present: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(present.view(-1, *[1] * (old.ndim - 1)), new, old)
