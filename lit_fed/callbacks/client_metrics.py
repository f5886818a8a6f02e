"""From the per-client table to the numbers that papers report."""

from __future__ import annotations

from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lit_fed.core.types import RoundRecord
from lit_fed.errors import notice
from lit_fed.metrics.client_table import outlier
from lit_fed.metrics.gathered import ClientTable
from lit_fed.training.hooks import FederatedCallback, data_of, federated, log_round
from lit_fed.training.module import FederatedModule
from lit_fed.training.strategy import same_on_every_rank

__all__ = ["ClientMetrics", "log_results", "measure_population", "report_population", "reported_rows"]

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
    with trainer.precision_plugin.val_step_context():
        for block in data_of(trainer).serving(population, split):
            module.measure(trainer.strategy.batch_to_device(block), population, table)


def log_results(module: FederatedModule, prefix: str, results: dict[str, float]) -> None:
    """Log statistics that are the same on every rank under `{prefix}/…`, and keep them as the run's last."""
    named = {f"{prefix}/{key}": value for key, value in results.items()}
    module.results.update(named)
    for key, value in named.items():
        module.log(key, value, batch_size=1, **same_on_every_rank(module.trainer))


def report_population(module: FederatedModule, population: str, split: str) -> None:
    """Log the statistics of one population's table under `{split}/{population}/…` and keep its rows.

    The table is the same on every rank after `compute`, and so is what is logged.
    """
    table: Any = module.tables[population]
    rows = table.compute()
    table.reset()
    module.keep_rows(population, rows)
    for name, some in reported_rows(module, population, rows).items():
        log_results(module, f"{split}/{name}", module.statistics(some))
    _notice_outlier(module, population, split, rows)
    if module.trainer.is_global_zero:
        _notice_chosen(module, population, split)


def reported_rows(module: FederatedModule, population: str, rows: Tensor) -> dict[str, Tensor]:
    """Rows of the clients that are reported together: a population, and `honest` where some of it attack.

    Args:
        module: the module of the run.
        population: `seen` or `unseen`.
        rows: as of `ClientTable.compute`, [T, 3 + M + K].
    """
    honest = getattr(data_of(module.trainer), population).honest
    return {population: rows} | ({} if honest is None else {"honest": rows[honest]})


def _notice_outlier(module: FederatedModule, population: str, split: str, rows: Tensor) -> None:
    """Say once in a run which client's loss outweighs those of all others: it decides the mean, and perhaps the model.

    Medians of well-trained clients are next to nothing, so those below `SMALL_LOSS` count as that.
    """
    clients = getattr(data_of(module.trainer), population)
    measured = torch.arange(len(rows)) if clients.measured is None else clients.measured
    held = rows[:, 0] > 0
    if module.outlier_noticed or not module.trainer.is_global_zero or not held.any():
        return
    found = outlier(rows[held, 1] / rows[held, 0], SMALL_LOSS)
    if found is None:
        return
    position, value, median = found
    module.outlier_noticed = True
    notice(
        f"client {clients.names[int(measured[held][position])]!r} has a {split} loss of {value:.3g}, the median of the "
        f"{population} clients is {median:.3g}; it decides the mean, so look at its data"
    )


def _notice_chosen(module: FederatedModule, population: str, split: str) -> None:
    """Say once in a run which chosen metrics are the accuracy, are undefined for some clients, or have no worse end."""
    clients, chosen = getattr(data_of(module.trainer), population), module.chosen_metrics
    same = [one.name for one in chosen.metrics if one.is_accuracy]
    if same and "accuracy" not in chosen.said:
        chosen.said.add("accuracy")
        notice(
            f"{', '.join(same)}: averaged over samples (micro), which is the accuracy again; give "
            "{F1Score: {average: macro}}, say, for a mean over classes"
        )
    measured = torch.arange(len(clients.names)) if clients.measured is None else clients.measured
    held = module.client_rows[population][:, 0] > 0
    missing = ~module.client_metrics[population].isfinite() & held[:, None]
    for one, nobody in zip(chosen.metrics, missing.T, strict=True):
        if one.larger_is_better is None and f"{one.name}_worst" not in chosen.said:
            chosen.said.add(f"{one.name}_worst")
            notice(
                f"{type(one.metric).__name__} does not say whether larger is better, so {one.name} has no worst client"
            )
        if nobody.any() and one.name not in chosen.said:
            chosen.said.add(one.name)
            why = f", since {one.reason}" if one.reason else ""
            notice(
                f"{one.name} is undefined for {int(nobody.sum())} of {int(held.sum())} {population} clients, for "
                f"{clients.names[int(measured[nobody][0])]!r}, say{why}; they take no part in its statistics, and "
                f"{split}/{population}/{one.name}_undefined counts them"
            )


class ClientMetrics(FederatedCallback):
    """Logs each round's training loss, local learning rate and time; after each evaluation statistics over clients.

    Keys: `train/seen/loss`, `lr`, `time/round_seconds`; `{split}/seen/loss`, `accuracy` (weighted by samples),
    `accuracy_decile`, `accuracy_worst`, `accuracy_std`, `accuracy_unweighted`; for regression `mse` likewise; and so
    for each metric of `--model.metrics`, with the number of clients that have none as `<name>_undefined`. With
    `--data.attackers` the same of the seen clients that do not attack, as `{split}/honest/…`.
    """

    def on_round_end(self, trainer: Trainer, module: FederatedModule, record: RoundRecord) -> None:
        """Log the round's numbers, so that they precede its checkpoint."""
        named = {
            name: name if "/" in name else f"train/seen/{name}" for name in record.metrics
        }  # {} without local work
        results = {named[name]: value for name, value in record.metrics.items()}
        module.results.update(results)
        module.log_dict(results, on_step=True, on_epoch=False, batch_size=1)
        log_round(trainer, module, {"time/round_seconds": record.seconds, "lr": record.lr})

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the statistics of the evaluation."""
        report_population(federated(pl_module), "seen", data_of(trainer).evaluation_split)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the statistics of the test."""
        report_population(federated(pl_module), "seen", "test")
