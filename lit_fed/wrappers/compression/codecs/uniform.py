"""Numbers on a uniform grid, with unbiased random rounding."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_fed.core.grids import NUMBER_BITS, round_to_grid
from lit_fed.errors import check_settings
from lit_fed.wrappers.compression.codecs.base import Chances, Codec, Encoded, if_any

__all__ = ["Uniform"]


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

    randomness = "client"

    def __post_init__(self) -> None:
        check_settings(self, prefix=type(self).__name__, bits=f"[1, {NUMBER_BITS}]")

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
