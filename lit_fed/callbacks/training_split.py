"""How well clients are served on the samples that they train on."""

from __future__ import annotations

from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer

from lit_fed.callbacks.client_metrics import log_results, measure_population, reported_rows
from lit_fed.training.hooks import data_of, federated

__all__ = ["TrainingSplitEvaluation"]


class TrainingSplitEvaluation(Callback):
    """Measures clients on their training samples too, in every periodic evaluation and in the test.

    Clients are served as for the other splits: those that adapt first do it on the samples that they are then measured
    on. Keys are those of `ClientMetrics` with `train` for the split, and `loss@served` for `loss`, since
    `train/seen/loss` is the loss met while training. clients.csv keeps to the test split.
    Table 3 (accuracies in parentheses) and Figures 3 to 8 of https://arxiv.org/abs/2108.10252 show these numbers.
    """

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure in every periodic evaluation."""
        self._measure_all(trainer, pl_module)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure at the end."""
        self._measure_all(trainer, pl_module)

    def _measure_all(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._measure(trainer, pl_module, "seen")
        if data_of(trainer).unseen is not None:
            self._measure(trainer, pl_module, "unseen")

    def _measure(self, trainer: Trainer, pl_module: LightningModule, population: Literal["seen", "unseen"]) -> None:
        module = federated(pl_module)
        # a table of its own: the module's may hold what the evaluation of another split has yet to report
        own: Any = module.tables[population]
        table = own.clone()
        table.reset()
        measure_population(trainer, module, population, "train", table)
        for name, rows in reported_rows(module, population, table.compute()).items():
            results = module.statistics(rows)
            named = {"loss@served" if key == "loss" else key: value for key, value in results.items()}
            log_results(module, f"train/{name}", named)
