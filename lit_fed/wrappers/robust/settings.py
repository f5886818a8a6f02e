"""What a user asks for against clients that lie, or lets them do, and what is refused of it before training."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from lit_fed.data.facts import TrainingFacts
from lit_fed.errors import ConfigError
from lit_fed.wrappers.privacy.settings import Privacy
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

    def check(self, algorithm: Any, name: str, weighting: str | None) -> None:
        """Refuse an algorithm whose messages no rule can judge, and caps of weights that nobody has.

        Args:
            algorithm: the algorithm.
            name: its name.
            weighting: weight of a client's message, where it was given.

        Raises:
            ConfigError: naming the option and the algorithm, with the reason.
        """
        if not self.given:
            return
        kept = {
            "rows": "keeps rows of single clients at the server",
            "multiples": "sends models times numbers that are the client's own",
            "nothing": "sends nothing to a server",
        }
        reason = kept.get(algorithm.sends, "")
        if algorithm.keeps_running_sum and self.rule is not None:
            reason = "keeps a running sum of changes, which a rule that leaves some out would break"
        if reason:
            raise ConfigError(
                f"{self.option} acts on changes of models, and {name} {reason}; choose an algorithm that averages "
                "models, or leave it out"
            )
        if self.weight_cap is not None and weighting != "samples":
            raise ConfigError(
                "--model.robust_aggregation.weight_cap caps weights by samples, and all clients count the same; add "
                "--model.weighting samples, or leave it out"
            )
        if self.freezes_minorities(algorithm) and not self.rule.only_slows_minorities:  # type: ignore[union-attr]
            raise ConfigError(
                f"{self.option} would freeze components that fewer than half of the clients train; choose "
                "CenteredClipping, GeometricMedian, NormBound, or TrimmedMean with a trim below the smallest group"
            )

    def freezes_minorities(self, algorithm: Any) -> bool:
        """Whether the rule looks at single numbers of several models, each of which few clients may have trained."""
        rule = self.rule
        return rule is not None and rule.by_coordinate and algorithm.num_models > 1 and algorithm.sends_all

    def check_wrappers(self, *, privacy: Privacy | None, secure: bool, sums_up: bool) -> None:
        """Refuse what other wrappers cannot live with.

        Args:
            privacy: differential privacy.
            secure: whether the server sees sums alone.
            sums_up: whether it adds up decoded changes from round to round (EF21).

        Raises:
            ConfigError: naming the options.
        """
        if not self.given:
            return
        if privacy is not None and privacy.fixes_denominator:
            reason = "has the sensitivity of a sum, and a rule that selects or takes the middle has another"
            if self.rule is None:
                reason = "holds for clients that bound their changes, and attackers do not"
            raise ConfigError(
                f"{self.option}: the noise of --model.privacy {reason}; choose LocalPrivacy, or leave one out"
            )
        if secure:
            option = "--model.robust_aggregation" if self.rule is not None else "--model.attack"
            raise ConfigError(
                f"--model.secure_aggregation shows the server a sum, and {option} needs every message; leave one out"
            )
        if sums_up:
            raise ConfigError(
                f"{self.option} leaves out some of what clients send, and --model.compression_feedback is ef21, whose "
                "server adds it up from round to round; give ef14"
            )

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
