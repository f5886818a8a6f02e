"""A tree of clusters, and what a server remembers of its splits, so that newcomers can go down the same way.

Clusters are numbered as they appear: split s divides an existing cluster and makes cluster s + 1 of those who leave it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.types import ModelState

__all__ = ["Clusters", "SplitMemory", "descend", "no_splits", "one_cluster", "remember", "split"]


class SplitMemory(NamedTuple):
    """Room for S splits of T clients."""

    parent: Tensor  # [S] int64, the cluster that was divided; -1: no such split yet
    side: Tensor  # [S, T] int64: 1 for a client that stayed in the parent, 2 for one that left it, 0 for all others
    models: ModelState  # the parent's model before the split, leaves [S, ...]
    updates: dict[str, Tensor]  # updates of the parent's clients from that model, leaves [S, T, ...]


class Clusters(NamedTuple):
    """What a server knows that divides its T clients into up to C clusters."""

    models: ModelState  # of each cluster, leaves [C, ...]; those that do not exist yet hold the initial model
    cluster: Tensor  # of each client, [T] int64
    splits: SplitMemory  # with room for C − 1 splits, or for none


def one_cluster(initial: ModelState, most: int, num_clients: int, *, remembers: bool) -> Clusters:
    """All clients in one cluster; models [1, ...] stand in the place of the `most` that there can be."""
    models = tree.map_leaves(lambda leaf: leaf.repeat_interleave(most, 0), initial)
    splits = no_splits(initial, most - 1 if remembers else 0, num_clients)
    return Clusters(models, torch.zeros(num_clients, dtype=torch.int64), splits)


def split(clusters: Clusters, parent: int, leavers: Tensor, updates: dict[str, Tensor]) -> Clusters:
    """The clusters with one more, of those who leave their parent.

    Args:
        clusters: the clusters so far.
        parent: the cluster that is divided.
        leavers: clients that leave it, [n] int64.
        updates: of all clients from the models of their clusters, leaves [T, ...].
    """
    count = int(clusters.cluster.max()) + 1
    side = (clusters.cluster == parent).long().index_fill(0, leavers, 2)
    splits = remember(clusters.splits, count - 1, parent, side, tree.index(clusters.models, parent), updates)
    return clusters._replace(cluster=torch.where(side == 2, count, clusters.cluster), splits=splits)


def no_splits(models: ModelState, num_splits: int, num_clients: int) -> SplitMemory:
    """Memory without a split yet; models [1, ...] stand in the place of those to come."""
    side = torch.zeros(num_splits, num_clients, dtype=torch.int64)
    updates = {name: leaf.new_zeros(*side.shape, *leaf.shape[1:]) for name, leaf in models.parameters.items()}
    held = tree.map_leaves(lambda leaf: leaf.repeat_interleave(num_splits, 0), models)
    return SplitMemory(torch.full((num_splits,), -1), side, held, updates)


def remember(
    memory: SplitMemory, split: int, parent: int, side: Tensor, models: ModelState, updates: dict[str, Tensor]
) -> SplitMemory:
    """The memory with one more split; a memory without room stays empty.

    Args:
        memory: the memory so far.
        split: s.
        parent: the cluster that is divided.
        side: of each client, as in `SplitMemory`, [T].
        models: the parent's, leaves without a leading axis.
        updates: of all clients, leaves [T, ...]; those of other clusters are left out.
    """
    if not len(memory.parent):
        return memory
    inside = {name: leaf * (side > 0).to(leaf.dtype).view(-1, *[1] * (leaf.ndim - 1)) for name, leaf in updates.items()}
    row = torch.full((1,), split, device=side.device)
    new = SplitMemory(torch.full_like(side[0], parent), side, models, inside)
    return tree.map_leaves(lambda table, one: table.index_copy(0, row, one[None]), memory, new)  # type: ignore[no-any-return]


def descend(memory: SplitMemory, trained: ModelState, cluster: Tensor) -> Tensor:
    """A newcomer's cluster: at each split to the side with the update whose direction is most like its own.

    Args:
        memory: the splits.
        trained: the newcomer's models, trained from those of the first splits, leaves [s, ...].
        cluster: where it starts, [] int64.

    Returns:
        Where it arrives, [] int64; between equals it stays in the parent.
    """
    count = len(tree.leaves(trained)[0])
    if not count:
        return cluster
    parent, side, models, updates = tree.index(memory, slice(0, count))
    dots = squares = torch.zeros((), dtype=torch.float64, device=cluster.device)
    for name, cached in updates.items():
        own = (trained.parameters[name] - models.parameters[name]).reshape(count, -1, 1)  # [s, d, 1]
        rows = cached.reshape(*cached.shape[:2], -1)  # [s, T, d]
        dots, squares = dots + (rows @ own).squeeze(2), squares + rows.square().sum(2)
    cosine = dots / squares.sqrt().clamp(min=1e-300)  # [s, T], up to the newcomer's own norm
    for s in range(count):
        stay, leave = (cosine[s].masked_fill(side[s] != one, -torch.inf).amax() for one in (1, 2))
        cluster = torch.where((cluster == parent[s]) & (leave > stay), s + 1, cluster)
    return cluster
