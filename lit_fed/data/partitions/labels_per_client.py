"""Clients with the same small number of labels each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lit_fed.core.seeds import generator
from lit_fed.data.data_sets.base import require
from lit_fed.data.partitions.base import Partition, check_discrete
from lit_fed.errors import check_settings

__all__ = ["LabelsPerClient"]


@dataclass(frozen=True)
class LabelsPerClient(Partition):
    """Give each client the same number of labels, and divide the samples of a label evenly among its clients.

    Li, Diao, Chen, He. "Federated Learning on Non-IID Data Silos: An Experimental Study". ICDE 2022.
    https://arxiv.org/abs/2102.02079, the quantity-based label imbalance, #C = k. Each client in turn draws labels that
    the fewest clients have so far, so that all labels are used, by numbers of clients that differ by 1 at most.

    Args:
        labels_per_client: labels of each client.
    """

    labels_per_client: int = 2

    def __post_init__(self) -> None:
        check_settings(self, prefix=type(self).__name__, labels_per_client=">= 1")

    def __call__(
        self, labels: np.ndarray, num_clients: int, seed: int, owner: np.ndarray | None = None
    ) -> list[np.ndarray]:
        check_discrete(labels, "LabelsPerClient")
        kinds, samples = np.unique(labels, return_counts=True)
        each, place = self.labels_per_client, f"LabelsPerClient: labels_per_client = {self.labels_per_client}"
        require(each <= len(kinds), f"{place}, and there are {len(kinds)} labels; choose at most so many")
        require(
            num_clients * each >= len(kinds),
            f"{place} leaves labels without a client: {num_clients} clients have {num_clients * each} of "
            f"{len(kinds)} labels; choose more labels or clients",
        )
        rng = generator(seed, 0, 0, "partition")
        clients: list[list[int]] = [[] for _ in kinds]  # of each label
        for client in range(num_clients):
            order = np.lexsort((rng.random(len(kinds)), np.array([len(one) for one in clients])))
            for kind in order[:each]:
                clients[kind].append(client)
        lacks = [str(kinds[one]) for one, mine in enumerate(clients) if len(mine) > samples[one]]
        require(not lacks, f"{place}: label {(*lacks, '')[0]} has fewer samples than clients; choose fewer clients")
        parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
        for kind, mine in zip(kinds, clients, strict=True):
            rows = rng.permutation(np.flatnonzero(labels == kind))
            for client, part in zip(mine, np.array_split(rows, len(mine)), strict=True):
                parts[client].append(part)
        return [np.sort(np.concatenate(one)) for one in parts]
