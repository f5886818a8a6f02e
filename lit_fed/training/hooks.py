"""Hooks of a federated round, in addition to Lightning's, and helpers of callbacks."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from lightning.pytorch import Callback, LightningModule, Trainer

from lit_fed.core.types import RoundRecord
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError, notice
from lit_fed.metrics.summary import RunSummary
from lit_fed.system.readers import Reader
from lit_fed.training.module import FederatedModule

__all__ = ["FederatedCallback", "data_of", "federated", "log_round", "results_folder"]


def federated(module: LightningModule | None) -> FederatedModule:
    """The module of a run as a `FederatedModule`.

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
    """Send numbers of the committed round to the loggers; `self.log`, for callbacks that monitor, takes 0.5 ms each."""
    for logger in trainer.loggers:
        logger.log_metrics(values, step=module.record.round_idx)


def results_folder(trainer: Trainer) -> Path | None:
    """The run's folder, for rank zero to write in; None on other ranks and where nothing is logged."""
    logs = trainer.is_global_zero and trainer.log_dir and trainer.logger is not None
    return Path(str(trainer.log_dir)) if logs and Path(str(trainer.log_dir)).is_dir() else None


class FederatedCallback(Callback):
    """A callback with the hooks of a round.

    Attributes:
        is_server: takes the server's step in `on_phase_reduce`; a fit needs exactly one such callback.
        kept: the attributes that checkpoints store, with a reader of each, which checks the form of a foreign one.
    """

    is_server = False
    kept: ClassVar[Mapping[str, Reader]] = {}

    def state_dict(self) -> dict[str, Any]:
        return {name: copy.deepcopy(getattr(self, name)) for name in self.kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name in self.kept:
            setattr(self, name, copy.deepcopy(state_dict[name]))

    def notice_once(self, kind: str, text: str) -> None:
        """Print the first notice of its kind."""
        said: set[str] = self.__dict__.setdefault("_said", set())
        if kind not in said:
            said.add(kind)
            notice(text)

    def on_clients_end(self, trainer: Trainer, module: FederatedModule, num_clients: int) -> None:
        """Called after `num_clients` more clients of the current phase on this rank; `module.log` is not available."""

    def on_clients_served(self, trainer: Trainer, module: FederatedModule, num_clients: int) -> None:
        """Called after `num_clients` more clients are measured or predicted on this rank, without `module.log`."""

    def on_phase_reduce(self, trainer: Trainer, module: FederatedModule) -> None:
        """Called after all clients of a phase on this rank; `module.log` is not available."""

    def on_round_end(self, trainer: Trainer, module: FederatedModule, record: RoundRecord) -> None:
        """Called when the round is committed, before its evaluation and checkpoint."""

    def on_client_columns(
        self, trainer: Trainer, module: FederatedModule, population: str, positions: list[int],
        columns: dict[str, list[Any]],
    ) -> None:  # fmt: skip
        """Called for `clients.csv`, to add columns about the clients at `positions` of `seen` or `unseen`."""

    def on_summary(self, trainer: Trainer, module: FederatedModule, summary: RunSummary) -> None:
        """Called on rank zero after the test, to add entries of `summary.json` and lines for the terminal."""
