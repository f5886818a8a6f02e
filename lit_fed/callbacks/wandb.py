"""Weights & Biases."""

from __future__ import annotations

from typing import Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer

from lit_fed.core.errors import ConfigError

__all__ = ["FederatedWandb"]


class FederatedWandb(Callback):
    """Logs to a W&B run what its own logger cannot: the mixture weights as a heat map and the table of clients.

    It needs Lightning's `WandbLogger` among the loggers (`--trainer.logger WandbLogger`); the x-axis is the round.

    Args:
        every_n_rounds: how often the heat map is logged.
    """

    def __init__(self, every_n_rounds: int = 10) -> None:
        if every_n_rounds < 1:
            raise ConfigError(f"FederatedWandb.every_n_rounds is {every_n_rounds}; give a whole number >= 1")
        self.every_n_rounds = every_n_rounds

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse to watch a run that is not logged to W&B."""
        from lightning.pytorch.loggers import WandbLogger

        if not any(isinstance(logger, WandbLogger) for logger in trainer.loggers):
            raise ConfigError("FederatedWandb needs a W&B run; add --trainer.logger WandbLogger, or leave it out")

    def _log(self, trainer: Trainer, values: dict[str, Any]) -> None:
        from lightning.pytorch.loggers import WandbLogger

        if trainer.is_global_zero:
            for logger in trainer.loggers:
                if isinstance(logger, WandbLogger):
                    logger.experiment.log({**values, "round": trainer.global_step})

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the mixture weights of the clients that are measured, ordered by their largest component."""
        module: Any = pl_module
        last = module.num_rounds_done == module.num_rounds
        if not batch.ends_round or not (last or module.num_rounds_done % self.every_n_rounds == 0):
            return
        if "mixture_weights" not in dict(module.store.named_buffers()):
            return
        import wandb

        measured = trainer.datamodule.seen.measured  # type: ignore[attr-defined]
        weights = module.mixture_weights.cpu()[slice(None) if measured is None else measured].numpy()
        ordered = weights[np.lexsort((-weights.max(1), weights.argmax(1)))]
        pixels = np.repeat(np.repeat(ordered.T, 24, axis=0), 4, axis=1)
        self._log(trainer, {"mixture_weights": wandb.Image(np.uint8(255 * pixels), caption="components × clients")})

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the table of clients."""
        import wandb

        from lit_fed.callbacks.report import client_table

        table = client_table(trainer.datamodule, pl_module)  # type: ignore[attr-defined]
        self._log(trainer, {"clients": wandb.Table(dataframe=table)})
