"""What secure sums lose on the way."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer

from lit_fed.errors import notice
from lit_fed.training.hooks import FederatedCallback
from lit_fed.training.module import FederatedModule
from lit_fed.wrappers.secure.wrapper import MaskedAverage

__all__ = ["SecureRounds"]

MUCH_CLAMPED = 0.01
"""Share of numbers beyond the range from which a run says so."""


class SecureRounds(FederatedCallback):
    """Says once that a round was void, and once that many changes were cut off; silent without secure sums.

    The numbers themselves are logged in each round: `secure/clamped_share`, and where clients drop out
    `secure/dropped_share` and `secure/void_share`.
    """

    def __init__(self) -> None:
        self._said: set[str] = set()

    def on_round_end(self, trainer: Trainer, module: FederatedModule, record: Any) -> None:
        """Look at the round."""
        wrapper = module.federation.algorithm
        if not isinstance(wrapper, MaskedAverage) or not trainer.is_global_zero or not len(record.client_ids):
            return
        settings, found = wrapper.settings, record.metrics
        if settings.dropout_fraction and found.get("secure/void_share", 1.0):
            self._say(
                "void",
                f"round {record.round_idx} is void, since fewer than {settings.threshold:.4g} of the clients that "
                "share keys are left; it changes nothing, and secure/void_share tells of further ones",
            )
        clamped = found.get("secure/clamped_share", 0.0)
        if clamped >= MUCH_CLAMPED:
            self._say(
                "clamped",
                f"{clamped:.1%} of the numbers in round {record.round_idx} lie beyond "
                f"--model.secure_aggregation.clip_range {settings.clip_range:g} and are cut off there; give a wider "
                "range, or a lower --model.solver.lr",
            )

    def _say(self, kind: str, text: str) -> None:
        """Say what is the first of its kind."""
        if kind not in self._said:
            self._said.add(kind)
            notice(text)
