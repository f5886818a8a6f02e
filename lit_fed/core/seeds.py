"""Stateless randomness: every stream is named by what it is for, so nothing has to be saved to resume exactly."""

from __future__ import annotations

import zlib

import numpy as np
import torch

__all__ = ["generator", "seed_of", "torch_generator"]


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
