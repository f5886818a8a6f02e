"""Hooks that a federated round adds to Lightning's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback, Trainer

if TYPE_CHECKING:
    from lit_fed.training.module import FederatedModule

__all__ = ["FederatedCallback", "log_round"]


def log_round(trainer: Trainer, module: Any, values: dict[str, float]) -> None:
    """Send numbers of the round just committed to the loggers.

    `self.log` would make them metrics that other callbacks can watch, at half a millisecond each; these only tell what
    the round cost.
    """
    for logger in trainer.loggers:
        logger.log_metrics(values, step=module.num_rounds_done - 1)


class FederatedCallback(Callback):
    """A callback with the hooks of a round.

    `self.log` is not available in these hooks: log a round's numbers from `on_train_batch_end`.
    """

    def on_clients_end(self, trainer: Trainer, module: FederatedModule, num_clients: int) -> None:
        """`num_clients` more clients of the current phase are done on this rank."""

    def on_clients_served(self, trainer: Trainer, module: FederatedModule, num_clients: int) -> None:
        """`num_clients` more clients are measured or predicted on this rank."""

    def on_phase_reduce(self, trainer: Trainer, module: FederatedModule) -> None:
        """All clients of a phase are done on this rank; its messages wait in the module."""
