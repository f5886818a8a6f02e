"""Bulyan: repeated selection by Krum, then the mean of values close to the median per coordinate.

El Mhamdi, Guerraoui, Rouault. "The Hidden Vulnerability of Distributed Learning in Byzantium". ICML 2018.
https://arxiv.org/abs/1802.07927, Bulyan over Krum.

Symbols:
    n, f -> rows, num_attackers
    θ    -> taken           n − 2f changes that are selected
    β    -> θ − 2f          values that are averaged per coordinate
Deviations:
    If Krum has no neighbours left to count, it counts the closest; two rows that are each other's closest then have
    the same score. Ties of scores go to the client with the smaller number, ties of distances from the median to the
    smaller value. Selected changes have equal weights.
"""

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from lit_fed.wrappers.robust.rules.base import Aggregate, Rule, Started
from lit_fed.wrappers.robust.rules.krum import krum_scores
from lit_fed.wrappers.robust.rules.rows import Rows, sorted_rows, squared_distances, within

__all__ = ["Bulyan"]


@dataclass(frozen=True)
class Bulyan(Rule):
    """Repeated Krum, and then the mean of the values around the median per coordinate.

    Args:
        num_attackers: f, malicious clients to tolerate, among at least 4f + 3; null: the actual number, or a fifth of
            the clients if unknown.
    """

    num_attackers: int | None = None

    by_coordinate = True

    ranges = {"num_attackers": ">= 0"}

    def against(self, num_attackers: int) -> int:
        """F."""
        return num_attackers if self.num_attackers is None else self.num_attackers

    def fewest(self, num_attackers: int) -> int:
        """4f + 3."""
        return 4 * num_attackers + 3

    def judge(self, rows: Rows, weights: Tensor, started: Started) -> Aggregate:
        """Both stages; a row's share is that of its used numbers, 0 if it was not selected."""
        f = started.num_attackers
        taken = selected(squared_distances(rows.gram()), f)
        total, count = torch.zeros_like(weights[taken]), 0

        def one(piece: Tensor) -> Tensor:
            nonlocal total, count
            value, low, high = around_median(sorted_rows(piece), len(taken) - 2 * f)
            total, count = total + within(piece, low, high).sum(1), count + piece.shape[1]
            return value

        change = rows.select(taken).by_coordinate(one)
        return Aggregate(change, torch.zeros_like(weights).index_copy(0, taken, total / max(count, 1)))


def selected(squared: Tensor, num_attackers: int) -> Tensor:
    """The n − 2f rows that Krum selects one after another among the remaining ones; ascending int64.

    Args:
        squared: squared distances, [n, n] float64.
        num_attackers: f.
    """
    left = list(range(len(squared)))
    for _ in range(len(squared) - 2 * num_attackers):
        scores = krum_scores(squared[left][:, left], num_attackers)
        left.pop(int(scores.argmin()))
    return torch.tensor(sorted(set(range(len(squared))) - set(left)), device=squared.device)


def around_median(ordered: list[Tensor], count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The mean of the values closest to the median per coordinate, and the smallest and largest of these.

    Args:
        ordered: values in order, rows [p].
        count: number of averaged values, β.
    """
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    best, low, high = _window(ordered, 0, count)
    far = torch.maximum(middle - low, high - middle)
    for first in range(1, len(ordered) - count + 1):
        total, start, end = _window(ordered, first, count)
        now = torch.maximum((middle - start).abs(), (end - middle).abs())
        closer = now < far
        far, best = torch.where(closer, now, far), torch.where(closer, total, best)
        low, high = torch.where(closer, start, low), torch.where(closer, end, high)
    return best / count, low, high


def _window(ordered: list[Tensor], first: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sum of `count` values from `first` on, with the first and the last of them; not by differences of larger sums."""
    window = ordered[first : first + count]
    return reduce(Tensor.add, window), window[0], window[-1]
