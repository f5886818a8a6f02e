"""Rounding of numbers to uniform grids, and the bits of numbers that are sent."""

import torch
from torch import Tensor

__all__ = ["NUMBER_BITS", "round_to_grid"]

NUMBER_BITS = 32
"""Bits of a number that is sent as it is: a scale, or one of a vector's own; more on a grid would cost more."""


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
