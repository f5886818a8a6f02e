"""Partitions into groups of clients with different distributions; oracles and figures use the true groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lit_fed.core.seeds import generator
from lit_fed.data.data_sets.base import require
from lit_fed.data.partitions.base import Partition, check_discrete, check_enough
from lit_fed.data.partitions.iid import IID

__all__ = ["LabelGroups", "LabelPermutations", "Rotations"]


class _Grouped(Partition):
    """Client i belongs to group i mod G."""

    num_groups: int

    def _check(self, num_clients: int) -> None:
        check_enough(num_clients, num_clients)
        require(
            1 <= self.num_groups <= num_clients,
            f"{type(self).__name__}: num_groups = {self.num_groups} for {num_clients} clients; "
            f"choose a number from 1 to {num_clients}",
        )

    def groups(self, num_clients: int, seed: int) -> np.ndarray:
        return np.arange(num_clients) % self.num_groups


@dataclass(frozen=True)
class LabelGroups(_Grouped):
    """Cut the shuffled labels into groups; a client only has samples with its group's labels.

    Sui et al. "Find Your Friends: Personalized Federated Learning with the Right Collaborators". 2022.
    https://arxiv.org/abs/2210.06597, Section 4.1.

    Args:
        num_groups: number of groups G, of labels and of clients.
        inside: partition of a group's samples among its clients.
    """

    num_groups: int = 4
    inside: Partition = IID()  # noqa: RUF009 - frozen

    def __call__(
        self, labels: np.ndarray, num_clients: int, seed: int, owner: np.ndarray | None = None
    ) -> list[np.ndarray]:
        self._check(num_clients)
        check_discrete(labels, "LabelGroups")
        values, label_idx = np.unique(labels, return_inverse=True)
        require(
            self.num_groups <= len(values),
            f"LabelGroups: num_groups = {self.num_groups}, but there are only {len(values)} labels; choose at most as "
            "many",
        )
        members = np.array_split(generator(seed, 0, 0, "label groups").permutation(len(values)), self.num_groups)
        parts: list[np.ndarray] = [np.empty(0, dtype=np.int64)] * num_clients
        group_of_client = self.groups(num_clients, seed)
        for group, own_labels in enumerate(members):
            rows = np.flatnonzero(np.isin(label_idx, own_labels))
            clients = np.flatnonzero(group_of_client == group)
            own_seed = int(generator(seed, 0, group, "label groups").integers(2**32))
            inside = self.inside(labels[rows], len(clients), own_seed, None if owner is None else owner[rows])
            for client_id, part in zip(clients, inside, strict=True):
                parts[client_id] = rows[part]
        return parts


@dataclass(frozen=True)
class LabelPermutations(_Grouped):
    """Permute the labels of each group of clients (a concept shift).

    Mestoukirdi, Zecchin, Gesbert, Li, Gresset. "User-Centric Federated Learning". 2021.
    https://arxiv.org/abs/2110.09869, Section IV.

    Args:
        num_groups: number of groups G; the first keeps its labels.
        partition: partition of the samples among clients.
    """

    num_groups: int = 4
    partition: Partition = IID()  # noqa: RUF009 - frozen

    def __call__(
        self, labels: np.ndarray, num_clients: int, seed: int, owner: np.ndarray | None = None
    ) -> list[np.ndarray]:
        self._check(num_clients)
        check_discrete(labels, "LabelPermutations")
        return self.partition(labels, num_clients, seed, owner)

    def altered(
        self, x: np.ndarray, y: np.ndarray, parts: list[np.ndarray], seed: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same inputs, and labels permuted group by group."""
        values, label_idx = np.unique(y, return_inverse=True)
        new = y.copy()
        for rows, group in zip(parts, self.groups(len(parts), seed), strict=True):
            if group:
                order = generator(seed, 0, int(group), "label permutation").permutation(len(values))
                new[rows] = values[order[label_idx[rows]]]
        return x, new


@dataclass(frozen=True)
class Rotations(_Grouped):
    """Rotate the images of group g by g · 360 / G degrees, counterclockwise (a covariate shift).

    Mestoukirdi, Zecchin, Gesbert, Li, Gresset. "User-Centric Federated Learning". 2021.
    https://arxiv.org/abs/2110.09869, Section IV: four groups, their labels divided by a Dirichlet distribution.

    Args:
        num_groups: number of groups G: 1, 2 or 4; the first is not rotated.
        partition: partition of the samples among clients.
    """

    num_groups: int = 4
    partition: Partition = IID()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        require(
            self.num_groups in (1, 2, 4),
            f"Rotations: num_groups = {self.num_groups}; choose 1, 2 or 4, for multiples of 90 degrees",
        )

    def __call__(
        self, labels: np.ndarray, num_clients: int, seed: int, owner: np.ndarray | None = None
    ) -> list[np.ndarray]:
        self._check(num_clients)
        return self.partition(labels, num_clients, seed, owner)

    def altered(
        self, x: np.ndarray, y: np.ndarray, parts: list[np.ndarray], seed: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Images [n, ..., H, W] rotated group by group, labels unchanged."""
        self._check_pictures(x)
        new = x.copy()
        for rows, group in zip(parts, self.groups(len(parts), seed), strict=True):
            if group:
                new[rows] = np.rot90(x[rows], group * 4 // self.num_groups, axes=(-2, -1))
        return new, y

    def _check_pictures(self, x: np.ndarray) -> None:
        square = x.ndim >= 3 and x.shape[-1] == x.shape[-2]
        require(
            square or (x.ndim >= 3 and self.num_groups < 4),
            f"Rotations: num_groups = {self.num_groups} needs images, square ones for four groups; an input "
            f"has shape {list(x.shape[1:])}; choose another partition",
        )
