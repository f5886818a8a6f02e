"""Models of clients that exchange them over a graph, without a server."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.reduce import cast_like
from lit_fed.core.seeds import generator
from lit_fed.core.types import Leaves, ModelState, Tree

__all__ = [
    "PeerMessage", "Peers", "combine", "draws", "links", "lone_peer", "models_of", "own_models", "put_models",
    "row_of", "same_start", "some_peers",
]  # fmt: skip

NOBODY = -1  # not a client id


class Peers(NamedTuple):
    """The models of all clients, or of those that one client receives.

    `parameters` and `buffers` are not a `ModelState`, since a client holds and sends one row only.
    """

    parameters: Leaves  # leaves [T, M, ...]
    buffers: Leaves  # leaves [T, M, ...]
    mean: ModelState  # mean over clients, the start of unseen clients, leaves [M, ...]
    client_ids: Tensor | None = None  # [k] int64, clients of the rows, without duplicates; None: all T clients
    shares: Tensor | None = None  # [T, M] float64, weights in averages from each client's last round; None: equal

    @property
    def each(self) -> ModelState:
        """The clients' models, leaves [T, M, ...]."""
        return ModelState(self.parameters, self.buffers)


class PeerMessage(NamedTuple):
    """Message value of a client whose models are averaged by shares."""

    models: ModelState  # leaves [M, ...]
    share: Tensor  # [M] float64


def same_start(models: ModelState, num_clients: int) -> Peers:
    """Peers that all hold these models, leaves [M, ...], as one copy expanded to T rows."""
    each = tree.map_leaves(lambda leaf: leaf.expand(num_clients, *leaf.shape), models)
    return Peers(each.parameters, each.buffers, models)


def own_models(peers: Peers, client_id: Tensor, unseen: ModelState | None = None) -> ModelState:
    """A client's models, leaves [M, ...]; unseen clients, with ids from T, get `unseen` or the mean."""
    if peers.client_ids is None:
        known = client_id < len(next(iter(peers.parameters.values())))
    else:
        known = (peers.client_ids == client_id).any()
    own: ModelState = tree.index(models_of(peers, client_id.view(1)), 0)
    other = peers.mean if unseen is None else unseen
    if not other.parameters:  # peers without a mean hold only seen clients, including this one
        return own
    return tree.map_leaves(lambda one, new: torch.where(known, one, new), own, other)  # type: ignore[no-any-return]


def models_of(peers: Peers, client_ids: Tensor) -> ModelState:
    """The models of clients [k], leaves [k, M, ...]; for unseen ids the rows are arbitrary."""
    if peers.client_ids is None:
        places = client_ids.clamp(max=len(next(iter(peers.parameters.values()))) - 1)
    else:
        places = (peers.client_ids == client_ids.unsqueeze(1)).long().argmax(1)
    return tree.map_leaves(lambda leaf: leaf.index_select(0, places), peers.each)  # type: ignore[no-any-return]


def some_peers(peers: Peers, client_ids: Tensor) -> Peers:
    """The models of these clients only [k], without the mean."""
    return Peers(*models_of(peers, client_ids), ModelState({}, {}), client_ids)


def lone_peer(models: ModelState, client_id: int, num_clients: int) -> Peers:
    """The peers of a client that receives only its own models, or the mean if it is unseen.

    Args:
        models: the received models, leaves [M, ...].
        client_id: the client.
        num_clients: T.
    """
    parameters, buffers = tree.map_leaves(lambda leaf: leaf.unsqueeze(0), models)
    device = next(iter(parameters.values())).device
    ids = torch.tensor([client_id if client_id < num_clients else NOBODY], device=device)
    return Peers(parameters, buffers, models, ids)


def row_of(peers: Peers, client_id: int, num_clients: int) -> Peers:
    """The peers as one client receives them: its own models, or the mean if it is unseen."""
    device = next(iter(peers.parameters.values())).device
    own = own_models(peers, torch.tensor(client_id, device=device))
    return lone_peer(own, client_id, num_clients)._replace(mean=ModelState({}, {}))


def combine(matrix: Tensor, stacked: Tree) -> Tree:
    """X ← WX: row i of the result is Σ_j W_ij x_j, summed in float64 and cast to the types of the leaves.

    Args:
        matrix: W, [R, T] float64.
        stacked: leaves [T, ...].
    """
    return cast_like(tree.map_leaves(lambda leaf: _product(matrix, leaf), stacked), stacked)


def _product(matrix: Tensor, leaf: Tensor) -> Tensor:
    rows = leaf.reshape(len(leaf), -1).double()
    return (matrix.to(leaf.device) @ rows).view(len(matrix), *leaf.shape[1:])


def put_models(
    peers: Peers, client_ids: Tensor, models: ModelState, matrix: Tensor | None = None, *, mix_buffers: bool = True,
    shares: Tensor | None = None,
) -> Peers:  # fmt: skip
    """Replace the models of some clients, then mix.

    Args:
        peers: the peers before.
        client_ids: clients with new models, [C].
        models: new models, leaves [C, M, ...].
        matrix: W, [T, T]; None: no mixing.
        mix_buffers: also mix running statistics; False if W has negative entries, which would make variances negative.
        shares: weight of each client's models in averages, [T, M]; None: equal weights.
    """
    each = tree.map_leaves(lambda leaf, new: leaf.index_copy(0, client_ids, new), peers.each, models)
    if shares is not None:
        assert matrix is not None
        each = _by_shares(matrix, shares, each)
        mean: ModelState = tree.index(_by_shares(torch.ones_like(matrix[:1]), shares, each), 0)
        return Peers(each.parameters, each.buffers, mean, shares=shares)
    if matrix is not None:
        mixed = combine(matrix, each if mix_buffers else each._replace(buffers={}))
        each = mixed if mix_buffers else each._replace(parameters=mixed.parameters)
    num_clients = len(next(iter(each.parameters.values())))
    average = torch.full((1, num_clients), 1 / num_clients, dtype=torch.float64)
    return Peers(each.parameters, each.buffers, tree.index(combine(average, each), 0))


def _by_shares(matrix: Tensor, shares: Tensor, each: ModelState) -> ModelState:
    """Σ_j W_ij s_jm x_jm / Σ_j W_ij s_jm, in the leaves' own types; Σ_j W_ij x_jm / Σ_j W_ij where all shares are 0."""
    mass = matrix @ shares
    even = mass <= 0
    total = torch.where(even, matrix.sum(1, keepdim=True), mass)

    def average(leaf: Tensor) -> Tensor:
        rows = leaf.reshape(*shares.shape, -1).double()
        weighted, plain = _product(matrix, rows * shares[..., None]), _product(matrix, rows)
        mixed = torch.where(even[..., None], plain, weighted) / total[..., None]
        return mixed.view(len(matrix), *leaf.shape[1:])

    return cast_like(tree.map_leaves(average, each), each)  # type: ignore[no-any-return]


def links(ctx: Context, edges: Tensor, client_id: Tensor) -> Tensor:
    """Number of a client's neighbours that take part in the phase, [] float64.

    Args:
        ctx: the context.
        edges: adjacency, [T, T] float64.
        client_id: the client; the number is meaningless for an unseen one.
    """
    row = edges.to(client_id.device).index_select(0, client_id.clamp(max=len(edges) - 1).view(1))[0]
    return (row if ctx.present is None else row * ctx.present).sum()


def draws(ctx: Context, purpose: str, count: int, client_id: Tensor) -> Tensor:
    """Random numbers in [0, 1) of a client in this round, [count] float64; unseen clients share one row."""
    table = _table(ctx.seed, ctx.round_idx, purpose, ctx.num_clients + 1, count).to(client_id.device)
    return table.index_select(0, client_id.clamp(max=ctx.num_clients).view(1))[0]


@lru_cache(maxsize=4)
def _table(seed: int, round_idx: int, purpose: str, rows: int, count: int) -> Tensor:
    return torch.from_numpy(generator(seed, round_idx, 0, purpose).random((rows, count)))
