"""Who drops out, who is late and who can be reached: pure functions of the seed, equal on every rank."""

from __future__ import annotations

import csv
import hashlib
from functools import lru_cache
from pathlib import Path

import numpy as np

from lit_fed.core.seeds import generator, generators
from lit_fed.errors import ConfigError

__all__ = [
    "MarkovChain",
    "digest_of_numbers",
    "drops_out",
    "markov_chain",
    "per_client",
    "read_numbers",
    "work_times",
]


def drops_out(seed: int, round_idx: int, client_ids: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Which clients [C] drop out of a round, [C] bool; each for itself, once for all phases of the round.

    Args:
        seed: training seed.
        round_idx: round, from 0.
        client_ids: the clients, [C].
        probabilities: of every client of the population, [T], looked up by id.

    Example:
        >>> ids = np.arange(10)
        >>> ids[drops_out(0, 0, ids, np.full(10, 0.3))].tolist()
        [0, 1, 2, 3, 7]
    """
    chances = probabilities[client_ids]
    drawn = [
        bool(chance > 0) and generator(seed, round_idx, client_id, "drop").random() < chance
        for client_id, chance in zip(client_ids.tolist(), chances.tolist(), strict=True)
    ]
    return np.array(drawn, dtype=bool)


def work_times(
    seed: int, round_idx: int, client_ids: np.ndarray, least: float, means: np.ndarray, purpose: str = "work time"
) -> np.ndarray:
    """How long each client [C] computes, [C] float64: T_min plus an exponential variable with the client's mean.

    Args:
        seed: training seed.
        round_idx: round, from 0.
        client_ids: the clients, [C].
        least: T_min.
        means: mean of what chance adds, of every client of the population, [T], looked up by id.
        purpose: names the stream of random numbers.
    """
    drawn = [one.exponential() for one in generators(seed, round_idx, client_ids.tolist(), purpose)]
    times: np.ndarray = least + means[client_ids] * np.array(drawn, dtype=np.float64)
    return times


class MarkovChain:
    """Clients that come and go, each for itself: a two-state Markov chain that begins with its stationary shares.

    A round costs one draw for each client if rounds are asked for in their order; an earlier one begins anew.

    Args:
        num_clients: T.
        comes: probability with which a client that is away is there in the next round, a.
        goes: probability with which a client that is there is away in the next round, b.
        seed: training seed.
    """

    def __init__(self, num_clients: int, comes: float, goes: float, seed: int) -> None:
        self.num_clients, self.comes, self.goes, self.seed = num_clients, comes, goes, seed
        self._round_idx, self._there = -1, np.zeros(0, dtype=bool)

    @property
    def share(self) -> float:
        """Share of the rounds in which a client is there, a/(a + b)."""
        return self.comes / (self.comes + self.goes)

    def at(self, round_idx: int) -> np.ndarray:
        """Which clients are there in a round, [T] bool."""
        if round_idx < self._round_idx:
            self._round_idx = -1
        while self._round_idx < round_idx:
            self._round_idx += 1
            drawn = generator(self.seed, self._round_idx, 0, "available").random(self.num_clients)
            if self._round_idx == 0:
                self._there = drawn < self.share
            else:
                self._there = np.where(self._there, drawn >= self.goes, drawn < self.comes)
        return self._there.copy()


@lru_cache(maxsize=4)
def markov_chain(num_clients: int, comes: float, goes: float, seed: int) -> MarkovChain:
    """The chain of these settings, which remembers the round that it was last asked for."""
    return MarkovChain(num_clients, comes, goes, seed)


def read_numbers(path: str, place: str) -> np.ndarray:
    """The numbers of a .npy file, or of a .csv file without a header; not to be written to.

    Args:
        path: of the file, which is read again once it has changed.
        place: the option that names it, for error messages.

    Raises:
        ConfigError: naming option and file, if it cannot be read.
    """
    try:
        about = Path(path).stat()
    except (OSError, ValueError):
        return _numbers_of(path, place, 0, 0)  # which says what is wrong
    return _numbers_of(path, place, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=8)
def _numbers_of(path: str, place: str, changed: int, size: int) -> np.ndarray:
    try:
        if path.endswith(".npy"):
            return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
        if not path.endswith(".csv"):
            raise ConfigError(f"{place} is {path}; give a .npy file, or a .csv file without a header")
        with Path(path).open(newline="", encoding="utf-8") as lines:
            return np.array([[_number(cell) for cell in row] for row in csv.reader(lines) if row])
    except (OSError, ValueError, EOFError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{place} {path} cannot be read: {error}; give a .npy or .csv file of numbers") from error


def _number(cell: str) -> float:
    """A number, or True or False."""
    words = {"true": 1.0, "false": 0.0}
    return words[cell.strip().lower()] if cell.strip().lower() in words else float(cell)


def per_client(given: float | list[float] | str, num_clients: int, place: str) -> np.ndarray:
    """One number for each client, [T] float64.

    Args:
        given: one number for all, a list, or a file.
        num_clients: T.
        place: the option, for error messages.

    Raises:
        ConfigError: naming the option, if there are not as many numbers as clients.
    """
    if isinstance(given, str):
        given = read_numbers(given, place).ravel().tolist()
    numbers = np.atleast_1d(np.asarray(given, dtype=np.float64))
    if isinstance(given, list) and len(numbers) != num_clients:
        raise ConfigError(f"{place} has {len(numbers)} numbers, and there are {num_clients} clients; give one for each")
    return np.broadcast_to(numbers, num_clients)


def digest_of_numbers(path: str, place: str) -> str:
    """What tells the numbers of a file from others, 32 hexadecimal digits; arguments as of `read_numbers`."""
    numbers = np.ascontiguousarray(read_numbers(path, place), dtype=np.float64)
    digest = hashlib.blake2b(str(numbers.shape).encode(), digest_size=16)
    digest.update(numbers.tobytes())
    return digest.hexdigest()
