"""Numbers of 16 bits."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lit_fed.errors import check_settings
from lit_fed.wrappers.compression.codecs.base import Chances, Codec, Encoded

__all__ = ["FloatCast"]


@dataclass(frozen=True)
class FloatCast(Codec):
    """Every number rounded to the nearest 16-bit number, ties to even.

    Numbers too large for float16 become ±65504, its maximum; numbers below 3e-8 become 0.

    Args:
        precision: `float16`, with 11 significant bits, or `bfloat16`, with 8 and the range of float32.
    """

    precision: Literal["float16", "bfloat16"] = "float16"

    def __post_init__(self) -> None:
        check_settings(self, prefix=type(self).__name__)

    def encode(self, values: Tensor, chances: Chances) -> Encoded:
        """The rounded numbers; 16 bits each."""
        short = torch.float16 if self.precision == "float16" else torch.bfloat16
        most = torch.finfo(short).max
        decoded = values.clamp(-most, most).to(short).to(values.dtype)
        bits = torch.full((), 16 * values.numel(), dtype=torch.float64, device=values.device)
        return Encoded(decoded, bits)
