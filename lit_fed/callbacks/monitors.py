"""Check that monitored metrics are logged, and are no results of test samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lit_fed.callbacks.evaluation import TrainingSplitEvaluation, is_withheld
from lit_fed.core.types import RoundRecord
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError, notice
from lit_fed.metrics.chosen import ChosenMetrics
from lit_fed.metrics.scores import ClientScores
from lit_fed.training.hooks import FederatedCallback, data_of, federated
from lit_fed.training.module import FederatedModule

__all__ = ["MonitorCheck", "evaluation_keys", "no_evaluation"]

TRAINING_LOSS = "train/seen/loss"


class MonitorCheck(FederatedCallback):
    """Refuses callbacks, such as EarlyStopping, whose `monitor` is of test samples, or is logged by no callback.

    Keys of evaluations are known before training; those of the algorithm, `train/…`, after the first round with
    clients. If callbacks of other packages take part, which may log anything, nothing is refused.
    """

    def __init__(self) -> None:
        self._checked = self._trained = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._checked = self._trained = False
        for callback, key in _watching(trainer):
            if key.startswith("test/"):
                place = f"--trainer.callbacks: {type(callback).__name__}.monitor"
                raise ConfigError(f"{place} is {key}, and test samples choose nothing; give {_of_validation(trainer)}")
        self._refuse(
            trainer, known_keys(trainer, federated(pl_module).chosen_metrics), lambda key: not key.startswith("train/")
        )
        if is_withheld(trainer) and trainer.is_global_zero:
            notice(
                "WANDB_SWEEP_ID is set, and test samples choose nothing: test/… is logged after the final test alone; "
                "--data.val_fraction 0.1 adds val/…"
            )

    def on_round_end(self, trainer: Trainer, module: FederatedModule, record: RoundRecord) -> None:
        if record.metrics:
            self._trained = True
        else:
            self._show_last(trainer, module, record)

    def _show_last(self, trainer: Trainer, module: FederatedModule, record: RoundRecord) -> None:
        """Show callbacks the last training loss in a round without local steps, or refuse if there is none."""
        seen = {key: value for key, value in module.results.items() if key.startswith("train/seen/")}
        for key, value in seen.items():  # from the checkpoint, if a run resumes in such a round
            trainer.callback_metrics.setdefault(key, torch.tensor(value))
        known = known_keys(trainer, module.chosen_metrics) - {TRAINING_LOSS} | trainer.callback_metrics.keys()
        for callback, key in _watching(trainer):
            if key.startswith("train/") and key not in known and getattr(callback, "strict", True):
                missing = "a step" if len(record.client_ids) else "part"
                raise ConfigError(
                    f"--trainer.callbacks: {type(callback).__name__}.monitor is {key}, and nobody takes {missing} in "
                    f"the first round; give one of {', '.join(sorted(known))}, or another --seed_everything"
                )

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._trained and not self._checked:
            self._checked = True
            known = known_keys(trainer, federated(pl_module).chosen_metrics) | trainer.callback_metrics.keys()
            self._refuse(trainer, known, lambda _: True)

    def _refuse(self, trainer: Trainer, known: set[str], decided: Callable[[str], bool]) -> None:
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        packages = {type(one).__module__.partition(".")[0] for one in (*callbacks, trainer.lightning_module)}
        if not packages <= {"lit_fed", "lightning"}:
            return
        for callback, key in _watching(trainer):
            if key not in known and decided(key):
                never = no_evaluation(trainer)
                if not never and data_of(trainer).evaluation_split == "test":
                    never = f"or {_of_validation(trainer)}"
                raise ConfigError(
                    f"--trainer.callbacks: {type(callback).__name__}.monitor is {key}, which this run does not log; "
                    f"give one of {', '.join(sorted(known))}{never and f' ({never})'}"
                )


def _watching(trainer: Trainer) -> list[tuple[Callback, str]]:
    """The callbacks that watch a metric, such as EarlyStopping and ModelCheckpoint, with its key."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    watching = [(one, getattr(one, "monitor", None)) for one in callbacks]
    return [(one, key) for one, key in watching if isinstance(key, str)]


def _of_validation(trainer: Trainer) -> str:
    """The setting that has validation samples measured, and the keys."""
    data = data_of(trainer)
    keys = evaluation_keys(data, federated(trainer.lightning_module).chosen_metrics, "val")
    return f"{'' if data.evaluation_split == 'val' else '--data.val_fraction 0.1 and '}one of {', '.join(sorted(keys))}"


def no_evaluation(trainer: Any) -> str:
    """Why clients are measured only in the test, and the fix; "" if they are measured during training.

    Args:
        trainer: a trainer, or the arguments of one.
    """
    if trainer.limit_val_batches == 0:
        return "--trainer.limit_val_batches is 0; leave it out"
    every, rounds = trainer.check_val_every_n_epoch, trainer.max_epochs
    if every is None or (rounds is not None and 0 <= rounds < every):
        return (
            f"--trainer.max_epochs is {rounds}, and the first evaluation is in round {every}; lower "
            "--trainer.check_val_every_n_epoch"
        )
    return ""


def evaluation_keys(data: FederatedDataModule, chosen: ChosenMetrics, split: str) -> set[str]:
    """Keys that measuring the clients on a split logs.

    Args:
        data: after its `setup`.
        chosen: metrics beside accuracy and loss.
        split: name of the split; `train` calls its loss `loss@served`.
    """
    populations = ["seen", *(["unseen"] if data.unseen else []), *(["honest"] if data.attackers is not None else [])]
    statistics = chosen.statistics(ClientScores.of_rows(torch.ones(1, 3 + len(chosen)), 0, chosen.names))
    statistics |= {f"{name}_pooled": 0.0 for name in chosen.pooled if not data.dataset.is_remote}
    names = ["loss@served" if split == "train" and key == "loss" else key for key in statistics]
    return {f"{split}/{population}/{name}" for population in populations for name in names}


def known_keys(trainer: Trainer, chosen: ChosenMetrics) -> set[str]:
    """Keys to choose by that the callbacks of this package log in a fit, without the algorithm's own metrics."""
    data, keys = data_of(trainer), {TRAINING_LOSS}
    if no_evaluation(trainer):
        return keys
    if any(isinstance(one, TrainingSplitEvaluation) for one in trainer.callbacks):  # type: ignore[attr-defined]
        keys |= evaluation_keys(data, chosen, "train")
    return keys | (evaluation_keys(data, chosen, "val") if data.evaluation_split == "val" else set())
