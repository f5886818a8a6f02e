"""One bit for each number, and one scale for all."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_fed.wrappers.compression.codecs.base import Chances, Codec, Encoded, if_any

__all__ = ["ScaledSign"]


@dataclass(frozen=True)
class ScaledSign(Codec):
    """The sign of each number, times the mean magnitude of all; biased, so it needs a memory of its errors.

    Karimireddy, Rebjock, Stich, Jaggi. "Error Feedback Fixes SignSGD and other Gradient Compression Schemes". ICML
    2019. https://arxiv.org/abs/1901.09847. The sign of 0 is +.
    """

    def encode(self, values: Tensor, chances: Chances) -> Encoded:
        """‖v‖₁/d·sgn(v); a bit for each number, and the scale."""
        scale = values.abs().mean(dtype=torch.float64)
        size = scale.to(values.dtype)
        return Encoded(torch.where(values >= 0, size, -size), if_any(scale, values.numel()))
