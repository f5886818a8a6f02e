"""Notices about secure sums."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer

from lit_fed.training.hooks import FederatedCallback
from lit_fed.training.module import FederatedModule
from lit_fed.wrappers.secure.wrapper import SecureAverage

__all__ = ["SecureRounds"]

MUCH_CLAMPED = 0.01
"""Share of clamped numbers from which a notice is printed."""


class SecureRounds(FederatedCallback):
    """Prints a notice at the first void round, and at the first with many clamped changes; needs secure sums.

    Each round logs `secure/clamped_share`, and where clients drop out
    `secure/dropped_share` and `secure/void_share`.
    """

    def on_round_end(self, trainer: Trainer, module: FederatedModule, record: Any) -> None:
        wrapper = module.federation.algorithm
        if not isinstance(wrapper, SecureAverage) or not trainer.is_global_zero or not len(record.client_ids):
            return
        settings, found = wrapper.settings, record.metrics
        if settings.dropout_fraction and found.get("secure/void_share", 1.0):
            self.notice_once(
                "void",
                f"round {record.round_idx} is void, since fewer than {settings.threshold:.4g} of the clients that "
                "share keys are left; it changes nothing, and secure/void_share tells of further ones",
            )
        clamped = found.get("secure/clamped_share", 0.0)
        if clamped >= MUCH_CLAMPED:
            self.notice_once(
                "clamped",
                f"{clamped:.1%} of the numbers in round {record.round_idx} lie beyond "
                f"--model.secure_aggregation.clip_range {settings.clip_range:g} and are cut off there; give a wider "
                "range, or a lower --model.solver.lr",
            )
