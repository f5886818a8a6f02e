"""What every kind of differential privacy has in common: settings that make a wrapper, and what they refuse."""

from __future__ import annotations

from lit_fed.algorithms.base import Algorithm
from lit_fed.core.errors import ConfigError
from lit_fed.wrappers.around import WrapperSettings

__all__ = ["Privacy"]


class Privacy(WrapperSettings):
    """Settings of differential privacy, given as `--model.privacy`."""

    def check(self, algorithm: Algorithm, name: str, aggregation: str) -> None:
        """Refuse an algorithm whose releases it cannot charge.

        Args:
            algorithm: the algorithm.
            name: its name.
            aggregation: what absent clients count for.

        Raises:
            ConfigError: naming the algorithm, with the reason.
        """
        if algorithm.sends not in ("models", "changes"):
            kept = {"rows": "keeps rows of single clients at the server", "nothing": "sends nothing to a server"}
            reason = kept.get(algorithm.sends, "sends models times numbers that are private")
            raise ConfigError(
                f"--model.privacy clips changes of models, and {name} {reason}; choose an algorithm that averages "
                "models, or leave it out"
            )
        if algorithm.keeps_running_sum:
            raise ConfigError(
                f"--model.privacy adds noise to one average a round, and {name} adds up what clients send from round "
                "to round, noise included; choose an algorithm that averages models, or leave it out"
            )
        if algorithm.refuses_privacy:
            raise ConfigError(
                f"--model.privacy charges one average of models a round, and {name} {algorithm.refuses_privacy}; "
                "let it send all of its models, choose another algorithm, or leave it out"
            )
        if aggregation == "stale_fill":
            raise ConfigError(
                "--model.aggregation stale_fill has no meaning with --model.privacy, whose denominator is fixed already"
            )
