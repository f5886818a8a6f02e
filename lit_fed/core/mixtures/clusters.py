"""Clusters of clients with one model each: the choice of a cluster, and the work and state of its members."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.reduce import cast_like
from lit_fed.core.types import ModelState

__all__ = ["ClusterChoice", "Member", "UnseenMember", "best_fit", "cluster_averages", "one_hot"]


class ClusterChoice(NamedTuple):
    """A client's state, for reports only: the algorithm chooses its cluster again whenever it trains or is served."""

    mixture: Tensor  # [C], one-hot; uniform before the first choice


class UnseenMember(NamedTuple):
    """State of an unseen client before the choice of its cluster."""

    mixture: Tensor  # [C]


Member = ClusterChoice | UnseenMember


def best_fit(losses: Tensor, mask: Tensor, count: Tensor | None = None) -> Tensor:
    """The cluster whose model has the lowest mean loss on a client's samples, [] int64; the first in a tie.

    Args:
        losses: losses of each sample under the model of each cluster, [N, C].
        mask: 1 for a sample, 0 for padding, [N].
        count: number [] of existing clusters, which are the first of the C; None: all.

    Example:
        >>> int(best_fit(torch.tensor([[3.0, 1.0, 2.0], [0.0, 1.0, 0.0], [0.0, 9.0, 0.0]]), torch.tensor([1, 1, 0])))
        1
    """
    total = (losses * mask.unsqueeze(1)).sum(0, dtype=torch.float64)  # has the same minimum as the mean
    if count is not None:
        total = total.masked_fill(torch.arange(len(total), device=total.device) >= count, torch.inf)
    return total.argmin()


def one_hot(cluster: Tensor, num_clusters: int, dtype: torch.dtype) -> Tensor:
    """One-hot mixture weights [C] of a cluster [].

    Example:
        >>> one_hot(torch.tensor(1), 3, torch.float32).tolist()
        [0.0, 1.0, 0.0]
    """
    return (torch.arange(num_clusters, device=cluster.device) == cluster).to(dtype)


def cluster_averages(models: ModelState, sent: ModelState, cluster: Tensor, weight: Tensor) -> ModelState:
    """The average of each cluster over its members; a cluster without members keeps its model.

    Args:
        models: the clusters' models, leaves [C, ...].
        sent: the clients' models, leaves [T, ...].
        cluster: cluster of each client, [T] int64.
        weight: weight of each client, [T] float64.
    """
    numbers = torch.arange(len(tree.leaves(models)[0]), device=cluster.device)
    weight = (cluster == numbers[:, None]) * weight  # [C, T]
    total = weight.sum(1, keepdim=True)

    def average(rows: Tensor, old: Tensor) -> Tensor:
        mean = weight @ rows.reshape(len(rows), -1).double() / total.clamp(min=1)
        return torch.where(total > 0, mean, old.reshape(len(old), -1).double()).view(old.shape)

    return cast_like(tree.map_leaves(average, sent, models), models)  # type: ignore[no-any-return]
