"""Fine-tuned serving: `--model.serving`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lit_fed.core.fine_tuning import FineTuning
from lit_fed.wrappers.feature import Feature

__all__ = ["ServingFeature"]


@dataclass(frozen=True)
class ServingFeature(Feature):
    """Clients that fine-tune the models that serve them.

    Args:
        serving: local epochs on the models that serve a client, after the algorithm's own adaptation.
    """

    serving: FineTuning = FineTuning()  # noqa: RUF009 - frozen

    order = -2
    only_serves = True
    reasons = {"fine_tuning": "--model.serving.fine_tune_epochs"}
    refused = {
        "fine_tunes refuses_fine_tuning": (
            "--model.serving.fine_tune_epochs is {fine_tunes}, which trains the models that serve each client, and "
            "{name} {refuses_fine_tuning}; leave it out"
        ),
    }

    def facts(self, algorithm: Any) -> dict[str, Any]:
        return {"fine_tunes": self.serving.fine_tune_epochs or None}

    def around(self, algorithm: Any) -> Any:
        """The algorithm itself without epochs."""
        from lit_fed.wrappers.serving.wrapper import FineTuned

        return FineTuned(algorithm, self.serving) if self.serving.fine_tune_epochs else algorithm
