"""What a user asks for against clients that lie, or lets them do, and what is refused of it before training."""

from __future__ import annotations

from typing import Any, NamedTuple

from lit_fed.core.aggregation import Rule
from lit_fed.core.attacks import Attack
from lit_fed.core.errors import ConfigError
from lit_fed.data.facts import TrainingFacts
from lit_fed.wrappers.robust import RobustAverage

__all__ = ["Robustness"]


class Robustness(NamedTuple):
    """A robust rule, and what attackers send."""

    rule: Rule | None = None
    attack: Attack | None = None

    def around(self, algorithm: Any) -> Any:
        """`RobustAverage` around an algorithm, if there is a rule or an attack."""
        if self.rule is None and self.attack is None:
            return algorithm
        return RobustAverage(algorithm, self.rule, self.attack)

    def check(self, algorithm: Any, name: str) -> None:
        """Refuse an algorithm whose messages no rule can judge.

        Args:
            algorithm: the algorithm.
            name: its name.

        Raises:
            ConfigError: naming the option and the algorithm, with the reason.
        """
        option = "--model.attack" if self.rule is None else "--model.robust_aggregation"
        if self.rule is None and self.attack is None:
            return
        kept = {
            "rows": "keeps rows of single clients at the server",
            "multiples": "sends models times numbers that are the client's own",
            "nothing": "sends nothing to a server",
        }
        reason = kept.get(algorithm.sends, "")
        if algorithm.keeps_running_sum:
            reason = "keeps a running sum of changes, which a rule that leaves some out would break"
        if reason:
            raise ConfigError(
                f"{option} acts on changes of models, and {name} {reason}; choose an algorithm that averages models, "
                "or leave it out"
            )
        if self.rule is not None and self.rule.by_coordinate and algorithm.num_models > 1 and algorithm.sends_all:
            raise ConfigError(
                f"{option} {type(self.rule).__name__} would freeze components that fewer than half of the clients "
                "train; choose CenteredClipping, GeometricMedian or NormBound"
            )

    def check_data(self, facts: TrainingFacts) -> None:
        """Refuse an attack without attackers, or with too many of them.

        Args:
            facts: sizes of the data; they say who attacks.

        Raises:
            ConfigError: naming the option that is missing, or the numbers that do not go together.
        """
        if self.attack is None:
            return
        if facts.attackers is None:
            raise ConfigError(
                f"--model.attack is {type(self.attack).__name__}, and nobody attacks; give --data.attackers, the "
                "number of clients that do, or leave it out"
            )
        num_messages = max(round(facts.sampling_probability * facts.num_clients), 1)
        self.attack.check(num_messages, -(-len(facts.attackers) * num_messages // facts.num_clients))
