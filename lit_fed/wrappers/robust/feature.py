"""Robust aggregation and attacks: `--model.robust_aggregation` and `--model.attack`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from lit_fed.data.facts import TrainingFacts
from lit_fed.errors import ConfigError
from lit_fed.wrappers.base import innermost
from lit_fed.wrappers.feature import Feature
from lit_fed.wrappers.robust.attacks.base import Attack
from lit_fed.wrappers.robust.rules.base import Rule

__all__ = ["RobustFeature"]

JUDGES = "{robust} acts on changes of models, and {name} %s; choose an algorithm that averages models, or leave it out"


@dataclass(frozen=True)
class RobustFeature(Feature):
    """A robust rule and an attack.

    Args:
        robust_aggregation: rule that combines the clients' changes when some clients may lie, such as
            `CenteredClipping`; null: their average.
        attack: what the clients of `--data.attackers` send in place of their updates; null: their updates.
    """

    robust_aggregation: Rule | None = None
    attack: Attack | None = None

    order = 5
    acts_on_messages = True
    callbacks = ("RobustRounds",)
    reasons = {"robust": "--model.robust_aggregation or --model.attack"}
    acts = {"robust": JUDGES}
    refused = {
        "by_positions robust": (
            "--model.weighting is positions, and {robust} bounds weights by samples; give samples or uniform"
        ),
        "rule accumulates": JUDGES % "keeps a running sum of changes, which a rule that leaves some out would break",
        "robust refuses_robust": JUDGES % "{refuses_robust}",
        "rule_cap !by_samples": (
            "--model.robust_aggregation.weight_cap caps weights by samples, and all clients count the same; add "
            "--model.weighting samples, or leave it out"
        ),
        "freezing_rule": (
            "{robust} would freeze components that fewer than half of the clients train; choose CenteredClipping, "
            "GeometricMedian, NormBound, or TrimmedMean with a trim below the smallest group"
        ),
        "rule fixed_denominator": (
            "{robust}: the noise of --model.privacy has the sensitivity of a sum, and a rule that selects or takes the "
            "middle has another; choose LocalPrivacy, or leave one out"
        ),
        "robust fixed_denominator": (
            "{robust}: the noise of --model.privacy holds for clients that bound their changes, and attackers do not; "
            "choose LocalPrivacy, or leave one out"
        ),
        "robust secure": (
            "--model.secure_aggregation shows the server a sum, and {robust_option} needs every message; leave one out"
        ),
        "robust ef21": (
            "{robust} leaves out some of what clients send, and --model.compression_feedback is ef21, whose server "
            "adds it up from round to round; give ef14"
        ),
    }

    @property
    def option(self) -> str:
        """The option that configures it, with its class."""
        if self.robust_aggregation is None:
            return f"--model.attack {type(self.attack).__name__}"
        return f"--model.robust_aggregation {type(self.robust_aggregation).__name__}"

    def facts(self, algorithm: Any) -> dict[str, Any]:
        rule = self.robust_aggregation
        return {
            "robust": self.option,
            "robust_option": self.option.partition(" ")[0],
            "rule": rule is not None,
            "rule_cap": self.weight_cap,
            "freezing_rule": rule is not None and self.freezes_minorities(algorithm) and not rule.only_slows_minorities,
        }

    def usual_weighting(self) -> Literal["samples", "uniform"] | None:
        """A client's number of samples is only claimed."""
        return None if self.robust_aggregation is None else "uniform"

    @property
    def weight_cap(self) -> int | None:
        return None if self.robust_aggregation is None else self.robust_aggregation.weight_cap

    def freezes_minorities(self, algorithm: Any) -> bool:
        """Whether the rule acts per coordinate on several models, each of which few clients may have trained."""
        rule, algorithm = self.robust_aggregation, innermost(algorithm)  # in a start alone clients choose models
        return rule is not None and rule.by_coordinate and algorithm.num_models > 1 and algorithm.message.complete

    def around(self, algorithm: Any) -> Any:
        from lit_fed.wrappers.robust.wrapper import RobustAverage

        return RobustAverage(algorithm, self.robust_aggregation, self.attack)

    def check_clients(self, facts: TrainingFacts, num_messages: int) -> None:
        """Refuse an attack without attackers, and cohorts that are too small for the rule or the attack."""
        attackers, num_clients, rule = facts.attackers, facts.num_clients, self.robust_aggregation
        known = None if attackers is None else len(attackers)
        if self.attack is not None:
            if known is None:
                raise ConfigError(
                    f"--model.attack is {type(self.attack).__name__}, which needs --data.attackers, the "
                    "number of attackers; add it, or leave the attack out"
                )
            self.attack.check(num_messages, -(-known * num_messages // num_clients))
        if rule is None:
            return
        f = self.around(None).tolerated(num_messages, num_clients, known)
        fewest = rule.fewest_clients(f)
        if num_messages < fewest:
            setting = next((one for one in ("num_attackers", "trim") if hasattr(rule, one)), None)
            lower = [f"--model.robust_aggregation.{setting}"] if setting is not None else []
            lower += ["--model.robust_aggregation.bucket_size"] if rule.bucket_size > 1 else []
            raise ConfigError(
                f"{self.option} with {f} attackers needs more than {fewest - 1} clients in a round, and {num_messages} "
                f"are drawn; draw more, or lower {' or '.join(lower) or '--data.attackers'}"
            )
