"""What the server does when clients drop out after they have masked: it learns the keys that it takes, and no others.

Bonawitz et al. 2017, Section 4.2, and Bell et al. 2020, as in `masks`. Each client shares two secrets among itself and
its partners: its key and what its own mask is made from. Of a client that is gone the holders give shares of the key,
of one that is there those of its own mask, never both: with both the server could take all masks off what it was sent.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lit_fed.core.seeds import generator
from lit_fed.wrappers.secure.fixed_point import modulo
from lit_fed.wrappers.secure.masks import MaskingCohort, agreed_word, public_word, signed_mask
from lit_fed.wrappers.secure.shamir import PRIME, make_shares, reconstruct

__all__ = ["recovered_words", "survives", "take_masks_off"]


def shares_needed(num_holders: int, threshold: float) -> int:
    """How many of the holders of a secret have to be there, t: a share of them, rounded up and forgiving decimals."""
    return max(1, math.ceil(threshold * num_holders - 1e-9))


def survives(cohort: MaskingCohort, present: Tensor, threshold: float) -> bool:
    """Whether enough clients are there for the round to have a sum: t of the holders of every secret.

    Args:
        cohort: the clients that masked.
        present: whether each of them has sent its residues, [m] bool.
        threshold: t, as a share of those who hold shares of one secret.
    """
    if not bool(present.any()):
        return False
    if cohort.num_partners == len(present) - 1:  # everybody holds shares of everybody
        return int(present.sum()) >= shares_needed(len(present), threshold)
    places = (_holders(cohort, client_id) for client_id in cohort.client_ids)
    return all(int(present[held].sum()) >= shares_needed(len(held), threshold) for held in places)


def recovered_words(cohort: MaskingCohort, present: Tensor, threshold: float) -> Tensor:
    """What the holders' shares tell the server, [m] int64: the key of a client that is gone, else its own mask's word.

    Args:
        cohort: the clients that masked, of whom enough are there.
        present: whether each of them is, [m] bool.
        threshold: as of `survives`.
    """
    words = []
    for position, client_id in enumerate(cohort.client_ids):
        held = _holders(cohort, client_id)
        needed = shares_needed(len(held), threshold)
        purpose = "own" if present[position] else "key"
        secret = cohort.own_word(client_id) if present[position] else cohort.secret_word(client_id)
        # the client dealt out its shares beforehand; they are made here, since they are the same whenever they are made
        rng = generator(cohort.seed, cohort.round_idx, int(client_id), f"secure/shares/{purpose}/{cohort.phase}")
        others = torch.from_numpy(rng.integers(PRIME, size=needed - 1)).to(secret.device)
        shares = make_shares(torch.cat([secret[None], others])[None], held + 1)
        given = present[held].nonzero()[:needed, 0]
        words.append(reconstruct(held[given] + 1, shares[:, given])[0])
    return torch.stack(words)


def take_masks_off(cohort: MaskingCohort, total: Tensor, present: Tensor, threshold: float) -> Tensor:
    """The sum of the residues of those who are there, [d] int64.

    Args:
        cohort: the clients that masked, of whom enough are there.
        total: the sum of the masked residues of those who are there, [d] int64.
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
    """Places in the cohort of those who hold shares of a client's secrets: itself and its partners, [n] int64."""
    ids = torch.stack([client_id, *cohort.partners(client_id)])
    return torch.searchsorted(cohort.client_ids, ids)
