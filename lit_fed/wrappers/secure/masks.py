"""Masks of secure sums, Shamir's shares of the keys, and recovery of the sum if clients drop out after masking.

Bonawitz et al. "Practical Secure Aggregation for Privacy-Preserving Machine Learning". CCS 2017, Sections 4 and 4.2.
https://doi.org/10.1145/3133956.3133982
Bell, Bonawitz, Gascón, Lepoint, Raykova. "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead". CCS 2020:
masks with some neighbours only. https://doi.org/10.1145/3372297.3417885
Shamir. "How to Share a Secret". Communications of the ACM 22(11), 1979. https://doi.org/10.1145/359168.359176

Client i sends y_i = x_i + b_i + Σ_{j > i} PRG(s_ij) − Σ_{j < i} PRG(s_ij) modulo 2^b. It shares two secrets among
itself and its partners: its key, and the word of its own mask. The holders give shares of the key of a client that is
gone, and of the own mask of one that is there, never both: with both the server could unmask the client's message.

Symbols:
    x_i, y_i -> residues, masked residues  [d] int64
    b_i      -> the mask of `own_word`     [d] int64
    s_ij     -> `agreed_word`              [] int64
Deviations:
    This simulates the arithmetic and hides nothing from its own process. All keys come from the training seed and have
    31 bits; a product in a prime field stands for the Diffie-Hellman agreement, and a hash for the generator of masks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.core.seeds import generator, uniforms
from lit_fed.wrappers.secure.fixed_point import LIMB_BITS, modulo

__all__ = [
    "KEY_BITS", "PRIME", "MaskingCohort", "agreed_word", "agreement_bits", "make_shares", "public_word", "reconstruct",
    "recovered_words", "signed_mask", "survives", "take_masks_off",
]  # fmt: skip

PRIME = 2**31 - 1
"""Numbers of the field; products of two of them fit into int64."""


def make_shares(coefficients: Tensor, points: Tensor, prime: int = PRIME) -> Tensor:
    """Shares of secrets: the values at points of polynomials whose constant coefficients they are.

    Args:
        coefficients: coefficients of S polynomials, the secret first, [S, t] int64 in 0 … prime − 1; t shares give it
            back.
        points: one per holder of a share, [n] int64, distinct and not 0.
        prime: numbers of the field, below 2^31.5.

    Returns:
        Shares [S, n] int64.

    Example:
        >>> make_shares(torch.tensor([[42, 7]]), torch.tensor([1, 2, 3]), prime=97).tolist()
        [[49, 56, 63]]
    """
    shares = torch.zeros(len(coefficients), len(points), dtype=torch.int64, device=points.device)
    for coefficient in coefficients.flip(1).unbind(1):
        shares = (shares * points + coefficient[:, None]) % prime
    return shares


def reconstruct(points: Tensor, shares: Tensor, prime: int = PRIME) -> Tensor:
    """The secrets of t shares each: the values at 0 of the polynomials through them (Lagrange).

    Args:
        points: points of the holders of these shares, [t] int64, distinct and not 0.
        shares: [S, t] int64.
        prime: numbers of the field.

    Returns:
        Secrets [S] int64; wrong values if t is below the threshold of the sharing.

    Example:
        >>> reconstruct(torch.tensor([1, 3]), torch.tensor([[49, 63]]), prime=97).tolist()
        [42]
    """
    secrets, places = torch.zeros(len(shares), dtype=torch.int64, device=shares.device), points.tolist()
    for position, own in enumerate(places):
        above = below = 1
        for other in places[:position] + places[position + 1 :]:
            above, below = above * other % prime, below * (other - own) % prime
        secrets = (secrets + shares[:, position] * (above * pow(below, -1, prime) % prime)) % prime
    return secrets


KEY_BITS = 256
"""Bits of a key, and of a share of one, as the protocol would send them."""

GENERATOR = 16807
"""A generator of the field's numbers other than 0."""


class MaskingCohort(NamedTuple):
    """The clients of a phase, which mask their messages; functions of a client run under `torch.func.vmap`."""

    seed: int
    round_idx: int
    phase: str
    client_ids: Tensor  # [m] int64, ascending, without duplicates
    modulus_bits: int
    neighbours: int | None = None  # k, an even number: a client masks with those beside it on a ring; None: with all

    @property
    def num_partners(self) -> int:
        """Number of partners of each client."""
        others = len(self.client_ids) - 1
        return others if self.neighbours is None else min(self.neighbours, others)

    def partners(self, client_id: Tensor) -> Iterator[Tensor]:
        """The partners of a client, on a ring that is drawn anew for each phase."""
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
        """The word that generates the client's own mask, [] int64 in 0 … PRIME − 1."""
        return self._words(client_id, "own", 1)[0] % PRIME

    def mask_of_word(self, word: Tensor, count: int) -> Tensor:
        """The mask PRG(word): residues [count] int64."""
        if self.modulus_bits <= LIMB_BITS:
            return self._words(word, "mask", count) >> (LIMB_BITS - self.modulus_bits)
        low, high = self._words(word, "mask", 2 * count).view(2, count)
        return modulo(low + (high << LIMB_BITS), self.modulus_bits)

    def mask(self, client_id: Tensor, count: int) -> Tensor:
        """The total mask of a client: its own mask and those with its partners, [count] int64."""
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
    """The client's public key, [] int64."""
    return secret * GENERATOR % PRIME


def agreed_word(secret: Tensor, public: Tensor) -> Tensor:
    """The key of a pair of clients, [] int64: the same from either's secret and the other's public key."""
    return secret * public % PRIME


def signed_mask(client_id: Tensor, partner: Tensor, mask: Tensor) -> Tensor:
    """The signed mask of a pair: the client with the smaller id adds it, the other subtracts it, [d]."""
    return torch.where(client_id < partner, mask, -mask)


def agreement_bits(num_partners: int) -> int:
    """Bits that a client sends besides its masked residues: two public keys, and two shares per partner.

    Example:
        >>> agreement_bits(99) + 32 * (10**6 + 1)
        32051232
    """
    return 2 * KEY_BITS + num_partners * 2 * KEY_BITS


def shares_needed(num_holders: int, threshold: float) -> int:
    """Number of holders needed to recover a secret, t: a share of them, rounded up, robust to decimal fractions."""
    return max(1, math.ceil(threshold * num_holders - 1e-9))


def survives(cohort: MaskingCohort, present: Tensor, threshold: float) -> bool:
    """Whether enough clients remain to recover the sum: t of the holders of every secret.

    Args:
        cohort: the clients that masked.
        present: whether each of them has sent its residues, [m] bool.
        threshold: t, as a share of the holders of one secret.
    """
    if not bool(present.any()):
        return False
    if cohort.num_partners == len(present) - 1:  # all clients hold shares of all
        return int(present.sum()) >= shares_needed(len(present), threshold)
    places = (_holders(cohort, client_id) for client_id in cohort.client_ids)
    return all(int(present[held].sum()) >= shares_needed(len(held), threshold) for held in places)


def recovered_words(cohort: MaskingCohort, present: Tensor, threshold: float) -> Tensor:
    """The secrets recovered by the server, [m] int64: the key of a client that dropped out, else its own mask's word.

    Args:
        cohort: the clients that masked, enough of which are present.
        present: whether each of them is, [m] bool.
        threshold: as of `survives`.
    """
    words = []
    for position, client_id in enumerate(cohort.client_ids):
        held = _holders(cohort, client_id)
        needed = shares_needed(len(held), threshold)
        purpose = "own" if present[position] else "key"
        secret = cohort.own_word(client_id) if present[position] else cohort.secret_word(client_id)
        # clients would distribute shares beforehand; they are computed here, since they do not depend on the time
        rng = generator(cohort.seed, cohort.round_idx, int(client_id), f"secure/shares/{purpose}/{cohort.phase}")
        others = torch.from_numpy(rng.integers(PRIME, size=needed - 1)).to(secret.device)
        shares = make_shares(torch.cat([secret[None], others])[None], held + 1)
        given = present[held].nonzero()[:needed, 0]
        words.append(reconstruct(held[given] + 1, shares[:, given])[0])
    return torch.stack(words)


def take_masks_off(cohort: MaskingCohort, total: Tensor, present: Tensor, threshold: float) -> Tensor:
    """The sum of the residues of the present clients, [d] int64.

    Args:
        cohort: the clients that masked, enough of which are present.
        total: the sum of the masked residues of the present clients, [d] int64.
        present: whether each of the cohort is, [m] bool.
        threshold: as of `survives`.
    """
    there = dict(zip(cohort.client_ids.tolist(), present.tolist(), strict=True))
    for client_id, word in zip(cohort.client_ids, recovered_words(cohort, present, threshold), strict=True):
        if there[int(client_id)]:
            total = modulo(total - cohort.mask_of_word(word, len(total)), cohort.modulus_bits)
            continue
        for partner in cohort.partners(client_id):
            if there[int(partner)]:
                mask = cohort.mask_of_word(agreed_word(word, public_word(cohort.secret_word(partner))), len(total))
                total = modulo(total - signed_mask(partner, client_id, mask), cohort.modulus_bits)
    return total


def _holders(cohort: MaskingCohort, client_id: Tensor) -> Tensor:
    """Positions in the cohort of the holders of a client's secrets: itself and its partners, [n] int64."""
    ids = torch.stack([client_id, *cohort.partners(client_id)])
    return torch.searchsorted(cohort.client_ids, ids)
