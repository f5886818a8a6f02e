"""Hooks that a federated round adds to Lightning's."""

from __future__ import annotations

from lightning.pytorch import Callback, LightningModule, Trainer

from lit_fed.core.types import RoundRecord
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError
from lit_fed.training.module import FederatedModule

__all__ = ["FederatedCallback", "data_of", "federated", "log_round"]


def federated(module: LightningModule | None) -> FederatedModule:
    """The module of a run, as what it is.

    Raises:
        ConfigError: if it is another module.
    """
    if not isinstance(module, FederatedModule):
        raise ConfigError(
            f"lit_fed runs a FederatedModule, and this is a {type(module).__name__}; pass a FederatedModule"
        )
    return module


def data_of(trainer: Trainer) -> FederatedDataModule:
    """The data module of a run.

    Raises:
        ConfigError: if it is another data module.
    """
    data = getattr(trainer, "datamodule", None)
    if not isinstance(data, FederatedDataModule):
        raise ConfigError(f"the run has a {type(data).__name__} for its data; pass a FederatedDataModule")
    return data


def log_round(trainer: Trainer, module: FederatedModule, values: dict[str, float]) -> None:
    """Send numbers of the round just committed to the loggers.

    `self.log` would make them metrics that other callbacks can watch, at half a millisecond each; these only tell what
    the round cost.
    """
    for logger in trainer.loggers:
        logger.log_metrics(values, step=module.num_rounds_done - 1)


class FederatedCallback(Callback):
    """A callback with the hooks of a round.

    Attributes:
        is_server: takes the server's step in `on_phase_reduce`; a fit needs exactly one that does.
    """

    is_server = False

    def on_clients_end(self, trainer: Trainer, module: FederatedModule, num_clients: int) -> None:
        """`num_clients` more clients of the current phase are done on this rank; `module.log` is not available."""

    def on_clients_served(self, trainer: Trainer, module: FederatedModule, num_clients: int) -> None:
        """`num_clients` more clients are measured or predicted on this rank; `module.log` is not available."""

    def on_phase_reduce(self, trainer: Trainer, module: FederatedModule) -> None:
        """All clients of a phase are done on this rank; `module.log` is not available."""

    def on_round_end(self, trainer: Trainer, module: FederatedModule, record: RoundRecord) -> None:
        """The round is committed, and neither evaluated nor in a checkpoint yet."""
