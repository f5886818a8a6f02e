"""ADMM on a bipartite graph: clients are heads or tails, and all neighbours of a client are in the other group.

It minimises Σ_i f_i(x_i) with x_i = x_j for neighbours. A client needs the models sent by its neighbours and the signed
sum α_i of its edges' multipliers, which follows from the models sent.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import LocalRun
from lit_fed.core.context import Context
from lit_fed.core.graphs.peers import Peers, combine, same_start
from lit_fed.core.graphs.topology import Topology, adjacency, two_colours
from lit_fed.core.solvers.penalised_solve import penalised_run
from lit_fed.core.types import ClientData, Leaves, LocalWork, ModelState, Phase, Tree

__all__ = [
    "CostedNetwork", "GroupNetwork", "augmented", "costed_network", "group_phases", "initial_network",
    "multiplier_step", "neighbours_of", "two_groups",
]  # fmt: skip


class GroupNetwork(NamedTuple):
    """The models sent and the multipliers."""

    peers: Peers  # last models sent by each client, leaves [T, 1, ...]
    dual: Leaves  # α_i, leaves [T, 1, ...]; they sum to 0


class CostedNetwork(NamedTuple):
    """A `GroupNetwork` whose messages differ in size."""

    network: GroupNetwork
    cost: Tensor  # [T] float64, bits of each client's last message to all its neighbours


def initial_network(models: ModelState, num_clients: int) -> GroupNetwork:
    """The network in which all clients have sent these models, leaves [1, ...], and α = 0."""
    peers = same_start(models, num_clients)
    return GroupNetwork(peers, tree.zeros_like(peers.parameters))


def costed_network(models: ModelState, num_clients: int) -> CostedNetwork:
    """`initial_network` for messages of different size, with cost 0."""
    device = next(iter(models.parameters.values())).device
    return CostedNetwork(
        initial_network(models, num_clients), torch.zeros(num_clients, dtype=torch.float64, device=device)
    )


@lru_cache(maxsize=4)
def two_groups(topology: Topology, num_clients: int, seed: int) -> tuple[Tensor, Tensor]:
    """Heads, [T] bool, and adjacency [T, T] of a graph that does not change.

    Raises:
        ConfigError: if the graph is not bipartite.
    """
    edges = adjacency(topology, num_clients, seed, 0)
    return two_colours(edges), edges


def group_phases(client_ids: Tensor, heads: Tensor, work: LocalWork) -> tuple[Phase, ...]:
    """Phases `heads` and `tails`, without empty ones; a client sampled twice counts once."""
    ids = torch.unique(client_ids)
    groups = ("heads", ids[heads[ids]]), ("tails", ids[~heads[ids]])
    return tuple(Phase(name, chosen, work) for name, chosen in groups if len(chosen))


def neighbours_of(edges: Tensor, client_id: Tensor) -> Tensor:
    """A client's row [T] of the adjacency [R, T], R >= T; the last row for an unseen client."""
    return edges.to(client_id.device).index_select(0, client_id.clamp(max=len(edges) - 1).view(1))[0]


def augmented(
    ctx: Context, network: GroupNetwork, state: Tree, data: ClientData, edges: Tensor, penalty: float
) -> LocalRun:
    """Work on f_i(x) + ⟨x, α_i − ρ·Σ_j x_j⟩ + ρ·d_i/2·‖x‖², over the d_i neighbours j; an unseen client has no α_i.

    Args:
        ctx: the context.
        network: the models sent and the multipliers.
        state: the client's state; it starts from `state.models`.
        data: its samples.
        edges: adjacency, [T, T]; [T + 1, T] with a row for unseen clients.
        penalty: ρ.
    """
    known, row = data.client_id < ctx.num_clients, neighbours_of(edges, data.client_id)
    client_id = data.client_id.clamp(max=ctx.num_clients - 1)

    def pull(dual: Tensor, sent: Tensor) -> Tensor:
        own = dual.index_select(0, client_id.view(1))[0]
        others = (row.to(sent.dtype) @ sent.reshape(len(sent), -1)).view(own.shape)
        return torch.where(known, own, 0.0) - penalty * others

    linear = tree.map_leaves(pull, network.dual, network.peers.parameters)
    return penalised_run(ctx, state, penalty * row.sum(), linear, ctx.client_share(data))


def multiplier_step(network: GroupNetwork, edges: Tensor, penalty: float) -> GroupNetwork:
    """α_i <- α_i + ρ·Σ_j (x_i − x_j) over the neighbours j, with the models that both sent.

    Args:
        network: the models sent and the multipliers.
        edges: adjacency, [T, T].
        penalty: ρ.
    """
    laplacian = torch.diag(edges.sum(1)) - edges
    return network._replace(dual=tree.add(network.dual, combine(penalty * laplacian, network.peers.parameters)))
