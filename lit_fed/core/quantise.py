"""Differences of models in a few bits per number, rounded at random so that nothing is lost on average.

Elgabli, Park, Bedi, Ben Issaid, Bennis, Aggarwal. "Q-GADMM: Quantized Group ADMM for Communication Efficient
Decentralized Machine Learning". IEEE Transactions on Communications 69(1), 2021. https://arxiv.org/abs/1910.10453
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.reduce import cast_like
from lit_fed.core.seeds import uniforms
from lit_fed.core.types import Tree

__all__ = ["MOST_BITS", "Grid", "Sent", "in_full", "next_grid", "quantise", "quantised"]

MOST_BITS = 32
"""Bits per number beyond which quantising costs more than it saves."""

RANGE_BITS = 32
WIDTH_BITS = 5  # a number of bits from 1 to 32


class Grid(NamedTuple):
    """The grid of 2^b points from −R to R on which a difference is sent."""

    radius: Tensor  # R, [] float64; 0 before anything is sent
    bits: Tensor  # b, [] float64


class Sent(NamedTuple):
    """What is sent to receivers who know what was sent before."""

    value: Tree  # what they know then
    grid: Grid
    cost: Tensor  # [] float64, bits on the way
    is_new: Tensor  # [] bool; False where they would learn nothing


def in_full(value: Tree, grid: Grid) -> Sent:
    """The value itself; the grid stays as it is."""
    cost = torch.full_like(grid.bits, tree.bits(value))
    return Sent(value, grid, cost, torch.ones_like(cost, dtype=torch.bool))


def quantised(ctx: Context, value: Tree, known: Tree, last: Grid, decay: float, client_id: Tensor) -> Sent:
    """The difference on the next grid: d numbers of b bits, R in 32 bits and b in 5; a difference of 0 is not news.

    Args:
        ctx: what every client knows.
        value: what there is to tell, leaves of any shape, d numbers in all.
        known: what the receivers know.
        last: the grid of the last difference that was sent, or the bits of the first one with R = 0.
        decay: ω, by which the spacing falls from one grid to the next.
        client_id: whose random numbers of the round decide, [].
    """
    change = tree.sub(value, known)
    count = sum(leaf.numel() for leaf in tree.leaves(change))
    radius = torch.stack([leaf.double().abs().amax() for leaf in tree.leaves(change)]).amax()
    grid = next_grid(last, radius, decay)
    rounded = quantise(change, grid, uniforms(ctx.seed, ctx.round_idx, client_id, "quantise", count))
    return Sent(
        cast_like(tree.add(known, rounded), known), grid, count * grid.bits + RANGE_BITS + WIDTH_BITS, radius > 0
    )


def next_grid(last: Grid, radius: Tensor, decay: float) -> Grid:
    """A grid from −radius to radius, whose spacing is at most `decay` times the last one, up to `MOST_BITS`."""
    needed = torch.log2(1 + (torch.exp2(last.bits) - 1) * radius / (decay * last.radius)).ceil().clamp(1, MOST_BITS)
    return Grid(radius, torch.where((last.radius > 0) & (radius > 0), needed, last.bits))


def quantise(difference: Tree, grid: Grid, chances: Tensor) -> Tree:
    """The difference on a grid, in float64; its expectation is the difference itself.

    Args:
        difference: δ, leaves of any shape, d numbers in all, none beyond the grid.
        grid: R and b; where R is 0, so is the result.
        chances: random numbers in [0, 1), [d]; one below the fractional part of (δ + R)/Δ rounds up.

    Example:
        >>> delta = torch.tensor([0.3, -0.5, 0.1], dtype=torch.float64)
        >>> found = quantise(delta, Grid(torch.tensor(0.5), torch.tensor(2.0)), torch.full((3,), 0.5))
        >>> [round(one, 4) for one in found.tolist()]
        [0.1667, -0.5, 0.1667]
    """
    radius, levels = grid.radius.double(), torch.exp2(grid.bits.double()) - 1
    spacing = 2 * radius / levels  # Δ
    safe = torch.where(spacing > 0, spacing, 1.0)
    parts = iter(torch.split(chances, [leaf.numel() for leaf in tree.leaves(difference)]))

    def rounded(leaf: Tensor) -> Tensor:
        at = (leaf.double() + radius) / safe
        up = next(parts).view(leaf.shape) < at - at.floor()
        return spacing * torch.minimum(at.floor() + up, levels) - radius

    return tree.map_leaves(rounded, difference)
