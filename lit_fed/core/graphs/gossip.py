"""Gossip: clients without a server, each of which mixes its models with those of its neighbours."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.graphs.mixing import restrict
from lit_fed.core.graphs.peers import Peers, links, put_models, same_start
from lit_fed.core.graphs.topology import Topology, adjacency
from lit_fed.core.types import ModelState, Tree

__all__ = ["gossip", "initial_peers", "traffic"]


def initial_peers(ctx: Context, num_models: int, *, common: bool) -> Peers:
    """Fresh models, M for each client: the same for all clients, or drawn for each of them."""
    peers = same_start(ctx.task.init(num_models, ctx.seed), ctx.num_clients)
    if common:
        return peers
    drawn = ctx.task.init(ctx.num_clients * num_models, ctx.seed)
    own = tree.map_leaves(lambda leaf: leaf.unflatten(0, (ctx.num_clients, num_models)), drawn)
    return put_models(peers, torch.arange(ctx.num_clients), own)


def gossip(ctx: Context, peers: Peers, client_ids: Tensor, models: ModelState, matrix: Tensor) -> Peers:
    """The peers after a round: those present have trained, and mix; what an absent client would give stays at home.

    Args:
        ctx: what every client knows.
        peers: as they were before the round.
        client_ids: those present, [C].
        models: what they trained, leaves [C, M, ...].
        matrix: W of all clients, [T, T].
    """
    matrix = matrix if ctx.present is None else restrict(matrix, ctx.present.cpu())
    return put_models(peers, client_ids, models, matrix)


def traffic(ctx: Context, topology: Topology | None, value: Tree, client_id: Tensor) -> Tensor:
    """Bits of a value that goes to each neighbour that takes part in the phase, [] float64; as many come back.

    Without a topology it goes to a server, once.
    """
    if topology is None:
        return tree.bits(value) * torch.ones_like(client_id, dtype=torch.float64)
    edges = adjacency(topology, ctx.num_clients, ctx.seed, ctx.round_idx)
    return tree.bits(value) * links(ctx, edges, client_id)
