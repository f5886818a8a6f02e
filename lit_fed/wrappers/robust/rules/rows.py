"""The deltas of m messages as m rows of numbers for robust rules, in pieces that fit into the caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.types import Tree

__all__ = ["LARGEST", "PIECE_NUMBERS", "Rows", "distances_from", "sorted_rows", "squared_distances", "within"]

PIECE_NUMBERS = 2**17
"""Numbers of all rows together that are looked at at once on a CPU."""

LARGEST = 1e150
"""Numbers beyond it count as infinite, since their squares are."""


@dataclass(frozen=True)
class Rows:
    """m rows X_i = value_i − known of d numbers: all floating leaves of a message, concatenated.

    Integers, such as counters of batches, are excluded.

    Args:
        values: the messages, leaves [m, ...].
        reference: the server's reference, leaves [...].
        mix: weights of mixed rows, [k, m] float64, each summing to 1; None: the rows themselves.
    """

    values: Tree
    reference: Tree
    mix: Tensor | None = None

    @property
    def num_rows(self) -> int:
        """Number of rows, m; k if mixed."""
        return int(tree.leaves(self.values)[0].shape[0] if self.mix is None else self.mix.shape[0])

    def mixed(self, mix: Tensor) -> Rows:
        """Weighted means of these rows, by weights [k, m] float64."""
        return replace(self, mix=mix if self.mix is None else mix @ self.mix)

    def select(self, which: Tensor) -> Rows:
        """The rows at these positions, [k] int64."""
        if self.mix is not None:
            return replace(self, mix=self.mix[which])
        return replace(self, values=tree.index(self.values, which))

    def told_from(self, start: Tree) -> Rows:
        """Rows X_i − start, with leaves [...] of start."""
        return replace(self, reference=tree.add(self.reference, start))

    def finite(self) -> Tensor:
        """Whether each message is finite, [m] bool."""
        leaves = [_flat(leaf) for leaf in tree.leaves(self.values) if leaf.is_floating_point() and leaf.numel()]
        return torch.stack([(leaf.amin(1) > -LARGEST) & (leaf.amax(1) < LARGEST) for leaf in leaves]).all(0)

    def gram(self) -> Tensor:
        """All products ⟨X_i, X_j⟩, [m, m] float64 and symmetric to the last bit."""
        total = torch.zeros((self.num_rows, self.num_rows), dtype=torch.float64, device=self._device)
        for piece in self._pieces():
            total += piece @ piece.T
        return (total + total.T) / 2

    def combine(self, weights: Tensor) -> Tree:
        """Σ_i a_i X_i with weights [m], a tree of changes in the message's structure; the median for integers."""
        taken = weights.nonzero()[:, 0]
        if 0 < len(taken) < len(weights):
            return self.select(taken).combine(weights[taken])
        return self.by_coordinate(lambda piece: weights @ piece)

    def by_coordinate(self, function: Callable[[Tensor], Tensor]) -> Tree:
        """Apply a function [m, p] -> [p] to each coordinate of all rows; integers take the median.

        Returns:
            Changes, leaves [...] float64.
        """
        changes = []
        for value, old in zip(tree.leaves(self.values), tree.leaves(self.reference), strict=True):
            if value.is_floating_point():
                parts = [function(piece) for piece in self._pieces_of(value, old)]
                changes.append(torch.cat(parts).view(old.shape))
            else:
                changes.append((value.median(0).values - old).double())
        return tree.rebuild(self.reference, changes)

    @property
    def _device(self) -> torch.device:
        return tree.leaves(self.values)[0].device  # type: ignore[no-any-return]

    def _pieces(self) -> Iterator[Tensor]:
        for value, old in zip(tree.leaves(self.values), tree.leaves(self.reference), strict=True):
            if value.is_floating_point():
                yield from self._pieces_of(value, old)

    def _pieces_of(self, value: Tensor, old: Tensor) -> Iterator[Tensor]:
        """The numbers of one leaf, [m, p] float64 piece by piece; a leaf without numbers is one empty piece."""
        rows, known = _flat(value), old.reshape(-1)
        at_once = max(PIECE_NUMBERS // max(len(rows), 1), 1) if value.device.type == "cpu" else len(known)
        for lo in range(0, max(len(known), 1), max(at_once, 1)):
            piece = rows[:, lo : lo + at_once].to(torch.float64, copy=True).sub_(known[lo : lo + at_once])
            yield piece if self.mix is None else self.mix @ piece


def _flat(value: Tensor) -> Tensor:
    """One leaf [m, ...] of all messages, [m, p]."""
    return value.reshape(len(value), value.shape[1:].numel())


def squared_distances(gram: Tensor) -> Tensor:
    """‖X_i − X_j‖² of all rows, [m, m] float64, from their products.

    Malicious rows add no rounding to the distances of others, which depend on their own products only.
    """
    squares = gram.diagonal()
    return (squares[:, None] + squares - 2 * gram).clamp(min=0)


def distances_from(gram: Tensor, sums: Tensor) -> Tensor:
    """‖X_i − Σ_j a_j X_j‖ of all rows, [m] float64, from their products [m, m] and the sum's coefficients a, [m]."""
    products = gram @ sums
    return (gram.diagonal() - 2 * products + sums @ products).clamp(min=0).sqrt()


def sorted_rows(piece: Tensor) -> list[Tensor]:
    """The numbers of each coordinate in order: m rows [p] of a piece [m, p], which is not modified."""
    if piece.device.type == "cpu":  # several times as fast as torch's
        return list(torch.from_numpy(np.sort(piece.numpy(), axis=0)).unbind())
    return list(piece.sort(0).values.unbind())


def within(piece: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Mask of the numbers [m, p] between two rows [p], inclusive: [m, p] bool."""
    return (piece >= low) & (piece <= high)
