"""Clients with few labels each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lit_fed.core.seeds import generator
from lit_fed.data.data_sets.base import require
from lit_fed.data.partitions.base import Partition, check_discrete, check_enough
from lit_fed.errors import check_settings

__all__ = ["Shards"]


@dataclass(frozen=True)
class Shards(Partition):
    """Sort samples by label, cut them into equal shards, and give each client the same number of random shards.

    McMahan, Moore, Ramage, Hampson, Agüera y Arcas. "Communication-Efficient Learning of Deep Networks from
    Decentralized Data". AISTATS 2017. https://arxiv.org/abs/1602.05629, Section 3: the pathological non-IID partition.
    A shard may span two labels, so a client may have more labels than shards.

    Args:
        shards_per_client: shards of each client.
    """

    shards_per_client: int = 2

    def __post_init__(self) -> None:
        check_settings(self, prefix=type(self).__name__, shards_per_client=">= 1")

    def __call__(
        self, labels: np.ndarray, num_clients: int, seed: int, owner: np.ndarray | None = None
    ) -> list[np.ndarray]:
        check_discrete(labels, "Shards")
        check_enough(len(labels), num_clients)
        num_shards = self.shards_per_client * num_clients
        require(
            num_shards <= len(labels),
            f"Shards: shards_per_client = {self.shards_per_client} needs {num_shards} shards, there are "
            f"{len(labels)} samples; choose fewer shards or clients",
        )
        rng = generator(seed, 0, 0, "partition")
        shuffled = rng.permutation(len(labels))  # random order within a label
        shards = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], num_shards)
        drawn = rng.permutation(num_shards).reshape(num_clients, -1)
        return [np.sort(np.concatenate([shards[shard] for shard in mine])) for mine in drawn]
