"""What the rounds sent."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lit_fed.callbacks.base import log_round

__all__ = ["CommunicationCost"]


class CommunicationCost(Callback):
    """Logs the bytes that each round sent: `comm/bytes_down` to its clients and `comm/bytes_up` from them.

    The totals of the run, `comm/total_bytes_down` and `comm/total_bytes_up`, go to its summary and survive a resume.
    They count what the algorithm sends, not the bookkeeping between ranks.
    """

    def __init__(self) -> None:
        self.totals = {"comm/total_bytes_down": 0.0, "comm/total_bytes_up": 0.0}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log and add up after the last block of a round."""
        module: Any = pl_module
        if not batch.ends_round:
            return
        sent = {key: module.round_results.pop(key) for key in ("comm/bytes_down", "comm/bytes_up")}
        for key, value in sent.items():
            self.totals[key.replace("bytes", "total_bytes")] += value
        module.results.update(self.totals)
        log_round(trainer, module, sent)

    def state_dict(self) -> dict[str, float]:
        """The totals so far."""
        return self.totals

    def load_state_dict(self, state_dict: dict[str, float]) -> None:
        """Go on from the totals of a checkpoint."""
        self.totals = dict(state_dict)
