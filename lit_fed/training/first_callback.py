"""The callback that stands before all others of a run."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lit_fed.system.roll_call import sign_of_life
from lit_fed.training.hooks import FederatedCallback, federated
from lit_fed.training.module import FederatedModule
from lit_fed.training.round_logger import RoundLogger

__all__ = ["FirstCallback"]


class FirstCallback(FederatedCallback):
    """Tells all ranks the folder that rank zero has claimed, and all callbacks what a round produced.

    It stands before all others: what callbacks make of a round belongs into the checkpoint that Lightning's may write
    at its end. And it lets the other ranks know that this one gets on.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Agree on the folder."""
        for logger in trainer.loggers if stage == "fit" else ():
            if isinstance(logger, RoundLogger):
                logger.agree(trainer.strategy.broadcast)

    def on_clients_end(self, trainer: Trainer, module: FederatedModule, num_clients: int) -> None:
        """Give a sign of life."""
        sign_of_life()

    def on_clients_served(self, trainer: Trainer, module: FederatedModule, num_clients: int) -> None:
        """Give a sign of life."""
        sign_of_life()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, _: int
    ) -> None:
        """Hand out the record of a round behind its last block."""
        if batch.ends_round:
            federated(pl_module).hand_out_record()
