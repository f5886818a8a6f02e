"""What every kind of secure aggregation has in common: settings that make a wrapper, and what they refuse."""

from __future__ import annotations

from abc import abstractmethod

from lit_fed.core.algorithm import Algorithm
from lit_fed.errors import ConfigError
from lit_fed.wrappers.base import WrapperSettings
from lit_fed.wrappers.privacy.settings import Privacy

__all__ = ["SecureAggregation"]


class SecureAggregation(WrapperSettings):
    """Settings of secure aggregation, given as `--model.secure_aggregation`."""

    def check(self, algorithm: Algorithm, name: str) -> None:
        """Refuse an algorithm whose server needs more than a sum of changes.

        Args:
            algorithm: the algorithm.
            name: its name.

        Raises:
            ConfigError: naming the algorithm, with the reason.
        """
        kept = {
            "rows": "needs the message of every single client",
            "multiples": "sends models times numbers that no range bounds",
            "nothing": "sends nothing to a server",
        }
        reason = kept.get(algorithm.sends, algorithm.refuses_secure_sums)
        if reason:
            raise ConfigError(
                f"--model.secure_aggregation shows the server a sum of changes of models, and {name} {reason}; choose "
                "an algorithm that averages models, or leave it out"
            )

    def check_privacy(self, privacy: Privacy | None) -> None:
        """Refuse differential privacy whose ε would not hold.

        Raises:
            ConfigError: naming both settings.
        """

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
