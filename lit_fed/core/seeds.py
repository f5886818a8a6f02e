"""Stateless randomness: each stream is named by its purpose, so an exact resume needs no saved state."""

from __future__ import annotations

import hashlib
import json
import secrets
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["SECRET_BYTES", "Secret", "generator", "generators", "seed_of", "torch_generator", "uniforms"]

MANY = 16
"""Number of generators from which seeding them together is faster."""

WORD = 2**32 - 1
HALF_WORD, SHIFT = 2**16 - 1, np.uint32(16)
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


def generators(seed: int, round_idx: int, client_ids: Sequence[int], purpose: str) -> list[np.random.Generator]:
    """`generator` for many clients at once, in a fifth of the time.

    Example:
        >>> [int(one.integers(100)) for one in generators(0, 1, [2, 3], "plan")]
        [32, 88]
        >>> [int(generator(0, 1, one, "plan").integers(100)) for one in (2, 3)]
        [32, 88]
    """
    common = (seed, round_idx, zlib.crc32(purpose.encode()))
    fit = min(*common, *client_ids, 0) >= 0 and max(*common, *client_ids, 0) < 2**32
    if len(client_ids) < MANY or not fit:
        return [generator(seed, round_idx, one, purpose) for one in client_ids]
    words = np.empty((4, len(client_ids)), dtype=np.uint32)
    words[:] = [[seed], [round_idx], [0], [common[2]]]
    words[2] = client_ids
    hashed = map(_Hashed, _hashed(words))
    return [np.random.Generator(np.random.PCG64(one)) for one in hashed]  # type: ignore[arg-type]


@dataclass(eq=False)
class _Hashed(np.random.bit_generator.ISeedSequence):
    """A seed sequence with a precomputed state of four words."""

    state: np.ndarray

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> np.ndarray:
        """The state for `PCG64`, [4] uint64."""
        return self.state


def _hashed(words: np.ndarray) -> np.ndarray:
    """`np.random.SeedSequence(words).generate_state(4, np.uint64)` of many at once: words [4, C] to states [C, 4].

    NumPy guarantees that its hash (O'Neill's `seed_seq_fe`) does not change.
    """
    constants = iter(POOL_CONSTANTS)
    pool: list[np.ndarray] = [_hashmix(one, *next(constants)) for one in words]
    for source in range(4):
        for target in range(4):
            if source != target:
                hashed = _hashmix(pool[source], *next(constants))
                mixed: np.ndarray = pool[target] * np.uint32(0xCA01F9DD) - hashed * np.uint32(0x4973F715)
                pool[target] = mixed ^ (mixed >> SHIFT)
    state = np.stack([_hashmix(pool[position % 4], *pair) for position, pair in enumerate(STATE_CONSTANTS)], axis=1)
    return state.astype("<u4").view("<u8").astype(np.uint64)


def _constants(value: int, factor: int, count: int) -> list[tuple[np.uint32, np.uint32]]:
    """Powers of a factor times a value, in pairs of neighbours."""
    words = [value * pow(factor, power, WORD + 1) & WORD for power in range(count + 1)]
    return [(np.uint32(before), np.uint32(after)) for before, after in pairwise(words)]


POOL_CONSTANTS, STATE_CONSTANTS = _constants(0x43B0D7E5, 0x931E8875, 16), _constants(0x8B51F9DD, 0x58F38DED, 8)
"""Of the words that enter the hash, 4 and each of 4 into the 3 others, and of the 8 that leave it."""


def _hashmix(value: np.ndarray, before: np.uint32, after: np.uint32) -> np.ndarray:
    """The hash of one word of each client."""
    hashed: np.ndarray = (value ^ before) * after
    hashed ^= hashed >> SHIFT
    return hashed


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
