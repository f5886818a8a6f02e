"""Pachinko allocation: Dirichlet mixtures over coarse labels, and over the fine labels of each coarse label.

Li, McCallum. "Pachinko Allocation: DAG-Structured Mixture Models of Topic Correlations". ICML 2006.
Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan. "Adaptive Federated Optimization". ICLR 2021.
https://arxiv.org/abs/2003.00295, the appendix on CIFAR-100, whose alpha is 0.1 for 500 clients; the FedEM paper
(https://arxiv.org/abs/2108.10252, Appendix I.1) takes 0.4 for 100.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lit_fed.core.seeds import generator
from lit_fed.data.data_sets.base import require
from lit_fed.data.partitions.base import Partition, check_discrete, check_enough
from lit_fed.errors import check_settings

__all__ = ["CIFAR100_COARSE_LABELS", "Pachinko"]

# fmt: off
CIFAR100_COARSE_LABELS = (
    4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7,
    6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10,
    16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16,
    12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13,
)
"""CIFAR-100's coarse label of each fine label, as in its files; five fine labels per coarse label."""
# fmt: on


@dataclass(frozen=True)
class Pachinko(Partition):
    """Sample client by client: a coarse label, one of its fine labels, then a sample without replacement.

    Each client has its own proportions: over coarse labels from Dirichlet(alpha), over the fine labels of each coarse
    label from Dirichlet(beta). Exhausted labels are removed and the rest renormalised. Each client gets n / T samples,
    so the last clients take what is left.

    Args:
        alpha: concentration over coarse labels; small: few coarse labels per client.
        beta: concentration over the fine labels of a coarse label.
        hierarchy: coarse label of each fine label, in the order of the fine labels; null: CIFAR-100's.
    """

    alpha: float = 0.4
    beta: float = 10.0
    hierarchy: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_settings(self, prefix=type(self).__name__, alpha="> 0", beta="> 0")

    def __call__(
        self, labels: np.ndarray, num_clients: int, seed: int, owner: np.ndarray | None = None
    ) -> list[np.ndarray]:
        check_enough(len(labels), num_clients)
        check_discrete(labels, "Pachinko")
        coarse = self._coarse_labels(labels)
        rng = generator(seed, 0, 0, "partition")
        left = np.bincount(labels, minlength=len(coarse))
        sizes = [len(part) for part in np.array_split(labels, num_clients)]
        drawn = [self._draw_client(size, left, coarse, rng) for size in sizes]
        client_of_sample = np.empty(len(labels), dtype=np.int64)
        shuffled = rng.permutation(len(labels))
        by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
        order = np.argsort(np.concatenate(drawn), kind="stable")
        client_of_sample[by_label] = np.repeat(np.arange(num_clients), sizes)[order]
        return np.split(np.argsort(client_of_sample, kind="stable"), np.cumsum(sizes)[:-1])

    def _coarse_labels(self, labels: np.ndarray) -> np.ndarray:
        smallest, largest = int(labels.min()), int(labels.max())
        require(
            self.hierarchy is not None or largest == len(CIFAR100_COARSE_LABELS) - 1,
            f"Pachinko: hierarchy = None means CIFAR-100's 100 labels, the largest label is {largest}; give "
            "the coarse label of each label, as [0, 0, 1, …]",
        )
        hierarchy = CIFAR100_COARSE_LABELS if self.hierarchy is None else self.hierarchy
        require(
            smallest >= 0 and largest < len(hierarchy),
            f"Pachinko: hierarchy has {len(hierarchy)} coarse labels, the labels range from {smallest} to "
            f"{largest}; give one for each label from 0",
        )
        return np.unique(hierarchy, return_inverse=True)[1]

    def _draw_client(self, size: int, left: np.ndarray, coarse: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Sample fine labels [size] of a client; subtracts them from `left`, the samples left of each label [F]."""
        log_coarse = _log_gamma_variates(self.alpha, int(coarse.max()) + 1, rng)
        log_fine = _log_gamma_variates(self.beta, len(coarse), rng)
        drawn: list[np.ndarray] = []
        while size:
            probabilities = _label_probabilities(log_coarse, log_fine, coarse, left > 0)
            batch = _until_one_is_used_up(rng.choice(len(coarse), size, p=probabilities), left)
            left -= np.bincount(batch, minlength=len(coarse))
            size -= len(batch)
            drawn.append(batch)
        return np.concatenate(drawn)


def _log_gamma_variates(shape: float, count: int, rng: np.random.Generator) -> np.ndarray:
    """Logarithms of gamma variates [count]; normalised over any subset they are Dirichlet proportions.

    A variate of shape a is one of shape a + 1 times U^(1 / a); in logarithms it does not underflow for small a.
    """
    return np.log(rng.gamma(shape + 1, size=count)) - rng.exponential(size=count) / shape


def _label_probabilities(
    log_coarse: np.ndarray, log_fine: np.ndarray, coarse: np.ndarray, present: np.ndarray
) -> np.ndarray:
    """Probability of each fine label [F] among those present [F], from coarse [K] and fine proportions."""
    member = present & (coarse == np.arange(len(log_coarse))[:, None])
    log_total = np.logaddexp.reduce(np.where(member, log_fine, -np.inf), axis=1)  # of each coarse label
    log_joint = np.where(present, log_coarse[coarse] + log_fine - log_total[coarse], -np.inf)
    joint: np.ndarray = np.exp(log_joint - log_joint.max())
    joint /= joint.sum()
    return joint


def _until_one_is_used_up(drawn: np.ndarray, left: np.ndarray) -> np.ndarray:
    """The first labels, up to the one that exhausts a label; after it the proportions change."""
    used_up = np.flatnonzero((left > 0) & (np.bincount(drawn, minlength=len(left)) >= left))
    ends = [np.flatnonzero(drawn == label)[left[label] - 1] + 1 for label in used_up]
    return drawn[: min(ends, default=len(drawn))]
