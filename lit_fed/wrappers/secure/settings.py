"""What every kind of secure aggregation has in common: settings that make a wrapper, and what they refuse."""

from __future__ import annotations

from abc import abstractmethod

from lit_fed.core.algorithm import Algorithm
from lit_fed.wrappers.base import WrapperSettings

__all__ = ["SecureAggregation"]


class SecureAggregation(WrapperSettings):
    """Settings of secure aggregation, given as `--model.secure_aggregation`."""

    @abstractmethod
    def check_cohort(self, algorithm: Algorithm, name: str, num_messages: int, most_weight: int) -> None:
        """Refuse cohorts whose sums could overflow, and settings that the algorithm cannot live with.

        Args:
            algorithm: the algorithm.
            name: its name.
            num_messages: most clients of a round; one that is drawn twice counts twice.
            most_weight: largest weight of a client's message.

        Raises:
            ConfigError: naming the setting and what would do.
        """
