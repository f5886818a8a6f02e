"""Dirichlet label skew."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lit_fed.core.seeds import generator
from lit_fed.data.data_sets.base import require
from lit_fed.data.partitions.base import Partition, check_discrete, check_enough, deal, fill_up
from lit_fed.errors import check_settings

__all__ = ["Dirichlet"]


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Divide each label, or group of labels, in proportions sampled from a Dirichlet distribution over clients.

    Without `label_groups` one sample per label, as in the text of the FedEM paper (arXiv:2108.10252); with it as in its
    published code for CIFAR-10 (3 groups).

    Args:
        alpha: concentration; small: few clients hold most of a label.
        label_groups: number of groups into which the shuffled labels are cut; None: each label is a group.
        min_samples: minimum number of samples of each client.
    """

    alpha: float = 0.4
    label_groups: int | None = None
    min_samples: int = 2

    def __post_init__(self) -> None:
        check_settings(self, prefix=type(self).__name__, alpha="> 0", label_groups=">= 1", min_samples=">= 1")

    def __call__(
        self, labels: np.ndarray, num_clients: int, seed: int, owner: np.ndarray | None = None
    ) -> list[np.ndarray]:
        check_enough(len(labels), num_clients, self.min_samples)
        check_discrete(labels, "Dirichlet")
        rng = generator(seed, 0, 0, "partition")
        dealt = [deal(rows, num_clients, self.alpha, rng) for rows in _label_sets(labels, self.label_groups, rng)]
        parts = [np.concatenate(pieces) for pieces in zip(*dealt, strict=True)]
        return [np.sort(part) for part in fill_up(parts, self.min_samples)]


def _label_sets(labels: np.ndarray, label_groups: int | None, rng: np.random.Generator) -> list[np.ndarray]:
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
