"""Clients whose samples come from one distribution."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lit_fed.core.seeds import generator
from lit_fed.data.partitions.base import Partition, check_enough

__all__ = ["IID"]


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
