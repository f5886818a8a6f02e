"""Stateless randomness: every stream is named by what it is for, so nothing has to be saved to resume exactly."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["generator", "normals", "seed_of", "torch_generator", "uniforms"]

WORD = 2**32 - 1
HALF_WORD = 2**16 - 1
LOWEST = -(2**31)  # of int32


def seed_of(seed: int, round_idx: int, client_id: int, purpose: str) -> np.random.SeedSequence:
    """The seed sequence of one stream; `purpose` is hashed by CRC-32, the same in every process.

    Example:
        >>> int(seed_of(0, 1, 2, "plan").generate_state(1)[0]) == int(seed_of(0, 1, 2, "plan").generate_state(1)[0])
        True
    """
    words = (seed, round_idx, client_id, zlib.crc32(purpose.encode()))
    if min(words) < 0 or max(words) >= 2**32:
        return np.random.SeedSequence(words)
    # an array is taken several times faster than a tuple of the same numbers, to the same effect
    return np.random.SeedSequence(np.array(words, dtype=np.uint32))


def generator(seed: int, round_idx: int, client_id: int, purpose: str) -> np.random.Generator:
    """NumPy generator of the stream (seed, round, client, purpose); -1 is not allowed, use 0 where one is void."""
    return np.random.Generator(np.random.PCG64(seed_of(seed, round_idx, client_id, purpose)))


def torch_generator(seed: int, round_idx: int, client_id: int, purpose: str) -> torch.Generator:
    """Torch generator (CPU) of the same stream."""
    state = seed_of(seed, round_idx, client_id, purpose).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) & (2**63 - 1))


def uniforms(
    seed: int, round_idx: int, client_id: Tensor, purpose: str, count: int, step: Tensor | None = None
) -> Tensor:
    """Random numbers in [0, 1) of one client, [count] float64, where the id is a tensor, as under `torch.func.vmap`.

    They are hashes of their own numbers, of whole numbers alone: the same on every device, and without a table of all
    clients, which large models would make too large. A step [] of a client has numbers of its own.

    Example:
        >>> uniforms(0, 1, torch.tensor(2), "rounding", 2).round(decimals=4).tolist()
        [0.4748, 0.8898]
    """
    first, second = (int(word) for word in seed_of(seed, round_idx, 0, purpose).generate_state(2))
    client = _scramble(_scramble(_signed(client_id + first).int()) ^ _signed(second))
    word = _scramble(_scramble(torch.arange(count, dtype=torch.int32, device=client_id.device)) + client)
    if step is not None:  # a second key: of many steps of many clients two would else share all their numbers
        key = _scramble(_scramble(_signed(client_id + second).int()) ^ _scramble(_signed(step.long()).int()))
        word = _scramble(word ^ key)
    return word.bitwise_xor_(LOWEST).double().mul_(1 / (WORD + 1)).add_(0.5)  # the word without a sign, over 2^32


def normals(
    seed: int, round_idx: int, client_id: Tensor, purpose: str, count: int, step: Tensor | None = None
) -> Tensor:
    """Standard normal numbers of one client, [count] float64, where the id is a tensor, as under `torch.func.vmap`.

    They come in pairs from two uniform numbers (Box and Muller 1958), each of two draws, so that they have all bits of
    a float64 and reach 8.5.

    Example:
        >>> normals(0, 1, torch.tensor(2), "noise", 3).round(decimals=4).tolist()
        [0.4401, 0.2853, 1.6812]
    """
    pairs = (count + 1) // 2
    coarse, fine = uniforms(seed, round_idx, client_id, purpose, 4 * pairs, step).view(2, 2, pairs)
    radius, angle = coarse + fine / (WORD + 1)
    radius = torch.sqrt(-2 * torch.log1p(-radius.clamp(max=1 - 2**-53)))
    both = torch.stack([radius * torch.cos(2 * torch.pi * angle), radius * torch.sin(2 * torch.pi * angle)])
    return both.flatten()[:count]


def _signed(word: Any) -> Any:
    """The lowest 32 bits of a whole number as an int32 takes them, whose sums and products drop what is beyond."""
    return ((word & WORD) ^ -LOWEST) + LOWEST


def _scramble(word: Tensor) -> Tensor:
    """A permutation of the numbers of 32 bits, int32, that looks random; what it is given stays as it is."""
    for _ in range(2):
        word = (word >> 16).bitwise_and_(HALF_WORD).bitwise_xor_(word).mul_(0x45D9F3B)
    return (word >> 16).bitwise_and_(HALF_WORD).bitwise_xor_(word)
