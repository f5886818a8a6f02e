"""Dividing a pool of samples among clients: frozen classes over pure functions of (labels, seed).

Every sample goes to exactly one client and no client stays empty. A partition that leaves clients (almost) empty is
repaired by moving samples from the largest clients; it is never drawn again, so it always ends.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from lit_fed.core.seeds import generator
from lit_fed.data.data_sets.base import require

__all__ = [
    "IID",
    "Dirichlet",
    "Natural",
    "Partition",
    "check_at_least_one",
    "check_discrete",
    "check_enough",
    "check_positive",
    "deal",
    "fill_up",
]


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
        """The true group of each client [T], where there are such groups; for oracles and pictures."""
        return None

    def altered(
        self, x: np.ndarray, y: np.ndarray, parts: list[np.ndarray], seed: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and labels as the clients see them, where their distributions are made to differ.

        Args:
            x: inputs [n, ...], never changed in place.
            y: labels [n] or [n, L], never changed in place.
            parts: sample indices of each client.
            seed: seed of the partition.
        """
        return x, y


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Each label, or group of labels, is shared out in proportions drawn from a Dirichlet distribution over clients.

    Without `label_groups` as in the text of the FedEM paper (arXiv:2108.10252), one draw per label; with it as in the
    code published with that paper for CIFAR-10 (3 groups).

    Args:
        alpha: concentration; small: few clients hold most of a label.
        label_groups: cut the shuffled labels into so many groups first; None: each label is its own group.
        min_samples: samples that every client gets at least, where there are enough of them.
    """

    alpha: float = 0.4
    label_groups: int | None = None
    min_samples: int = 2

    def __post_init__(self) -> None:
        check_positive(self, alpha=self.alpha)
        require(
            self.label_groups is None or self.label_groups >= 1,
            f"Dirichlet: label_groups = {self.label_groups}; choose a whole number of at least 1, or null",
        )
        check_at_least_one(self, min_samples=self.min_samples)

    def __call__(
        self, labels: np.ndarray, num_clients: int, seed: int, owner: np.ndarray | None = None
    ) -> list[np.ndarray]:
        """Divide by label; see the base class."""
        check_enough(len(labels), num_clients)
        check_discrete(labels, "Dirichlet")
        rng = generator(seed, 0, 0, "partition")
        dealt = [deal(rows, num_clients, self.alpha, rng) for rows in _label_sets(labels, self.label_groups, rng)]
        parts = [np.concatenate(pieces) for pieces in zip(*dealt, strict=True)]
        return [np.sort(part) for part in fill_up(parts, self.min_samples)]


@dataclass(frozen=True)
class IID(Partition):
    """Samples are shuffled and dealt out evenly; sizes differ by one at most."""

    def __call__(
        self, labels: np.ndarray, num_clients: int, seed: int, owner: np.ndarray | None = None
    ) -> list[np.ndarray]:
        """Divide at random; see the base class."""
        check_enough(len(labels), num_clients)
        order = generator(seed, 0, 0, "partition").permutation(len(labels))
        return [np.sort(part) for part in np.array_split(order, num_clients)]


@dataclass(frozen=True)
class Natural(Partition):
    """One client for each owner that the data set names; the number of clients and the seed play no part."""

    def __call__(
        self, labels: np.ndarray, num_clients: int, seed: int, owner: np.ndarray | None = None
    ) -> list[np.ndarray]:
        """Group by owner, in ascending order of the owners; see the base class."""
        require(
            owner is not None,
            "the partition Natural needs to know who owns each sample, and this data set does not say; "
            "choose --data.partition Dirichlet or IID",
        )
        _, counts = np.unique(np.asarray(owner), return_counts=True)
        return np.split(np.argsort(np.asarray(owner), kind="stable"), np.cumsum(counts)[:-1])


def fill_up(parts: list[np.ndarray], min_samples: int) -> list[np.ndarray]:
    """Move samples, one at a time, from the currently largest client to each one below the minimum.

    At most T · min_samples moves. Where the samples do not suffice, the minimum is what they suffice for.

    Args:
        parts: sample indices of each client, T arrays.
        min_samples: samples that every client shall have.

    Returns:
        T new arrays; clients that neither give nor receive are unchanged.
    """
    sizes = np.array([len(part) for part in parts])
    parts, minimum = list(parts), min(min_samples, int(sizes.sum()) // len(parts))
    for client_id in np.flatnonzero(sizes < minimum):
        while sizes[client_id] < minimum:
            donor = int(sizes.argmax())
            parts[client_id] = np.append(parts[client_id], parts[donor][-1])
            parts[donor] = parts[donor][:-1]
            sizes[client_id] += 1
            sizes[donor] -= 1
    return parts


def _label_sets(labels: np.ndarray, label_groups: int | None, rng: np.random.Generator) -> list[np.ndarray]:
    """Sample indices of each label, or of each group of labels."""
    values, label_idx = np.unique(labels, return_inverse=True)
    num_groups = len(values) if label_groups is None else label_groups
    require(
        num_groups <= len(values),
        f"Dirichlet: label_groups = {num_groups}, but there are only {len(values)} labels; choose at most as many",
    )
    group_of_label = np.empty(len(values), dtype=np.int64)
    for group_idx, members in enumerate(np.array_split(rng.permutation(len(values)), num_groups)):
        group_of_label[members] = group_idx
    group_of_sample = group_of_label[label_idx]
    sizes = np.bincount(group_of_sample, minlength=num_groups)
    return np.split(np.argsort(group_of_sample, kind="stable"), np.cumsum(sizes)[:-1])


def deal(rows: np.ndarray, num_clients: int, alpha: float, rng: np.random.Generator) -> list[np.ndarray]:
    """Share out rows in proportions drawn from a symmetric Dirichlet distribution.

    Args:
        rows: sample indices [m].
        num_clients: number of clients T.
        alpha: concentration of the distribution over clients.
        rng: draws the proportions, the counts and the order.

    Returns:
        T arrays, some of them empty.
    """
    proportions = rng.dirichlet(np.full(num_clients, alpha))
    counts = rng.multinomial(len(rows), proportions)
    return np.split(rng.permutation(rows), np.cumsum(counts)[:-1])


def check_positive(partition: Partition, **values: float) -> None:
    """Raise a `ConfigError` unless these fields of a partition are finite numbers above 0."""
    for field, value in values.items():
        require(
            0 < value < math.inf,
            f"{type(partition).__name__}: {field} = {value}; choose a number above 0, such as 0.4",
        )


def check_at_least_one(partition: Partition, **values: int) -> None:
    """Raise a `ConfigError` unless these fields of a partition are at least 1."""
    for field, value in values.items():
        require(value >= 1, f"{type(partition).__name__}: {field} = {value}; choose a whole number of at least 1")


def check_enough(num_samples: int, num_clients: int) -> None:
    """Raise a `ConfigError` unless there are a client at least and a sample for each."""
    require(num_clients >= 1, f"num_clients = {num_clients}; choose a whole number of at least 1")
    require(
        num_clients <= num_samples,
        f"num_clients = {num_clients}, but there are only {num_samples} samples; choose at most {num_samples} clients",
    )


def check_discrete(labels: np.ndarray, name: str) -> None:
    """Raise a `ConfigError` unless there is one integer label per sample, as the partition `name` needs."""
    integer = labels.ndim == 1 and labels.dtype.kind in "iub"
    require(
        integer,
        f"the partition {name} goes by class labels, and these are {labels.dtype} of shape {list(labels.shape)}; "
        "choose --data.partition IID",
    )
