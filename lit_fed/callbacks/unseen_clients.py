"""How well clients are served that were never trained on."""

from __future__ import annotations

from typing import Literal

from lightning.pytorch import Callback, LightningModule, Trainer

from lit_fed.callbacks.client_metrics import measure_population, report_population
from lit_fed.errors import ConfigError
from lit_fed.training.hooks import data_of, federated

__all__ = ["UnseenClientEvaluation"]


class UnseenClientEvaluation(Callback):
    """Lets the clients kept out of training adapt on their training split and measures them on the other.

    Keys are those of `ClientMetrics` with `unseen` for `seen`. Nothing that they learn is kept.

    Args:
        every_n_evaluations: take part in every n-th periodic evaluation; the test always counts.
    """

    def __init__(self, every_n_evaluations: int = 1) -> None:
        if every_n_evaluations < 1:
            raise ConfigError(
                f"UnseenClientEvaluation.every_n_evaluations is {every_n_evaluations}; give a number >= 1"
            )
        self.every_n_evaluations = every_n_evaluations

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure in every n-th evaluation, counted in rounds so that a resumed run keeps the beat."""
        every = self.every_n_evaluations * (trainer.check_val_every_n_epoch or 1)
        if trainer.state.fn == "fit" and federated(pl_module).num_rounds_done % every:
            return
        self._measure(trainer, pl_module, data_of(trainer).evaluation_split)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure on the test split."""
        self._measure(trainer, pl_module, "test")

    def _measure(self, trainer: Trainer, pl_module: LightningModule, split: Literal["val", "test"]) -> None:
        module = federated(pl_module)
        if data_of(trainer).unseen is None:
            return
        measure_population(trainer, module, "unseen", split)
        report_population(module, "unseen", split)
