"""When a cluster of clients is divided in two: its model stands still, while some of them would still move.

Sattler, Müller, Samek 2020, https://arxiv.org/abs/1910.01991, Algorithms 1 and 2.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.bipartition import bipartition, cosines, separation
from lit_fed.core.split_memory import Clusters, split

__all__ = ["DivisionRule", "divide", "inner_products", "mean_and_longest"]


class DivisionRule(NamedTuple):
    """What has to hold for a division."""

    mean_norm_below: float  # ε1, of the average update
    max_norm_above: float  # ε2, of the longest update
    relative: bool  # whether ε1 is in units of the longest update
    min_cluster_size: int  # clusters of no more clients stay together
    gamma_max: float | None  # least separation of the two sets; None: any
    linkage: Literal["single", "complete"]  # how to divide


def divide(clusters: Clusters, updates: dict[str, Tensor], weight: Tensor, rule: DivisionRule) -> Clusters:
    """The clusters after the splits of a round, as far as there is room for more; new ones wait for the next round.

    Args:
        clusters: before.
        updates: of the clients from the models of their clusters, leaves [T, ...].
        weight: of the clients, [T].
        rule: which of them are divided.
    """
    products, most = inner_products(updates), len(tree.leaves(clusters.models)[0])
    for c in range(int(clusters.cluster.max()) + 1):
        if int(clusters.cluster.max()) + 1 == most:
            break
        members = (clusters.cluster == c).nonzero()[:, 0]
        leave = _leave(products[members][:, members], weight[members], rule)
        if leave is not None:
            clusters = split(clusters, c, members[leave], updates)
    return clusters


def _leave(products: Tensor, weight: Tensor, rule: DivisionRule) -> Tensor | None:
    """Which members leave a cluster, [n] bool, from the products of their updates [n, n]; None: all stay."""
    mean_norm, max_norm = mean_and_longest(products, weight)
    at_rest = mean_norm < rule.mean_norm_below * (max_norm if rule.relative else 1)
    if len(weight) <= rule.min_cluster_size or not at_rest & (max_norm > rule.max_norm_above):
        return None
    similarity = cosines(products)
    leave = bipartition(similarity, rule.linkage)
    far_apart = rule.gamma_max is None or separation(similarity, leave) > rule.gamma_max
    return leave if far_apart else None


def inner_products(vectors: dict[str, Tensor]) -> Tensor:
    """⟨Δ_i, Δ_j⟩ of n vectors with leaves [n, ...], [n, n] float64."""
    flat = [leaf.reshape(len(leaf), -1).double() for leaf in vectors.values()]
    return torch.stack([rows @ rows.T for rows in flat]).sum(0)


def mean_and_longest(products: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Length of the weighted mean of n vectors and of the longest one, [] each.

    Args:
        products: their inner products, [n, n].
        weight: of each vector, [n].

    Example:
        >>> mean, longest = mean_and_longest(torch.tensor([[9.0, -3.0], [-3.0, 1.0]]), torch.tensor([1.0, 3.0]))
        >>> float(mean), float(longest)
        (0.0, 3.0)
    """
    share = weight / weight.sum().clamp(min=1)
    return (share @ products @ share).clamp(min=0).sqrt(), products.diagonal().max().sqrt()
