"""From the per-client table to the numbers that papers report."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lit_fed.callbacks.base import log_round
from lit_fed.core.errors import notice
from lit_fed.metrics import ClientTable, summarise
from lit_fed.metrics.outliers import outlier

if TYPE_CHECKING:
    from lit_fed.training.module import FederatedModule

__all__ = ["ClientMetrics", "log_results", "measure_population", "report_population"]

SMALL_LOSS = 1e-3
"""Mean losses below this differ by any factor in a model that fits."""


def measure_population(
    trainer: Trainer,
    module: FederatedModule,
    population: Literal["seen", "unseen"],
    split: Literal["train", "val", "test"],
    table: ClientTable | None = None,
) -> None:
    """Serve this rank's clients of a population and measure them on a split, beside Lightning's own evaluation.

    Args:
        trainer: the trainer.
        module: the module whose clients are served.
        population: the clients.
        split: what they are measured on.
        table: gets the results; None: the module's table of the population.
    """
    datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]
    with trainer.precision_plugin.val_step_context():
        for block in datamodule.serving(population, split):
            module.measure(trainer.strategy.batch_to_device(block), population, table)


def log_results(module: FederatedModule, place: str, results: dict[str, float]) -> None:
    """Log statistics that are the same on every rank under `{place}/…`, and keep them as the run's last."""
    named = {f"{place}/{key}": value for key, value in results.items()}
    module.results.update(named)
    for key, value in named.items():
        module.log(key, value, sync_dist=True, batch_size=1)


def report_population(module: FederatedModule, population: str, split: str) -> None:
    """Log the statistics of one population's table under `{split}/{population}/…` and keep its rows.

    The table is the same on every rank after `compute`, and so is what is logged.
    """
    table: Any = module.tables[population]
    rows = table.compute()
    table.reset()
    module.client_rows[population] = rows
    log_results(module, f"{split}/{population}", summarise(rows, module.target.metric))
    _notice_outlier(module, population, split, rows)


def _notice_outlier(module: FederatedModule, population: str, split: str, rows: Tensor) -> None:
    """Say once in a run which client's loss outweighs those of all others: it decides the mean, and perhaps the model.

    Medians of well-trained clients are next to nothing, so those below `SMALL_LOSS` count as that.
    """
    data: Any = module.trainer.datamodule  # type: ignore[attr-defined]
    clients = getattr(data, population)
    measured = torch.arange(len(rows)) if clients.measured is None else clients.measured
    held = rows[:, 0] > 0
    if data.outlier_noticed or not module.trainer.is_global_zero or not held.any():
        return
    found = outlier(rows[held, 1] / rows[held, 0], SMALL_LOSS)
    if found is None:
        return
    place, value, median = found
    data.outlier_noticed = True
    notice(
        f"client {clients.names[int(measured[held][place])]!r} has a {split} loss of {value:.3g}, the median of the "
        f"{population} clients is {median:.3g}; it decides the mean, so look at its data"
    )


class ClientMetrics(Callback):
    """Logs each round's training loss, local learning rate and time; after each evaluation statistics over clients.

    Keys: `train/seen/loss`, `lr`, `time/round_seconds`; `{split}/seen/loss`, `accuracy` (weighted by samples),
    `accuracy_decile`, `accuracy_worst`, `accuracy_std`, `accuracy_unweighted`; for regression `mse` likewise.
    """

    def __init__(self) -> None:
        self._started: float | None = None
        self._lr = 0.0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Start the round's clock."""
        module: Any = pl_module
        if self._started is None:
            self._started = time.perf_counter()
            self._lr = float(module.context("plan").lr)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the round's numbers after its last block, so that they precede its checkpoint."""
        module: Any = pl_module
        if not batch.ends_round:
            return
        assert self._started is not None
        seconds, self._started = time.perf_counter() - self._started, None
        keys = [key for key in module.round_results if key.startswith("train/")]
        results = {key: module.round_results.pop(key) for key in keys}  # a round without local work has none
        module.results.update(results)
        module.log_dict(results, on_step=True, on_epoch=False, batch_size=1)
        log_round(trainer, module, {"time/round_seconds": seconds, "lr": self._lr})

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the statistics of the evaluation."""
        module: Any = pl_module
        datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]
        report_population(module, "seen", datamodule.evaluation_split)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the statistics of the test."""
        module: Any = pl_module
        report_population(module, "seen", "test")
