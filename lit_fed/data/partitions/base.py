"""Interface of partitions, shared checks and helpers.

A partition is a frozen dataclass, a pure function of (labels, seed). Each sample goes to exactly one client and no
client is empty. Clients below the minimum get samples from the largest clients; nothing is resampled, so it terminates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from lit_fed.data.data_sets.base import require

__all__ = ["Partition", "check_discrete", "check_enough", "deal", "fill_up"]


class Partition(ABC):
    """Base of everything `--data.partition` accepts."""

    @abstractmethod
    def __call__(
        self, labels: np.ndarray, num_clients: int, seed: int, owner: np.ndarray | None = None
    ) -> list[np.ndarray]:
        """Divide the samples; the same arguments give the same partition.

        Args:
            labels: labels [n] or [n, L].
            num_clients: number of clients T.
            seed: seed of the partition.
            owner: natural client of each sample [n], where known.

        Returns:
            T ascending arrays of sample indices, disjoint, none empty, together all of 0 … n - 1.
        """

    def groups(self, num_clients: int, seed: int) -> np.ndarray | None:
        """True group of each client [T], if the partition has groups; used by oracles and figures."""
        return None

    def altered(
        self, x: np.ndarray, y: np.ndarray, parts: list[np.ndarray], seed: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and labels after the partition's distribution shift; by default unchanged.

        Args:
            x: inputs [n, ...], never changed in place.
            y: labels [n] or [n, L], never changed in place.
            parts: sample indices of each client.
            seed: seed of the partition.
        """
        return x, y


def fill_up(parts: list[np.ndarray], min_samples: int) -> list[np.ndarray]:
    """Move samples, one at a time, from the currently largest client to each one below the minimum.

    At most T · min_samples moves.

    Args:
        parts: sample indices of each client, T arrays.
        min_samples: minimum of every client, at most 1/T of all samples (`check_enough`).

    Returns:
        T new arrays; clients that neither give nor receive are unchanged.
    """
    sizes, parts = np.array([len(part) for part in parts]), list(parts)
    for client_id in np.flatnonzero(sizes < min_samples):
        while sizes[client_id] < min_samples:
            donor = int(sizes.argmax())
            parts[client_id] = np.append(parts[client_id], parts[donor][-1])
            parts[donor] = parts[donor][:-1]
            sizes[client_id] += 1
            sizes[donor] -= 1
    return parts


def deal(rows: np.ndarray, num_clients: int, alpha: float, rng: np.random.Generator) -> list[np.ndarray]:
    """Divide rows among clients in proportions sampled from a symmetric Dirichlet distribution.

    Args:
        rows: sample indices [m].
        num_clients: number of clients T.
        alpha: concentration of the distribution over clients.
        rng: generator of the proportions, the counts and the order.

    Returns:
        T arrays, possibly empty.
    """
    proportions = rng.dirichlet(np.full(num_clients, alpha))
    counts = rng.multinomial(len(rows), proportions)
    return np.split(rng.permutation(rows), np.cumsum(counts)[:-1])


def check_enough(num_samples: int, num_clients: int, min_samples: int = 1) -> None:
    """Raise a `ConfigError` unless there is a client and `min_samples` samples for each."""
    require(num_clients >= 1, f"num_clients = {num_clients}; choose a whole number of at least 1")
    require(
        num_clients <= num_samples,
        f"num_clients = {num_clients}, but there are only {num_samples} samples; choose at most {num_samples} clients",
    )
    require(
        num_clients * min_samples <= num_samples,
        f"min_samples = {min_samples} for each of {num_clients} clients needs {num_clients * min_samples:,} samples, "
        f"there are {num_samples:,}; choose min_samples = {num_samples // num_clients} or less, or "
        f"at most {max(1, num_samples // min_samples)} clients",
    )


def check_discrete(labels: np.ndarray, name: str) -> None:
    """Raise a `ConfigError` unless there is one integer label per sample, as the partition `name` needs."""
    integer = labels.ndim == 1 and labels.dtype.kind in "iub"
    require(
        integer,
        f"the partition {name} needs class labels, these are {labels.dtype} of shape {list(labels.shape)}; "
        "choose --data.partition IID",
    )
