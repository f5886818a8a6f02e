"""Fixed point modulo a power of two: real numbers as integers, whose sums are exact in any order.

Bonawitz et al. "Practical Secure Aggregation for Privacy-Preserving Machine Learning". CCS 2017.
https://doi.org/10.1145/3133956.3133982

Symbols:
    b -> modulus_bits   numbers are added modulo 2^b
    f -> fraction_bits  1 is the whole number 2^f
    c -> clip_range     values lie in [-c, c]
    m, w                messages in a sum, and the weight of one of them
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.errors import ConfigError

__all__ = ["LIMB_BITS", "FixedPoint", "modulo", "most_fraction_bits", "widest_range"]

LIMB_BITS = 32
"""Bits of the parts that numbers are sent in: float64 adds such whole numbers exactly, 2^21 of them."""

ROUNDED_UP = 1 + Fraction(1, 2**52)
"""By which a product of float64 numbers may exceed the exact one, generously."""


class FixedPoint(NamedTuple):
    """Real numbers as residues modulo 2^b, [d] int64: in 0 … 2^b − 1, or signed if b = 64 uses all of int64."""

    modulus_bits: int
    fraction_bits: int
    clip_range: float

    @property
    def num_limbs(self) -> int:
        """Number L of 32-bit parts in which a residue is sent."""
        return -(-self.modulus_bits // LIMB_BITS)

    @property
    def largest(self) -> float:
        """The largest value: the largest multiple of 2^-f in [0, c], so that rounding never exceeds c."""
        return math.ldexp(
            math.floor(Fraction(self.clip_range) * Fraction(2) ** self.fraction_bits), -self.fraction_bits
        )

    def encode(self, values: Tensor, weight: Tensor, *, towards_zero: bool = False) -> Tensor:
        """Residues of weight times values, rounded to multiples of 2^-f, [d] int64; values are clamped to [-c, c].

        Args:
            values: real numbers [d] float64.
            weight: a whole number, [] float64.
            towards_zero: round towards zero, so that the norm of the vector never grows.
        """
        steps = values.clamp(-self.largest, self.largest) * weight * 2.0**self.fraction_bits
        whole = steps.trunc() if towards_zero else steps.round()
        return modulo(whole.to(torch.int64), self.modulus_bits)

    def decode(self, residues: Tensor) -> Tensor:
        """The real numbers of residues [d], between −2^(b−1−f) and 2^(b−1−f), [d] float64."""
        return self.signed(residues).double() * 2.0**-self.fraction_bits

    def signed(self, residues: Tensor) -> Tensor:
        """The signed integers of residues [d], around zero, [d] int64."""
        if self.modulus_bits == 64:
            return residues
        half = 1 << (self.modulus_bits - 1)
        return torch.where(residues >= half, residues - (1 << self.modulus_bits), residues)

    def split(self, residues: Tensor) -> Tensor:
        """Residues [d] in parts of 32 bits, the lowest first, [L, d] float64."""
        unsigned = [modulo(residues >> LIMB_BITS * limb, LIMB_BITS) for limb in range(self.num_limbs)]
        return torch.stack(unsigned).double()

    def join(self, sums: Tensor) -> Tensor:
        """Residues of sums of parts [L, d] float64, each below 2^53, [d] int64."""
        parts = sums.round().to(torch.int64)
        total = sum((part << LIMB_BITS * limb for limb, part in enumerate(parts.unbind())), torch.zeros_like(parts[0]))
        return modulo(total, self.modulus_bits)

    def check(self, num_messages: int, most_weight: int, prefix: str) -> None:
        """Refuse settings for which a sum could overflow, or for which all values round to zero.

        Args:
            num_messages: maximum number of messages in a sum.
            most_weight: maximum weight of one.
            prefix: prefix of the fields' names on the command line.

        Raises:
            ConfigError: with fraction bits or a range that would work.
        """
        bits, fraction, clip = self
        most = most_fraction_bits(bits, num_messages, most_weight, clip)
        fewest = math.ceil(-math.log2(clip))  # with fewer bits the range itself is no multiple of the step
        sums = f"a sum of {num_messages} messages with weights up to {most_weight} and values up to {clip:g}"
        if most < fewest:
            wanted = (2 * num_messages * most_weight).bit_length() + 1
            uniform = ", or --model.weighting uniform" if most_weight > 1 else ""
            raise ConfigError(f"{prefix}.modulus_bits is {bits}, and {sums} does not fit; give {wanted}{uniform}")
        if fraction > most:
            widest = widest_range(bits, num_messages, most_weight, fraction)
            other = f", a clip_range of at most {widest:g}" if widest * 2.0**fraction >= 1 else ""
            more = ", or modulus_bits 64" if bits < 64 else ""
            raise ConfigError(
                f"{prefix}.fraction_bits is {fraction}, and {sums} overflows {bits} bits; give at most {most}{other}"
                f"{more}; null takes {most}"
            )
        if fraction < fewest:
            raise ConfigError(
                f"{prefix}.fraction_bits is {fraction}, and with steps of {2.0**-fraction:g} all values up to {clip:g} "
                f"are rounded to zero; give {fewest} to {most}"
            )


def modulo(numbers: Tensor, bits: int) -> Tensor:
    """Whole numbers [d] modulo 2^bits, [d] int64 in 0 … 2^bits − 1; for 64 bits int64 wraps around by itself."""
    return numbers if bits == 64 else numbers & ((1 << bits) - 1)


def most_fraction_bits(modulus_bits: int, num_messages: int, most_weight: int, clip_range: float) -> int:
    """The maximum fraction bits f without overflow of a sum: m·w·c·2^f ≤ 2^(b−1) − 1.

    Example:
        >>> most_fraction_bits(32, 100, 1000, 8.0)
        11
    """
    room = Fraction(2 ** (modulus_bits - 1) - 1) / (num_messages * most_weight * Fraction(clip_range) * ROUNDED_UP)
    found = room.numerator.bit_length() - room.denominator.bit_length()  # the floor of log2, or one more
    return found if Fraction(2) ** found <= room else found - 1


def widest_range(modulus_bits: int, num_messages: int, most_weight: int, fraction_bits: int) -> float:
    """The widest range c without overflow of a sum, rounded down to four digits."""
    exact = (2 ** (modulus_bits - 1) - 1) / (num_messages * most_weight * 2.0**fraction_bits * float(ROUNDED_UP))
    step = 10.0 ** (math.floor(math.log10(exact)) - 3)
    return float(f"{math.floor(exact / step) * step:.4g}")
