"""Similarity of clients' models or updates: inner products, cosines and squared distances, summed over all leaves."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.types import Tree

__all__ = ["cosines", "inner_products", "square_distances"]


def inner_products(vectors: Tree) -> Tensor:
    """⟨v_i, v_j⟩ of n vectors with leaves [n, ...], [n, n] float64."""
    flat = [leaf.reshape(len(leaf), -1).double() for leaf in tree.leaves(vectors)]
    return torch.stack([rows @ rows.T for rows in flat]).sum(0)


def cosines(products: Tensor) -> Tensor:
    """Cosines of n vectors from their inner products, [n, n]; 0 for a vector of length 0."""
    norms = products.diagonal().sqrt().clamp(min=1e-150)
    return products / norms / norms[:, None]


def square_distances(rows: Tree, columns: Tree) -> Tensor:
    """‖a_i − b_j‖², [R, T] float64, centred at the mean of the b_j, so that a common offset costs no digits.

    Args:
        rows: a_i, leaves [R, ...].
        columns: b_j, leaves [T, ...].

    Example:
        >>> points = {"w": torch.tensor([[0.0, 0.0], [3.0, 4.0]])}
        >>> square_distances(points, points).tolist()
        [[0.0, 25.0], [25.0, 0.0]]
    """
    pairs = zip(tree.leaves(rows), tree.leaves(columns), strict=True)
    return torch.stack([_square_distances(a, b) for a, b in pairs]).sum(0)


def _square_distances(rows: Tensor, columns: Tensor) -> Tensor:
    a, b = (leaf.reshape(len(leaf), -1).double() for leaf in (rows, columns))
    a, b = a - b.mean(0), b - b.mean(0)
    return (a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T).clamp(min=0)
