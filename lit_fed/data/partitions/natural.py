"""The data set's natural clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lit_fed.data.data_sets.base import require
from lit_fed.data.partitions.base import Partition

__all__ = ["Natural"]


@dataclass(frozen=True)
class Natural(Partition):
    """One client for each owner in the data set; number of clients and seed are ignored."""

    def __call__(
        self, labels: np.ndarray, num_clients: int, seed: int, owner: np.ndarray | None = None
    ) -> list[np.ndarray]:
        require(
            owner is not None,
            "the partition Natural needs the owner of each sample, which this data set does not name; "
            "choose --data.partition Dirichlet or IID",
        )
        _, counts = np.unique(np.asarray(owner), return_counts=True)
        return np.split(np.argsort(np.asarray(owner), kind="stable"), np.cumsum(counts)[:-1])
