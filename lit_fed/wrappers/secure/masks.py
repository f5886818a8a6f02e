"""Masks that hide what clients add up: those of pairs cancel, and the server takes each client's own off the sum.

Bonawitz et al. "Practical Secure Aggregation for Privacy-Preserving Machine Learning". CCS 2017, Section 4.
https://doi.org/10.1145/3133956.3133982
Bell, Bonawitz, Gascón, Lepoint, Raykova. "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead". CCS 2020:
masks with some neighbours only. https://doi.org/10.1145/3372297.3417885

Client i sends y_i = x_i + b_i + Σ_{j > i} PRG(s_ij) − Σ_{j < i} PRG(s_ij) modulo 2^b.

Symbols:
    x_i, y_i -> residues, masked residues  [d] int64
    b_i      -> the mask of `own_word`     [d] int64
    s_ij     -> `agreed_word`              [] int64
Deviations:
    This simulates the arithmetic and hides nothing from its own process. All keys come from the training seed and have
    31 bits; a product in a prime field stands for the Diffie-Hellman agreement, and a hash for the generator of masks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.core.seeds import generator, uniforms
from lit_fed.wrappers.secure.fixed_point import LIMB_BITS, modulo
from lit_fed.wrappers.secure.shamir import PRIME

__all__ = ["KEY_BITS", "MaskingCohort", "agreed_word", "agreement_bits", "public_word", "signed_mask"]

KEY_BITS = 256
"""Bits of a key, and of a share of one, as the protocol would send them."""

GENERATOR = 16807
"""A generator of the field's numbers other than 0."""


class MaskingCohort(NamedTuple):
    """The clients of a phase, who mask what they send; its functions of a client run under `torch.func.vmap`."""

    seed: int
    round_idx: int
    phase: str
    client_ids: Tensor  # [m] int64, ascending, each once
    modulus_bits: int
    neighbours: int | None = None  # k, an even number: a client masks with those beside it on a ring; None: with all

    @property
    def num_partners(self) -> int:
        """Clients that each one masks with."""
        others = len(self.client_ids) - 1
        return others if self.neighbours is None else min(self.neighbours, others)

    def partners(self, client_id: Tensor) -> Iterator[Tensor]:
        """The clients [] that one masks with, on a ring that is drawn anew for each phase."""
        size = len(self.client_ids)
        order = generator(self.seed, self.round_idx, 0, f"secure/ring/{self.phase}").permutation(size)
        ring = self.client_ids[torch.from_numpy(order).to(self.client_ids.device)]
        place = (ring == client_id).int().argmax()
        half = self.num_partners // 2
        everybody = self.num_partners == size - 1
        for step in range(1, size) if everybody else (*range(1, half + 1), *range(size - half, size)):
            yield ring[(place + step) % size]

    def secret_word(self, client_id: Tensor) -> Tensor:
        """The client's secret key in this phase, [] int64 in 1 … PRIME − 1."""
        return 1 + self._words(client_id, "key", 1)[0] % (PRIME - 1)

    def own_word(self, client_id: Tensor) -> Tensor:
        """What the client's own mask is made from, [] int64 in 0 … PRIME − 1."""
        return self._words(client_id, "own", 1)[0] % PRIME

    def mask_of_word(self, word: Tensor, count: int) -> Tensor:
        """The mask PRG(word): residues [count] int64."""
        if self.modulus_bits <= LIMB_BITS:
            return self._words(word, "mask", count) >> (LIMB_BITS - self.modulus_bits)
        low, high = self._words(word, "mask", 2 * count).view(2, count)
        return modulo(low + (high << LIMB_BITS), self.modulus_bits)

    def mask(self, client_id: Tensor, count: int) -> Tensor:
        """What a client adds to its residues: its own mask and those with its partners, [count] int64."""
        secret, total = self.secret_word(client_id), self.mask_of_word(self.own_word(client_id), count)
        for partner in self.partners(client_id):
            word = agreed_word(secret, public_word(self.secret_word(partner)))
            total = modulo(total + signed_mask(client_id, partner, self.mask_of_word(word, count)), self.modulus_bits)
        return total

    def _words(self, client_id: Tensor, purpose: str, count: int) -> Tensor:
        """Random words of 32 bits [count] int64 of a client, or of a key."""
        drawn = uniforms(self.seed, self.round_idx, client_id, f"secure/{purpose}/{self.phase}", count)
        return (drawn * 2.0**LIMB_BITS).to(torch.int64)


def public_word(secret: Tensor) -> Tensor:
    """What a client tells the others of its secret key, [] int64."""
    return secret * GENERATOR % PRIME


def agreed_word(secret: Tensor, public: Tensor) -> Tensor:
    """The key of a pair of clients, [] int64: the same from either's secret and the other's public key."""
    return secret * public % PRIME


def signed_mask(client_id: Tensor, partner: Tensor, mask: Tensor) -> Tensor:
    """The mask of a pair as one of them adds it: the one of the smaller id adds it, the other takes it off, [d]."""
    return torch.where(client_id < partner, mask, -mask)


def agreement_bits(num_partners: int) -> int:
    """Bits that a client sends beside its masked residues: two public keys, and two shares for each partner.

    Example:
        >>> agreement_bits(99) + 32 * (10**6 + 1)
        32051232
    """
    return 2 * KEY_BITS + num_partners * 2 * KEY_BITS
