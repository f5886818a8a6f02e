"""Callbacks that wait for a metric that never comes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from lit_fed.callbacks.training_split import TrainingSplitEvaluation
from lit_fed.core.errors import ConfigError
from lit_fed.training.hooks import data_of, federated

__all__ = ["MonitorCheck"]


class MonitorCheck(Callback):
    """Refuses an EarlyStopping or a ModelCheckpoint whose `monitor` no callback logs.

    What the evaluation logs is known before training; an algorithm's own metrics, `train/…`, after the first round. In
    a run with callbacks of other packages, which may log what they like, nothing is refused.
    """

    def __init__(self) -> None:
        self._checked = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check what can be known."""
        self._checked = False
        self._refuse(trainer, known_keys(trainer, pl_module), lambda key: not key.startswith("train/"))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the rest, behind the first round."""
        if not self._checked:
            self._checked = True
            self._refuse(trainer, known_keys(trainer, pl_module) | trainer.callback_metrics.keys(), lambda _: True)

    def _refuse(self, trainer: Trainer, known: set[str], decided: Callable[[str], bool]) -> None:
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        packages = {type(one).__module__.partition(".")[0] for one in (*callbacks, trainer.lightning_module)}
        if not packages <= {"lit_fed", "lightning"}:
            return
        for callback in callbacks:
            key = getattr(callback, "monitor", None) if isinstance(callback, EarlyStopping | ModelCheckpoint) else None
            if key is not None and key not in known and decided(key):
                raise ConfigError(
                    f"--trainer.callbacks: {type(callback).__name__}.monitor is {key}, which this run does not log; "
                    f"give one of {', '.join(sorted(known))}"
                )


def known_keys(trainer: Trainer, pl_module: LightningModule) -> set[str]:
    """Keys that the callbacks of this package log in a fit; the algorithm's own metrics are left out."""
    data, module = data_of(trainer), federated(pl_module)
    populations = ["seen"] if data.unseen is None else ["seen", "unseen"]
    statistics = module.statistics(torch.ones(1, 3 + len(module.chosen_metrics)))
    keys = {f"{data.evaluation_split}/{one}/{key}" for one in populations for key in statistics}
    if any(isinstance(one, TrainingSplitEvaluation) for one in trainer.callbacks):  # type: ignore[attr-defined]
        served = ["loss@served", *statistics]
        keys |= {f"train/{one}/{key}" for one in populations for key in served if key != "loss"}
    return keys | {"train/seen/loss"}
