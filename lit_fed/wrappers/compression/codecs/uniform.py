"""Numbers on a uniform grid, with unbiased random rounding."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lit_fed.errors import check_settings
from lit_fed.wrappers.compression.codecs.base import NUMBER_BITS, Chances, Codec, Encoded, if_any

__all__ = ["MOST_BITS", "Uniform", "round_to_grid"]

MOST_BITS = NUMBER_BITS
"""Bits per number beyond which a grid costs more than it saves."""


@dataclass(frozen=True)
class Uniform(Codec):
    """A grid of 2^bits points from −R to R, where R is the largest magnitude; each number rounds at random, unbiased.

    The quantiser is that of Elgabli, Park, Bedi, Ben Issaid, Bennis, Aggarwal. "Q-GADMM". IEEE Transactions on
    Communications 69(1), 2021. https://arxiv.org/abs/1910.10453. The grid has no 0: an unchanged number becomes plus or
    minus half a step, unless all are unchanged. If many numbers are unchanged, QSGD is better.

    Args:
        bits: bits of each number.
    """

    bits: int = 8

    randomness: ClassVar[Literal["none", "client", "common"]] = "client"

    def __post_init__(self) -> None:
        check_settings(self, prefix=type(self).__name__, bits=f"[1, {MOST_BITS}]")

    @property
    def unbiased(self) -> bool:
        """Always unbiased."""
        return True

    def relative_variance(self, count: int) -> float:
        """d/4 squared spacings of a grid for ‖v‖ = 1."""
        return float(count / (2**self.bits - 1) ** 2)

    def encode(self, values: Tensor, chances: Chances) -> Encoded:
        """The points of the grid; `bits` for each number, and R."""
        radius = values.abs().amax().double()
        bits = torch.full((), self.bits, dtype=torch.float64, device=values.device)
        rounded = round_to_grid(values, radius, bits, chances(values.numel()))
        return Encoded(rounded, if_any(radius, values.numel() * bits))


def round_to_grid(values: Tensor, radius: Tensor, bits: Tensor, chances: Tensor) -> Tensor:
    """Numbers rounded without bias to the grid of 2^b points from −R to R, in their own type.

    Args:
        values: δ, of any shape, d numbers, none beyond the grid.
        radius: R, []; if it is 0, so is the result.
        bits: b, [].
        chances: random numbers in [0, 1), [d]; one below the fractional part of (δ + R)/Δ rounds up.

    Example:
        >>> delta = torch.tensor([0.3, -0.5, 0.1], dtype=torch.float64)
        >>> found = round_to_grid(delta, torch.tensor(0.5), torch.tensor(2.0), torch.full((3,), 0.5))
        >>> [round(one, 4) for one in found.tolist()]
        [0.1667, -0.5, 0.1667]
    """
    radius, levels = radius.double(), torch.exp2(bits.double()) - 1
    spacing = 2 * radius / levels  # Δ
    radius, levels, spacing = (one.to(values.dtype) for one in (radius, levels, spacing))
    at = (values + radius).div_(torch.where(spacing > 0, spacing, 1.0))
    floor = at.floor()
    up = chances.view(values.shape) < at.sub_(floor)
    return torch.minimum(floor + up, levels).mul_(spacing).sub_(radius)
