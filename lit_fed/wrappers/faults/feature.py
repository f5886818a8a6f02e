"""Clients that fail: `--model.faults`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lit_fed.data.facts import TrainingFacts
from lit_fed.wrappers.faults.wrapper import Faults
from lit_fed.wrappers.feature import KINDS, Feature

__all__ = ["FaultsFeature"]

AVERAGES = "--model.faults.average {average} is one of models, and {name} %s; choose renormalised"
REWEIGHS = (
    "--model.faults.average {average} changes the weights of messages, and %s has weights of its own; choose "
    "renormalised"
)


@dataclass(frozen=True)
class FaultsFeature(Feature):
    """Clients that drop out, come late, are unreachable or compute NaN.

    Args:
        faults: how clients fail: drop out, come late, are unreachable, compute NaN; null: not at all.
    """

    faults: Faults | None = None

    order = 1
    acts_on_messages = True
    callbacks = ("ClientFaults",)
    acts = {"average": AVERAGES}
    kinds = dict.fromkeys(KINDS, "does not average models")
    refused = {
        "by_positions faults": (
            "--model.weighting is positions, and --model.faults weighs absent clients by their samples; give samples "
            "or uniform"
        ),
        "faults needs_all": "{name} needs every client in every round; leave out --model.faults",
        "over_selection serverless": (
            "--model.faults.over_selection is a server's that takes the first messages, and {name} has no server; "
            "leave it out"
        ),
        "average refuses_privacy": AVERAGES % "{refuses_privacy}",
        "average accumulates": AVERAGES % "keeps a running sum of changes",
        "average incomplete": AVERAGES % "averages each model over those who chose it",
        "average stacked": AVERAGES % "does not average models",
        "average stale_fill": (
            "--model.faults.average {average} says what absent clients count for, and so does --model.aggregation "
            "stale_fill; leave one of them out"
        ),
        "lost_messages secure": (
            "--model.faults loses messages after work, and without them --model.secure_aggregation finds no sum; give "
            "--model.secure_aggregation.dropout_fraction instead, or --model.faults.dropout with when before"
        ),
        "average privacy": REWEIGHS % "--model.privacy",
        "average secure": REWEIGHS % "--model.secure_aggregation",
        "average robust": REWEIGHS % "--model.robust_aggregation or --model.attack",
        "average ef21": REWEIGHS % "--model.compression_feedback ef21",
        "over_selection sampling !uniformly": (
            "--model.faults.over_selection wants a number of clients, and --data.client_sampling is {sampling}; give "
            "uniform, or leave it out"
        ),
    }

    @property
    def given(self) -> Faults:
        """The faults of a run that has some."""
        assert self.faults is not None
        return self.faults

    def facts(self, algorithm: Any) -> dict[str, Any]:
        return {
            "faults": True,
            "over_selection": bool(self.given.over_selection),
            "average": None if self.given.average == "renormalised" else self.given.average,
            "lost_messages": self.given.loses_messages,
            "forgives": self.given.forgives,
        }

    def check_clients(self, facts: TrainingFacts, num_messages: int) -> None:
        self.given.check_clients(facts.num_clients)

    def around(self, algorithm: Any) -> Any:
        return self.given.around(algorithm)
