"""Shamir's shares of secrets over a prime field: any t of them give a secret, fewer tell nothing of it.

Shamir. "How to Share a Secret". Communications of the ACM 22(11), 1979. https://doi.org/10.1145/359168.359176
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["PRIME", "make_shares", "reconstruct"]

PRIME = 2**31 - 1
"""Numbers of the field; products of two of them fit into int64."""


def make_shares(coefficients: Tensor, points: Tensor, prime: int = PRIME) -> Tensor:
    """Values of polynomials at points: the shares of their constant coefficients.

    Args:
        coefficients: of S polynomials, the secret first, [S, t] int64 in 0 … prime − 1; t shares give it back.
        points: one for each holder of a share, [n] int64, different and not 0.
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
        points: of the holders whose shares these are, [t] int64, different and not 0.
        shares: [S, t] int64.
        prime: numbers of the field.

    Returns:
        Secrets [S] int64; something else where t is smaller than the threshold they were shared with.

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
