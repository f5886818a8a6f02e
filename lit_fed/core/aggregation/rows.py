"""The news in m messages as m rows of numbers, in pieces that fit into the caches: what robust rules look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.types import Tree

__all__ = ["PIECE_NUMBERS", "Rows"]

PIECE_NUMBERS = 2**20
"""Numbers of all rows together that are looked at at once."""


@dataclass(frozen=True)
class Rows:
    """m rows X_i = value_i − known of d numbers, all floating leaves of a message side by side.

    Whole numbers, such as counters of batches, are no part of them.

    Args:
        values: what clients sent, leaves [m, ...].
        of_old: what the server knows of it, leaves [...].
        mix: rows that are made of these, [k, m] float64; None: they themselves.
    """

    values: Tree
    of_old: Tree
    mix: Tensor | None = None

    @property
    def num_rows(self) -> int:
        """How many rows there are, m; of mixed ones k."""
        return int(tree.leaves(self.values)[0].shape[0] if self.mix is None else self.mix.shape[0])

    def mixed(self, mix: Tensor) -> Rows:
        """Rows that are sums of these, by weights [k, m] float64."""
        return replace(self, mix=mix if self.mix is None else mix @ self.mix)

    def select(self, which: Tensor) -> Rows:
        """The rows at these places, [k] bool or int64."""
        assert self.mix is None, "rows are chosen before they are mixed"
        return replace(self, values=tree.index(self.values, which))

    def finite(self) -> Tensor:
        """Whether a row holds neither NaN nor infinity, [m] bool."""
        leaves = [leaf.flatten(1) for leaf in tree.leaves(self.values) if leaf.is_floating_point()]
        return torch.stack([leaf.isfinite().all(1) for leaf in leaves]).all(0)

    def gram(self) -> Tensor:
        """All products ⟨X_i, X_j⟩, [m, m] float64."""
        total = torch.zeros((self.num_rows, self.num_rows), dtype=torch.float64, device=self._device)
        for piece in self._pieces():
            total += piece @ piece.T
        return total

    def combine(self, weights: Tensor) -> Tree:
        """Σ_i a_i X_i by weights [m], a tree of changes of the message's structure; of whole numbers the median."""
        return self.by_coordinate(lambda piece: weights @ piece)

    def by_coordinate(self, function: Callable[[Tensor], Tensor]) -> Tree:
        """What a function [m, p] -> [p] makes of the numbers of all rows at each place; of whole numbers the median.

        Returns:
            Changes, leaves [...] float64.
        """
        changes = []
        for value, old in zip(tree.leaves(self.values), tree.leaves(self.of_old), strict=True):
            if value.is_floating_point():
                parts = [function(piece) for piece in self._pieces_of(value, old)]
                changes.append(torch.cat(parts).view(old.shape))
            else:
                changes.append((value.median(0).values - old).double())
        return tree.rebuild(self.of_old, changes)

    @property
    def _device(self) -> torch.device:
        return tree.leaves(self.values)[0].device  # type: ignore[no-any-return]

    def _pieces(self) -> Iterator[Tensor]:
        for value, old in zip(tree.leaves(self.values), tree.leaves(self.of_old), strict=True):
            if value.is_floating_point():
                yield from self._pieces_of(value, old)

    def _pieces_of(self, value: Tensor, old: Tensor) -> Iterator[Tensor]:
        """The numbers of one leaf, [m, p] float64 piece by piece."""
        rows, known = value.flatten(1), old.reshape(-1)
        width = max(PIECE_NUMBERS // max(len(rows), 1), 1)
        for lo in range(0, max(len(known), 1), width):
            piece = rows[:, lo : lo + width].double() - known[lo : lo + width].double()
            yield piece if self.mix is None else self.mix @ piece
