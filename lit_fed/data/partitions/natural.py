"""Clients that the data set itself names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lit_fed.data.data_sets.base import require
from lit_fed.data.partitions.base import Partition

__all__ = ["Natural"]


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
