"""Few levels between 0 and a scale, with unbiased random rounding: QSGD and TernGrad."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from lit_fed.errors import check_settings
from lit_fed.wrappers.compression.codecs.base import Chances, Codec, Encoded, if_any

__all__ = ["MOST_LEVELS", "QSGD", "TernGrad", "omega_length"]

MOST_LEVELS = 2**23
"""Levels beyond which float32 is no finer."""


def _omega_lengths(most: int) -> list[float]:
    """Bits in Elias' ω code of numbers with 0, 1, … `most` binary digits: these, after their number less 1."""
    lengths = [1.0, 1.0]
    for digits in range(2, most + 1):
        lengths.append(digits + lengths[(digits - 1).bit_length()])
    return lengths


OMEGA_LENGTHS = _omega_lengths(53)


@dataclass(frozen=True)
class QSGD(Codec):
    """Levels 0 … s of |v|/‖v‖₂, with their signs; each number rounds at random, unbiased, and 0 stays 0.

    Alistarh, Grubic, Li, Tomioka, Vojnović. "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding".
    NeurIPS 2017. https://arxiv.org/abs/1610.02132

    Args:
        levels: s, above 0.
        bucket_size: numbers that share a norm; null: all of them (the paper: 512).
        coding: encoding of the levels. `plain`: sign and level of each number in as many bits as s needs; `sparse`:
            distance, sign and level of nonzero ones, in Elias' ω code; `dense`: level of each number in that code.
    """

    levels: int = 127
    bucket_size: int | None = None
    coding: Literal["plain", "sparse", "dense"] = "plain"

    randomness = "client"

    def __post_init__(self) -> None:
        check_settings(self, prefix=type(self).__name__, levels=f"[1, {MOST_LEVELS}]", bucket_size=">= 1")

    @property
    def unbiased(self) -> bool:
        """Always unbiased."""
        return True

    def relative_variance(self, count: int) -> float:
        """min(d/s², √d/s) of a bucket (Lemma 3.1)."""
        size = min(self.bucket_size or count, count)
        return min(size / self.levels**2, math.sqrt(size) / self.levels)

    def encode(self, values: Tensor, chances: Chances) -> Encoded:
        """‖v‖·sgn(v)·l/s with the rounded level l of each number; a norm for each bucket, then its levels."""
        count = values.numel()
        size = min(self.bucket_size or count, count)
        missing = -count % size
        rows, drawn = (_rows(one, size, missing) for one in (values, chances(count)))  # [buckets, size]
        norm = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        factor = torch.where(norm > 0, self.levels / torch.where(norm > 0, norm, 1.0), 0.0)
        at = rows.abs().mul_(factor.to(rows.dtype)[:, None])
        level = at.floor()
        level = (level + (drawn < at.sub_(level))).clamp(max=self.levels)
        decoded = level.copysign(rows).mul_((norm / self.levels).to(rows.dtype)[:, None])
        decoded = decoded.view(-1)[:count] if missing else decoded.view(-1)
        return Encoded(decoded, if_any(norm, self._bits(level, missing)).sum())

    def _bits(self, level: Tensor, missing: int) -> Tensor:
        """Bits of the levels of each bucket, [buckets]; `missing` numbers of the last one are padding."""
        buckets, size = level.shape
        there = torch.full((buckets,), size, dtype=torch.float64, device=level.device)
        there = torch.cat([there[:-1], there[-1:] - missing])
        if self.coding == "plain":
            return there * (1 + self.levels.bit_length())
        if self.coding == "dense":
            return (omega_length(level + 1) + (level > 0)).sum(1) - (size - there)
        place = torch.arange(1, size + 1, device=level.device)
        last = torch.where(level > 0, place, 0).cummax(1).values
        gap = place - torch.cat([torch.zeros_like(last[:, :1]), last[:, :-1]], 1)
        return torch.where(level > 0, omega_length(gap) + 1 + omega_length(level), 0.0).sum(1)


def _rows(values: Tensor, size: int, missing: int) -> Tensor:
    """A vector in rows of a size, with zeros at the end of the last one."""
    return (pad(values, (0, missing)) if missing else values).view(-1, size)


def omega_length(number: Tensor) -> Tensor:
    """Bits of whole numbers in Elias' ω code, float64; numbers below 1 count as 1.

    Example:
        >>> omega_length(torch.tensor([1, 2, 4, 8, 16, 32])).tolist()
        [1.0, 3.0, 6.0, 7.0, 11.0, 12.0]
    """
    lengths = torch.tensor(OMEGA_LENGTHS, dtype=torch.float64, device=number.device)
    return lengths[torch.frexp(number.double())[1].clamp(min=1).long()]  # by the digits of the binary number


@dataclass(frozen=True)
class TernGrad(Codec):
    """Three levels, −R, 0 and R, where R is the largest magnitude; each number rounds at random, unbiased.

    Wen, Xu, Yan, Wu, Wang, Chen, Li. "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep
    Learning". NeurIPS 2017. https://arxiv.org/abs/1705.07878

    Args:
        clip_sigma: clip numbers beyond this many standard deviations first, which makes R smaller and the result
            biased (the paper: 2.5); null: no clipping.
    """

    clip_sigma: float | None = None

    randomness = "client"

    def __post_init__(self) -> None:
        check_settings(self, prefix=type(self).__name__, clip_sigma="> 0")

    @property
    def unbiased(self) -> bool:
        """Unbiased, unless numbers are clipped."""
        return self.clip_sigma is None

    def relative_variance(self, count: int) -> float:
        """√d − 1, since E‖Q‖² = R·‖v‖₁."""
        return math.sqrt(count) - 1 if self.unbiased else 0.0

    def encode(self, values: Tensor, chances: Chances) -> Encoded:
        """R·sgn(v) with probability |v|/R, else 0; two bits for each number, and R."""
        if self.clip_sigma is not None:
            bound = self.clip_sigma * values.double().std(correction=0).to(values.dtype)
            values = torch.minimum(torch.maximum(values, -bound), bound)
        size = values.abs()
        largest = size.amax()
        decoded = torch.where(chances(values.numel()) * largest < size, largest.copysign(values), 0.0)
        return Encoded(decoded, if_any(largest, 2 * values.numel()))
