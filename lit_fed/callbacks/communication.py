"""Bytes sent in the rounds."""

from __future__ import annotations

from lightning.pytorch import Trainer

from lit_fed.core.types import RoundRecord
from lit_fed.system.readers import number, record
from lit_fed.training.hooks import FederatedCallback, log_round
from lit_fed.training.module import FederatedModule

__all__ = ["CommunicationCost"]

TOTALS = ("comm/total_bytes_down", "comm/total_bytes_up")


class CommunicationCost(FederatedCallback):
    """Logs the bytes that each round sent: `comm/bytes_down` to its clients and `comm/bytes_up` from them.

    The totals of the run, `comm/total_bytes_down` and `comm/total_bytes_up`, go to its summary and survive a resume.
    Bookkeeping between ranks does not count. A line says if an algorithm that shares models shares nothing of this
    network.
    """

    kept = {"totals": record(dict.fromkeys(TOTALS, number(0)))}

    def __init__(self) -> None:
        self.totals = dict.fromkeys(TOTALS, 0.0)

    def on_round_end(self, trainer: Trainer, module: FederatedModule, record: RoundRecord) -> None:
        sent = {"comm/bytes_down": record.bits_down / 8, "comm/bytes_up": record.bits_up / 8}
        for key, value in sent.items():
            self.totals[key.replace("bytes", "total_bytes")] += value
        kind = module.settings.algorithm.message.kind
        if trainer.is_global_zero and len(record.client_ids) and not record.bits_up and kind != "nothing":
            self.notice_once(
                "nothing",
                f"clients send nothing: {module.algorithm_name} keeps the whole network with them, so that nothing is "
                "learned together; a network with layers ahead of the personal part shares these",
            )
        module.results.update(self.totals)
        log_round(trainer, module, sent)
