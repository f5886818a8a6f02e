"""Bulyan: changes that Krum takes one after another, and of these what lies close to the median at each number.

El Mhamdi, Guerraoui, Rouault. "The Hidden Vulnerability of Distributed Learning in Byzantium". ICML 2018.
https://arxiv.org/abs/1802.07927, Bulyan over Krum.

Symbols:
    n, f -> rows, num_attackers
    θ    -> taken           n − 2f changes that are selected
    β    -> θ − 2f          values that are averaged at each number
Deviations:
    Where Krum has no neighbours left to count, it counts the closest; two rows that are each other's closest then have
    the same score. Of equal scores the client with the smaller number wins, of values equally far from the median the
    smaller. What is selected counts the same, whatever clients weigh.
"""

from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import torch
from torch import Tensor

from lit_fed.wrappers.robust.rules.base import Aggregate, Rule, Started
from lit_fed.wrappers.robust.rules.krum import krum_scores
from lit_fed.wrappers.robust.rules.rows import Rows, sorted_rows, squared_distances, within

__all__ = ["Bulyan"]


@dataclass(frozen=True)
class Bulyan(Rule):
    """Repeated Krum, and then the mean of what lies around the median at each number.

    Args:
        num_attackers: f, clients of a round that may lie, of at least 4f + 3; null: as many as there are, or a fifth
            of the clients where nobody knows.
    """

    num_attackers: int | None = None

    by_coordinate = True

    ranges: ClassVar[dict[str, str]] = {"num_attackers": ">= 0"}

    def against(self, num_attackers: int) -> int:
        """F."""
        return num_attackers if self.num_attackers is None else self.num_attackers

    def fewest(self, num_attackers: int) -> int:
        """4f + 3."""
        return 4 * num_attackers + 3

    def judge(self, rows: Rows, weights: Tensor, started: Started) -> Aggregate:
        """Both stages; a row is kept as far as its numbers are, and not at all if it was not selected."""
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
    """The n − 2f rows that Krum takes one after another, each among those that are left; ascending int64.

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
    """The mean of the values closest to the median at each place, and the smallest and the largest of these.

    Args:
        ordered: values in order, rows [p].
        count: how many are averaged, β.
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
    """Sum of so many values from the first on, the first and the last of them; never by differences of larger sums."""
    window = ordered[first : first + count]
    return reduce(Tensor.add, window), window[0], window[-1]
