"""Clients of different sizes with the same label distribution."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lit_fed.core.seeds import generator
from lit_fed.data.partitions.base import Partition, check_enough, deal, fill_up
from lit_fed.errors import check_settings

__all__ = ["QuantitySkew"]


@dataclass(frozen=True)
class QuantitySkew(Partition):
    """Divide shuffled samples in proportions sampled from a Dirichlet distribution over clients.

    Li, Diao, Chen, He. "Federated Learning on Non-IID Data Silos: An Experimental Study". ICDE 2022.
    https://arxiv.org/abs/2102.02079, the quantity skew.

    Args:
        alpha: concentration; small: few clients hold most of the samples.
        min_samples: minimum number of samples of each client.
    """

    alpha: float = 0.5
    min_samples: int = 2

    def __post_init__(self) -> None:
        check_settings(self, prefix=type(self).__name__, alpha="> 0", min_samples=">= 1")

    def __call__(
        self, labels: np.ndarray, num_clients: int, seed: int, owner: np.ndarray | None = None
    ) -> list[np.ndarray]:
        check_enough(len(labels), num_clients, self.min_samples)
        parts = deal(np.arange(len(labels)), num_clients, self.alpha, generator(seed, 0, 0, "partition"))
        return [np.sort(part) for part in fill_up(parts, self.min_samples)]
