"""Stateless randomness: each stream is named by its purpose, so an exact resume needs no saved state."""

from __future__ import annotations

import hashlib
import json
import secrets
import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["SECRET_BYTES", "Secret", "generator", "seed_of", "torch_generator", "uniforms"]

WORD = 2**32 - 1
HALF_WORD = 2**16 - 1
LOWEST = -(2**31)  # of int32

SECRET_BYTES = 16


def seed_of(seed: int, round_idx: int, client_id: int, purpose: str) -> np.random.SeedSequence:
    """The seed sequence of one stream; `purpose` is hashed by CRC-32, the same in every process.

    Example:
        >>> int(seed_of(0, 1, 2, "plan").generate_state(1)[0]) == int(seed_of(0, 1, 2, "plan").generate_state(1)[0])
        True
    """
    words = (seed, round_idx, client_id, zlib.crc32(purpose.encode()))
    if min(words) < 0 or max(words) >= 2**32:
        return np.random.SeedSequence(words)
    # an array gives the same sequence as a tuple of these numbers, several times faster
    return np.random.SeedSequence(np.array(words, dtype=np.uint32))


def generator(seed: int, round_idx: int, client_id: int, purpose: str) -> np.random.Generator:
    """NumPy generator of the stream (seed, round, client, purpose); -1 is not allowed, use 0 for an unused entry."""
    return np.random.Generator(np.random.PCG64(seed_of(seed, round_idx, client_id, purpose)))


def torch_generator(seed: int, round_idx: int, client_id: int, purpose: str) -> torch.Generator:
    """Torch generator (CPU) of the same stream."""
    state = seed_of(seed, round_idx, client_id, purpose).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) & (2**63 - 1))


def uniforms(seed: int, round_idx: int, client_id: Tensor, purpose: str, count: int) -> Tensor:
    """Random numbers in [0, 1) of one client, [count] float64, for an id in a tensor, as under `torch.func.vmap`.

    Each is an integer hash of its indices: the same on every device, and without a table of all clients, which would
    be too large for large models. They have 32 bits and are not secret; privacy noise comes from
    `lit_fed.core.noise`.

    Example:
        >>> uniforms(0, 1, torch.tensor(2), "rounding", 2).round(decimals=4).tolist()
        [0.4748, 0.8898]
    """
    first, second = (int(word) for word in seed_of(seed, round_idx, 0, purpose).generate_state(2))
    client = _scramble(_scramble(_signed(client_id + first).int()) ^ _signed(second))
    word = _scramble(_scramble(torch.arange(count, dtype=torch.int32, device=client_id.device)) + client)
    return word.bitwise_xor_(LOWEST).double().mul_(1 / (WORD + 1)).add_(0.5)  # the unsigned word, over 2^32


def _signed(word: Any) -> Any:
    """The lowest 32 bits of an integer as int32, whose sums and products wrap around."""
    return ((word & WORD) ^ -LOWEST) + LOWEST


def _scramble(word: Tensor) -> Tensor:
    """A pseudo-random permutation of the 32-bit integers, int32; the input is not modified."""
    for _ in range(2):
        word = (word >> 16).bitwise_and_(HALF_WORD).bitwise_xor_(word).mul_(0x45D9F3B)
    return (word >> 16).bitwise_and_(HALF_WORD).bitwise_xor_(word)


class Secret:
    """128 bits that determine privacy noise, private cohorts and batches; not part of the training settings.

    It is never printed and never pickled: unpickling gives a fresh one.

    Args:
        key: 16 bytes.
    """

    __slots__ = ("key",)

    def __init__(self, key: bytes) -> None:
        self.key = key

    @classmethod
    def fresh(cls) -> Secret:
        """A random secret."""
        return cls(secrets.token_bytes(SECRET_BYTES))

    @classmethod
    def of_seed(cls, seed: int) -> Secret:
        """A repeatable secret, for simulations."""
        return cls(hashlib.blake2b(b"noise seed %d" % seed, digest_size=SECRET_BYTES).digest())

    def derived(self, *purpose: int | str) -> bytes:
        """32 bytes for a purpose, independent of those for other purposes."""
        return hashlib.blake2b(json.dumps(purpose).encode(), key=self.key).digest()[: 2 * SECRET_BYTES]

    def for_(self, *purpose: int | str) -> Secret:
        """A separate secret for a purpose."""
        return Secret(self.derived("secret", *purpose)[:SECRET_BYTES])

    def seed(self, purpose: str) -> int:
        """A seed of 128 bits for the generators of `lit_fed.core.seeds`, for draws that are never published."""
        return int.from_bytes(self.derived("seed", purpose)[:SECRET_BYTES], "big")

    def name_beside(self, *content: int | str) -> str:
        """Public identifier beside some content: only who has the secret can write it beside another one."""
        return self.derived("name", *content)[:SECRET_BYTES].hex()

    def __repr__(self) -> str:
        return "Secret(hidden)"

    def __deepcopy__(self, memo: dict[int, Any]) -> Secret:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Secret.fresh, ()
