"""Secure sums: `--model.secure_aggregation`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lit_fed.data.facts import TrainingFacts
from lit_fed.wrappers.feature import Feature
from lit_fed.wrappers.secure.settings import SecureAggregation

__all__ = ["SecureFeature"]

SUMS = (
    "--model.secure_aggregation shows the server a sum of changes of models, and {name} %s; choose an algorithm that "
    "averages models, or leave it out"
)


@dataclass(frozen=True)
class SecureFeature(Feature):
    """Sums of integers in place of messages.

    Args:
        secure_aggregation: use only sums of messages as integers, at the cost of a protocol of secure sums, such as
            `SecureSum`, which hides nothing; null: messages as they are.
    """

    secure_aggregation: SecureAggregation | None = None

    order = 4
    acts_on_messages = True
    callbacks = ("SecureRounds",)
    reasons = {"secure_sums": "--model.secure_aggregation, which cuts changes off at a range"}
    acts = {"secure": SUMS}
    kinds = {
        "rows": "needs the message of every single client",
        "multiples": "sends models times numbers that no range bounds",
    }
    refused = {
        "by_positions secure": (
            "--model.weighting is positions, and --model.secure_aggregation bounds weights by samples; give samples or "
            "uniform"
        ),
        "secure refuses_secure_sums": SUMS % "{refuses_secure_sums}",
        "sum_dropout fixed_denominator": (
            "--model.secure_aggregation.dropout_fraction is {sum_dropout}, and whether a round is void then depends on "
            "who takes part, which ε of --model.privacy {privacy} does not cover; give --model.faults.dropout instead, "
            "by which clients drop out before they send keys"
        ),
        "sum_dropout needs_all": (
            "--model.secure_aggregation.dropout_fraction is {sum_dropout}, and {name} needs every client in every "
            "round; leave it out"
        ),
        "deployed secure": (
            "--model.secure_aggregation counts what secure sums cost, and hides no message; leave it out for clients "
            "on machines of their own, or simulate it with data on this machine"
        ),
    }

    @property
    def given(self) -> SecureAggregation:
        """The sums of a run that has some."""
        assert self.secure_aggregation is not None
        return self.secure_aggregation

    def facts(self, algorithm: Any) -> dict[str, Any]:
        return {"secure": True, "sum_dropout": getattr(self.given, "dropout_fraction", 0) or None}

    def check_clients(self, facts: TrainingFacts, num_messages: int) -> None:
        self.given.check_cohort(num_messages, facts.most_samples if facts.weighting == "samples" else 1)

    def around(self, algorithm: Any) -> Any:
        return self.given.around(algorithm)
