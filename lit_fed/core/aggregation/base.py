"""What a robust rule is: rows of news go in, one change comes out, and how much each row had to say in it."""

# Annotations are not postponed, so that the command line can read those of subclasses in other modules.
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from lit_fed.core.aggregation.rows import Rows
from lit_fed.core.errors import check_settings
from lit_fed.core.types import Tree

__all__ = ["Aggregate", "CoordinateRule", "Rule", "WholeRowRule"]


class Aggregate(NamedTuple):
    """What a rule makes of m rows."""

    change: Tree  # leaves [...] float64
    kept: Tensor  # [m] float64 in [0, 1]: how much of each row went in, 1 for a row that an average would take whole


@dataclass(frozen=True)
class Rule(ABC):
    """Base of everything that `--model.robust_aggregation` accepts.

    Subclasses are frozen dataclasses of settings.

    Args:
        bucket_size: average the messages of so many clients at a time, drawn anew in each round, before the rule looks
            at them (Karimireddy et al. 2022); 1: none.
    """

    bucket_size: int = field(default=1, kw_only=True)

    by_coordinate: ClassVar[bool] = False
    """Whether numbers of a row stand or fall alone, so that a component that few clients train would freeze."""

    starts_from_last: ClassVar[bool] = False
    """Whether it starts from its own last result."""

    def check(self) -> None:
        """Refuse values outside their range.

        Raises:
            ConfigError: naming the setting.
        """
        checks = {"bucket_size": (self.bucket_size >= 1, "a whole number >= 1")}
        check_settings(self, checks, "--model.robust_aggregation")

    def fewest(self, num_attackers: int) -> int:
        """Fewest rows with which the rule has a meaning against so many attackers."""
        return 1

    @abstractmethod
    def aggregate(self, rows: Rows, weights: Tensor, start: Tree | None, num_attackers: int) -> Aggregate:
        """The change that these rows amount to.

        Args:
            rows: m of them, all finite.
            weights: w_i > 0, [m] float64.
            start: the rule's last result, leaves [...]; None: there is none, or it `starts_from_last` not.
            num_attackers: f, rows that may lie.
        """


class WholeRowRule(Rule):
    """A rule that gives each row one verdict: its result is a sum of rows, Σ_i a_i X_i."""

    def aggregate(self, rows: Rows, weights: Tensor, start: Tree | None, num_attackers: int) -> Aggregate:
        """The sum of rows by the coefficients that follow from their products alone."""
        coefficients, kept = self.coefficients(rows.gram(), weights, num_attackers)
        return Aggregate(rows.combine(coefficients), kept)

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

    def aggregate(self, rows: Rows, weights: Tensor, start: Tree | None, num_attackers: int) -> Aggregate:
        """The rule at each place; a row is kept as far as its numbers are."""
        total, count = torch.zeros_like(weights), 0

        def one(piece: Tensor) -> Tensor:
            nonlocal total, count
            value, kept = self.at_each(piece, weights, num_attackers)
            total, count = total + kept.sum(1, dtype=torch.float64), count + kept.shape[1]
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
            The result [p] float64, and whether each number went in, [m, p].
        """
