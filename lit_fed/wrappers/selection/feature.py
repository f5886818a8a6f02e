"""The clients of a round, selected by their losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from lit_fed.data.facts import TrainingFacts
from lit_fed.wrappers.feature import Feature
from lit_fed.wrappers.selection.rules import Selection

__all__ = ["SelectionFeature"]

SELECTS = "--model.selection {selection} selects clients by losses that they report, and %s; leave "
IT, ONE = SELECTS + "it out", SELECTS + "one of them out"


@dataclass(frozen=True)
class SelectionFeature(Feature):
    """Clients of a round by losses that candidates report. No wrapper: it acts before the round.

    Args:
        selection: selects the clients of a round by losses that candidates report, such as `PowerOfChoice`; null: the
            cohort of `--data.client_sampling`.
    """

    selection: Selection | None = None

    order = -1
    acts_on_messages = True
    refused = {
        "selection serverless": IT % "{name} has no server to select them",
        "selection nothing": IT % "{name} sends nothing to a server",
        "selection needs_all": IT % "{name} needs every client in every round",
        "selection privacy": ONE % "the ε of --model.privacy covers neither these losses nor a cohort that depends on "
        "them",
        "selection secure": ONE % "--model.secure_aggregation shows the server nothing but sums over clients",
        "selection downlink": ONE % "--model.downlink_compression encodes one broadcast for the clients of a round",
        "selection over_selection": ONE % "--model.faults.over_selection draws clients beyond those of a round",
        "selection sampling !uniformly": (
            "--model.selection {selection} draws candidates itself, and --data.client_sampling is {sampling}; give "
            "uniform, or leave --model.selection out"
        ),
    }

    def facts(self, algorithm: Any) -> dict[str, Any]:
        return {"selection": type(self.selection).__name__}

    def usual_weighting(self) -> Literal["samples", "uniform"] | None:
        assert self.selection is not None
        return self.selection.usual_weighting

    def check_clients(self, facts: TrainingFacts, num_messages: int) -> None:
        assert self.selection is not None
        self.selection.check_cohort(num_messages, facts.num_clients)

    def start(self, federation: Any) -> None:
        federation.selection = self.selection
