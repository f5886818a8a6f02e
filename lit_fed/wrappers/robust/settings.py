"""What a user asks for against clients that lie, or lets them do, and what is refused of it before training."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from lit_fed.data.facts import TrainingFacts
from lit_fed.errors import ConfigError
from lit_fed.wrappers.robust.attacks import Attack
from lit_fed.wrappers.robust.rules import Rule
from lit_fed.wrappers.robust.wrapper import RobustAverage

__all__ = ["Robustness"]


class Robustness(NamedTuple):
    """A robust rule, and what attackers send."""

    rule: Rule | None = None
    attack: Attack | None = None

    @property
    def given(self) -> bool:
        """Whether either was asked for."""
        return self.rule is not None or self.attack is not None

    @property
    def option(self) -> str:
        """The option that asks for it, with its class."""
        if self.rule is None:
            return f"--model.attack {type(self.attack).__name__}"
        return f"--model.robust_aggregation {type(self.rule).__name__}"

    def around(self, algorithm: Any) -> Any:
        """`RobustAverage` around an algorithm, if there is a rule or an attack."""
        return RobustAverage(algorithm, self.rule, self.attack) if self.given else algorithm

    def usual_weighting(self) -> Literal["uniform"] | None:
        """Weight of a client's message where none is asked for; None: as without a rule."""
        return None if self.rule is None else "uniform"

    @property
    def weight_cap(self) -> int | None:
        """What a client may weigh at most."""
        return None if self.rule is None else self.rule.weight_cap

    def freezes_minorities(self, algorithm: Any) -> bool:
        """Whether the rule looks at single numbers of several models, each of which few clients may have trained."""
        rule = self.rule
        return rule is not None and rule.by_coordinate and algorithm.num_models > 1 and algorithm.message.complete

    def check_data(self, facts: TrainingFacts, num_messages: int) -> None:
        """Refuse an attack without attackers, and cohorts that are too small for the rule or the attack.

        Args:
            facts: sizes of the data; they say who attacks.
            num_messages: most clients of a round, m.

        Raises:
            ConfigError: naming the option that is missing, or the numbers that do not go together.
        """
        attackers, num_clients = facts.attackers, facts.num_clients
        known = None if attackers is None else len(attackers)
        if self.attack is not None:
            if known is None:
                raise ConfigError(
                    f"--model.attack is {type(self.attack).__name__}, and nobody attacks; give --data.attackers, the "
                    "number of clients that do, or leave it out"
                )
            self.attack.check(num_messages, -(-known * num_messages // num_clients))
        if self.rule is None:
            return
        f = RobustAverage(None, self.rule, self.attack).tolerated(num_messages, num_clients, known)
        fewest = self.rule.fewest_clients(f)
        if num_messages < fewest:
            setting = next((one for one in ("num_attackers", "trim") if hasattr(self.rule, one)), None)
            lower = [f"--model.robust_aggregation.{setting}"] if setting is not None else []
            lower += ["--model.robust_aggregation.bucket_size"] if self.rule.bucket_size > 1 else []
            raise ConfigError(
                f"{self.option} with {f} attackers needs more than {fewest - 1} clients in a round, and {num_messages} "
                f"are drawn; draw more, or lower {' or '.join(lower) or '--data.attackers'}"
            )
