"""Interface of robust rules: from rows of deltas to one change, with the share of each row in it.

Buckets:
    Karimireddy, He, Jaggi. "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing". ICLR 2022.
    https://arxiv.org/abs/2006.09365, Algorithm 1.
"""

# Annotations are not postponed, so that the command line can read those of subclasses in other modules.
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.types import Tree
from lit_fed.errors import check_settings
from lit_fed.wrappers.robust.rules.rows import Rows

__all__ = ["Aggregate", "CoordinateRule", "Rule", "Started", "WholeRowRule"]


class Aggregate(NamedTuple):
    """Result of a rule for m rows."""

    change: Tree  # leaves [...] float64
    kept: Tensor  # [m] float64 in [0, 1]: used share of each row, 1 as in an average


class Started(NamedTuple):
    """Inputs of a rule besides the rows."""

    num_attackers: int  # f, rows that may be malicious
    last: Tree = None  # its last result, leaves [...]; None: unknown, or not `starts_from_last`
    order: Tensor | None = None  # [m] int64, order in which rows fill buckets; None: the given order


@dataclass(frozen=True)
class Rule(ABC):
    """Base of everything that `--model.robust_aggregation` accepts.

    Subclasses are frozen dataclasses of settings.

    Args:
        bucket_size: average messages in random buckets of this size, drawn anew in each round, ahead of the rule
            (Karimireddy et al. 2022); 1: no buckets.
        weight_cap: with `--model.weighting samples`, weight clients by their claimed samples, up to this number; null:
            no limit.
    """

    bucket_size: int = field(default=1, kw_only=True)
    weight_cap: int | None = field(default=None, kw_only=True)

    by_coordinate: ClassVar[bool] = False
    """Whether numbers of a row stand or fall alone, so that a component that few clients train would freeze."""

    only_slows_minorities: ClassVar[bool] = False
    """Whether, of such rules, it leaves components alive that few clients train, if these are more than it trims."""

    starts_from_last: ClassVar[bool] = False
    """Whether it starts from its own last result."""

    takes_signs: ClassVar[bool] = False
    """Whether every number moves by a step of one size, which no running statistic stands."""

    ranges: ClassVar[dict[str, str]] = {}
    """The ranges of a rule's own settings, for `check_settings`."""

    def __post_init__(self) -> None:
        check_settings(self, self.ranges, "--model.robust_aggregation", bucket_size=">= 1", weight_cap=">= 1")

    def against(self, num_attackers: int) -> int:
        """f: number of rows that may be malicious, as set by the user, else as given."""
        return num_attackers

    def fewest(self, num_attackers: int) -> int:
        """Minimum number of rows for which the rule is defined with this number of attackers."""
        return 1

    def fewest_clients(self, num_attackers: int) -> int:
        """Minimum number of clients in a round for that, with buckets."""
        return (self.fewest(num_attackers) - 1) * self.bucket_size + 1

    def aggregate(self, rows: Rows, weights: Tensor, started: Started) -> Aggregate:
        """The aggregate of these rows; a row's share is that of its bucket.

        A bucket has the mean weight of its clients, so that with equal weights all buckets are equal, including the
        last one, which may be smaller.

        Args:
            rows: m finite rows, at least `fewest_clients`.
            weights: w_i > 0, [m] float64.
            started: other inputs of the rule.
        """
        if self.bucket_size == 1:
            return self.judge(rows, weights, started)
        order = torch.arange(len(weights), device=weights.device) if started.order is None else started.order
        bucket = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order), device=order.device))
        bucket = bucket // self.bucket_size
        member = torch.nn.functional.one_hot(bucket).T.double()
        sums = member @ weights
        found = self.judge(rows.mixed(member * weights / sums[:, None]), sums / member.sum(1), started)
        return found._replace(kept=found.kept[bucket])

    @abstractmethod
    def judge(self, rows: Rows, weights: Tensor, started: Started) -> Aggregate:
        """The aggregate of these rows, one per client or bucket; arguments as of `aggregate`."""


class WholeRowRule(Rule):
    """A rule with one coefficient per row: its result is a sum of rows, Σ_i a_i X_i."""

    def judge(self, rows: Rows, weights: Tensor, started: Started) -> Aggregate:
        """The sum of rows with coefficients from their inner products, relative to the starting point."""
        if started.last is not None:
            rows = rows.told_from(started.last)
        coefficients, kept = self.coefficients(rows.gram(), weights, started.num_attackers)
        change = rows.combine(coefficients)
        return Aggregate(change if started.last is None else tree.add(started.last, change), kept)

    @abstractmethod
    def coefficients(self, gram: Tensor, weights: Tensor, num_attackers: int) -> tuple[Tensor, Tensor]:
        """The coefficient of each row.

        Args:
            gram: ⟨X_i, X_j⟩, [m, m] float64.
            weights: w_i > 0, [m] float64.
            num_attackers: f.

        Returns:
            a [m] float64, and the used share of each row, [m] in [0, 1].
        """


class CoordinateRule(Rule):
    """A rule that acts on each coordinate separately."""

    by_coordinate = True

    def judge(self, rows: Rows, weights: Tensor, started: Started) -> Aggregate:
        """Apply the rule per coordinate; a row's share is that of its used numbers."""
        total, count = torch.zeros_like(weights), 0

        def one(piece: Tensor) -> Tensor:
            nonlocal total, count
            value, kept = self.at_each(piece, weights, started.num_attackers)
            total, count = total + kept.sum(1), count + kept.shape[1]
            return value

        change = rows.by_coordinate(one)
        return Aggregate(change, total / max(count, 1))

    @abstractmethod
    def at_each(self, piece: Tensor, weights: Tensor, num_attackers: int) -> tuple[Tensor, Tensor]:
        """The result at each of p coordinates.

        Args:
            piece: [m, p] float64.
            weights: w_i > 0, [m] float64.
            num_attackers: f.

        Returns:
            The result [p] float64, and whether each number was used, [m, p] bool.
        """
