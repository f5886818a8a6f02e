"""One bit per number after a random rotation."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from lit_fed.errors import check_settings
from lit_fed.wrappers.compression.codecs.base import Chances, Codec, Encoded, if_any

__all__ = ["Drive", "hadamard"]


@dataclass(frozen=True)
class Drive(Codec):
    """The signs of the randomly rotated vector, times one scale, rotated back.

    Vargaftik, Ben Basat, Portnoy, Mendelson, Ben-Itzhak, Mitzenmacher. "DRIVE: One-bit Distributed Mean Estimation".
    NeurIPS 2021. https://arxiv.org/abs/2105.08339. The rotation is R = H·diag(±1)/√d with Hadamard's matrix H, so the
    vector is padded with zeros to a power of 2; signs follow from seed, round and client. The estimate is unbiased for
    uniform rotations, and nearly so for these.

    Args:
        scale: `unbiased`, ‖v‖²/‖Rv‖₁, or `best`, ‖Rv‖₁/d, with the smallest error.
    """

    scale: Literal["unbiased", "best"] = "unbiased"

    randomness = "client"

    def __post_init__(self) -> None:
        check_settings(self, prefix=type(self).__name__)

    @property
    def unbiased(self) -> bool:
        """Unbiased with scale `unbiased`."""
        return self.scale == "unbiased"

    def relative_variance(self, count: int) -> float:
        """π/2 − 1, of uniform rotations of long vectors."""
        return math.pi / 2 - 1 if self.unbiased else 0.0

    def encode(self, values: Tensor, chances: Chances) -> Encoded:
        """R⁻¹(S·sgn(Rv)); a bit for each rotated number, and the scale S."""
        count = values.numel()
        padded = 1 << (count - 1).bit_length()
        signs = torch.where(chances(count) < 0.5, 1.0, -1.0).to(values.dtype) / padded**0.5
        rotated = hadamard(pad(values * signs, (0, padded - count)))
        size = rotated.abs().sum(dtype=torch.float64)
        squared = values.double().square().sum()
        unbiased = squared / torch.where(size > 0, size, 1.0)
        scale = (unbiased if self.unbiased else size / padded).to(values.dtype)
        back = hadamard(torch.where(rotated >= 0, scale, -scale))[:count] * signs
        return Encoded(back, if_any(size, padded))


def hadamard(values: Tensor) -> Tensor:
    """Sylvester's matrix times a vector [d], d a power of 2.

    Example:
        >>> hadamard(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist()
        [10.0, -2.0, -4.0, 0.0]
    """
    values, half = values.clone(), 1
    while half < values.numel():
        first, second = values.view(-1, 2, half).unbind(1)
        difference = first - second
        first.add_(second)
        second.copy_(difference)
        half *= 2
    return values
