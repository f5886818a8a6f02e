"""Clients with samples of a few labels each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lit_fed.core.seeds import generator
from lit_fed.data.data_sets.base import require
from lit_fed.data.partitions.base import Partition, check_at_least_one, check_discrete, check_enough

__all__ = ["Shards"]


@dataclass(frozen=True)
class Shards(Partition):
    """Samples are sorted by label and cut into equal shards, of which every client gets the same number at random.

    McMahan, Moore, Ramage, Hampson, Agüera y Arcas. "Communication-Efficient Learning of Deep Networks from
    Decentralized Data". AISTATS 2017. https://arxiv.org/abs/1602.05629, Section 3: the pathological non-IID partition.
    A shard in which one label ends and the next begins holds both, so a client may have a label or two more than
    shards.

    Args:
        shards_per_client: number of shards that each client gets.
    """

    shards_per_client: int = 2

    def __post_init__(self) -> None:
        check_at_least_one(self, shards_per_client=self.shards_per_client)

    def __call__(
        self, labels: np.ndarray, num_clients: int, seed: int, owner: np.ndarray | None = None
    ) -> list[np.ndarray]:
        """Sort, cut and hand out; see the base class."""
        check_discrete(labels, "Shards")
        check_enough(len(labels), num_clients)
        num_shards = self.shards_per_client * num_clients
        require(
            num_shards <= len(labels),
            f"Shards: shards_per_client = {self.shards_per_client} makes {num_shards} shards of {len(labels)} samples; "
            "choose fewer shards or clients",
        )
        rng = generator(seed, 0, 0, "partition")
        shuffled = rng.permutation(len(labels))  # samples of one label are in no order
        shards = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], num_shards)
        drawn = rng.permutation(num_shards).reshape(num_clients, -1)
        return [np.sort(np.concatenate([shards[shard] for shard in mine])) for mine in drawn]
