"""Clients with identical distributions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lit_fed.core.seeds import generator
from lit_fed.data.partitions.base import Partition, check_enough

__all__ = ["IID"]


@dataclass(frozen=True)
class IID(Partition):
    """Divide shuffled samples evenly; sizes differ by at most one."""

    def __call__(
        self, labels: np.ndarray, num_clients: int, seed: int, owner: np.ndarray | None = None
    ) -> list[np.ndarray]:
        check_enough(len(labels), num_clients)
        order = generator(seed, 0, 0, "partition").permutation(len(labels))
        return [np.sort(part) for part in np.array_split(order, num_clients)]
