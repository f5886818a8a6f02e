"""Settings of secure sums."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from lit_fed.errors import ConfigError, check_settings
from lit_fed.wrappers.base import AlgorithmWrapper, WrapperSettings
from lit_fed.wrappers.secure.fixed_point import FixedPoint, most_fraction_bits

__all__ = ["SecureAggregation", "SecureSum"]


class SecureAggregation(WrapperSettings):
    """Settings of secure aggregation, given as `--model.secure_aggregation`."""

    @abstractmethod
    def check_cohort(self, num_messages: int, most_weight: int) -> None:
        """Refuse cohorts whose sums could overflow.

        Args:
            num_messages: maximum number of clients in a round; one that is drawn twice counts twice.
            most_weight: maximum weight of a client's message.

        Raises:
            ConfigError: naming the setting and a value that would work.
        """


PLACE = "--model.secure_aggregation"

MOST_MESSAGES = 2**19
"""Messages of a sum whose division by their number rounding undoes: their sum stays below 2^51."""


@dataclass(frozen=True)
class SecureSum(SecureAggregation):
    """Messages as integers, of which the server uses the sum only.

    This counts the costs of secure aggregation: rounding, bits, and void rounds. Nothing is kept secret.

    Args:
        modulus_bits: b; integers are added modulo 2^b, from 8 to 64.
        fraction_bits: f; changes are rounded to multiples of 2^-f; null: the maximum for which no sum over the clients
            of a round can overflow.
        clip_range: c; changes are clamped to ±c, and the clamped ones counted as `secure/clamped_share`.
        threshold: share of the clients of a round (with `neighbours`, of each client and its neighbours) that must
            remain for a sum; with fewer the round is void.
        dropout_fraction: probability that a client drops out of a round after sending its keys.
        neighbours: number of others with which a client shares keys, even; null: all.
    """

    modulus_bits: int = 32
    fraction_bits: int | None = None
    clip_range: float = 8.0
    threshold: float = 2 / 3
    dropout_fraction: float = 0.0
    neighbours: int | None = None

    def __post_init__(self) -> None:
        paired = self.neighbours is None or (self.neighbours >= 2 and self.neighbours % 2 == 0)
        bits = {"fraction_bits": "[-1000, 1000]", "modulus_bits": "[8, 64]"}
        shares = {"threshold": "(0, 1]", "dropout_fraction": "[0, 1)"}
        even = paired, "an even whole number >= 2, or null"
        check_settings(self, bits | shares, PLACE, clip_range="> 0", neighbours=even)

    def check_cohort(self, num_messages: int, most_weight: int) -> None:
        """Refuse sums that could overflow."""
        if num_messages > MOST_MESSAGES:
            raise ConfigError(f"{PLACE} adds up at most {MOST_MESSAGES} clients, and a round has up to {num_messages}")
        self.point(num_messages, most_weight)

    def point(self, num_messages: int, most_weight: int) -> FixedPoint:
        """The fixed-point format of a phase.

        Raises:
            ConfigError: if a sum of this many messages could overflow, with a value that would work.
        """
        most = most_fraction_bits(self.modulus_bits, num_messages, most_weight, self.clip_range)
        point = FixedPoint(
            self.modulus_bits, most if self.fraction_bits is None else self.fraction_bits, self.clip_range
        )
        point.check(num_messages, most_weight, PLACE)
        return point

    def around(self, algorithm: Any) -> AlgorithmWrapper:
        from lit_fed.wrappers.secure.wrapper import SecureAverage

        return SecureAverage(algorithm, self)
