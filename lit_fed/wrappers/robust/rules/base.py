"""What a robust rule is: rows of deltas go in, one change comes out, and how much each row had to say in it.

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
    """What a rule makes of m rows."""

    change: Tree  # leaves [...] float64
    kept: Tensor  # [m] float64 in [0, 1]: how much of each row went in, 1 for a row that an average would take whole


class Started(NamedTuple):
    """What a rule is told beside the rows."""

    num_attackers: int  # f, rows that may lie
    last: Tree = None  # its last result, leaves [...]; None: there is none, or it `starts_from_last` not
    order: Tensor | None = None  # [m] int64, in which rows fill buckets; None: as they stand


@dataclass(frozen=True)
class Rule(ABC):
    """Base of everything that `--model.robust_aggregation` accepts.

    Subclasses are frozen dataclasses of settings.

    Args:
        bucket_size: average the messages of so many clients at a time, drawn anew in each round, before the rule looks
            at them (Karimireddy et al. 2022); 1: none.
        weight_cap: with `--model.weighting samples`, clients count by the samples that they claim, but no more than
            this; null: as they claim.
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
        """f: rows that may lie, as a user set it, or as many as are told."""
        return num_attackers

    def fewest(self, num_attackers: int) -> int:
        """Fewest rows with which the rule has a meaning against so many attackers."""
        return 1

    def fewest_clients(self, num_attackers: int) -> int:
        """Fewest clients of a round for that, of whom some share a bucket."""
        return (self.fewest(num_attackers) - 1) * self.bucket_size + 1

    def aggregate(self, rows: Rows, weights: Tensor, started: Started) -> Aggregate:
        """The change that these rows amount to; a row in a bucket is kept as far as that is.

        Buckets weigh what one of their clients does on average, so that with equal weights they are equal, also the
        last, which may be short.

        Args:
            rows: m of them, all finite, not fewer than `fewest_clients`.
            weights: w_i > 0, [m] float64.
            started: what it is told beside them.
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
        """The change that these rows amount to, each of a client or of a bucket; arguments as of `aggregate`."""


class WholeRowRule(Rule):
    """A rule that gives each row one verdict: its result is a sum of rows, Σ_i a_i X_i."""

    def judge(self, rows: Rows, weights: Tensor, started: Started) -> Aggregate:
        """The sum of rows by the coefficients that follow from their products alone, all told from where it starts."""
        if started.last is not None:
            rows = rows.told_from(started.last)
        coefficients, kept = self.coefficients(rows.gram(), weights, started.num_attackers)
        change = rows.combine(coefficients)
        return Aggregate(change if started.last is None else tree.add(started.last, change), kept)

    @abstractmethod
    def coefficients(self, gram: Tensor, weights: Tensor, num_attackers: int) -> tuple[Tensor, Tensor]:
        """What each row counts for.

        Args:
            gram: ⟨X_i, X_j⟩, [m, m] float64.
            weights: w_i > 0, [m] float64.
            num_attackers: f.

        Returns:
            a [m] float64, and how much of each row went in, [m] in [0, 1].
        """


class CoordinateRule(Rule):
    """A rule that looks at one number of all rows at a time."""

    by_coordinate = True

    def judge(self, rows: Rows, weights: Tensor, started: Started) -> Aggregate:
        """The rule at each place; a row is kept as far as its numbers are."""
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
        """The result at each of p places.

        Args:
            piece: [m, p] float64.
            weights: w_i > 0, [m] float64.
            num_attackers: f.

        Returns:
            The result [p] float64, and whether each number went in, [m, p] bool.
        """
