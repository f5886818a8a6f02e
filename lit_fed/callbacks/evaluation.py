"""Evaluation of seen and unseen clients: from the per-client table to the reported statistics."""

from __future__ import annotations

import os
from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer

from lit_fed import serving
from lit_fed.core import tree
from lit_fed.core.types import RoundRecord
from lit_fed.errors import notice
from lit_fed.metrics.gathered import ClientTable
from lit_fed.metrics.scores import ClientScores, outlier
from lit_fed.training.hooks import FederatedCallback, data_of, federated, log_round
from lit_fed.training.module import FederatedModule

__all__ = [
    "ClientMetrics", "TrainingSplitEvaluation", "UnseenClientEvaluation", "is_withheld", "log_results",
    "measure_population", "measured_table",
]  # fmt: skip

SMALL_LOSS = 1e-3
"""Lower limit of the median loss: losses of a model that fits differ by any factor below it."""


def measure_population(
    trainer: Trainer,
    module: FederatedModule,
    population: Literal["seen", "unseen"],
    split: Literal["train", "val", "test"],
    table: ClientTable | None = None,
) -> None:
    """Serve this rank's clients of a population and measure them on a split, outside Lightning's loops.

    Args:
        trainer: the trainer.
        module: the module whose clients are served.
        population: the clients.
        split: what they are measured on.
        table: gets the results; None: the module's table of the population.
    """
    with trainer.precision_plugin.val_step_context():
        for block in data_of(trainer).serving(population, split):
            module.measure(trainer.strategy.batch_to_device(block), population, table, split)


def measured_table(
    trainer: Trainer,
    module: FederatedModule,
    population: Literal["seen", "unseen"],
    split: Literal["train", "val", "test"],
) -> ClientTable:
    """A table of its own with the results of a split; the module's may hold unreported results of another one."""
    own: Any = module.tables[population]
    table: ClientTable = own.clone()
    table.reset()
    measure_population(trainer, module, population, split, table)
    return table


def log_results(module: FederatedModule, prefix: str, results: dict[str, float]) -> None:
    """Log statistics that are equal on all ranks under `{prefix}/…`, and add them to the run's results."""
    named = {f"{prefix}/{key}": value for key, value in results.items()}
    module.results.update(named)
    logger = False if prefix.startswith("test/") and is_withheld(module.trainer) else None
    for key, value in named.items():
        module.log(key, value, batch_size=1, logger=logger)


def is_withheld(trainer: Trainer) -> bool:
    """Whether loggers get no results of test samples yet: W&B's agent may end or choose a run by any key."""
    during_fit = trainer.state.fn == "fit" and data_of(trainer).evaluation_split == "test"
    return during_fit and bool(os.environ.get("WANDB_SWEEP_ID"))


def report_population(module: FederatedModule, population: str, split: str) -> None:
    """Log the statistics of one population's table under `{split}/{population}/…` and keep its results."""
    table: Any = module.tables[population]
    scores = module.client_scores[population] = table.scores()
    for name, results in statistics(module, population, table).items():
        log_results(module, f"{split}/{name}", results)
    table.reset()
    if module.trainer.is_global_zero:
        _notice_outlier(module, population, split, scores)
        _notice_chosen(module, population, split, scores)


def statistics(module: FederatedModule, population: str, table: ClientTable) -> dict[str, dict[str, float]]:
    """Statistics by reported group of clients: a population, and `honest` if some of its clients attack."""
    chosen, scores = module.chosen_metrics, table.scores()
    honest = getattr(data_of(module.trainer), population).honest
    pooled = chosen.pooled and not isinstance(module.federation.client_trainer, serving.MeasuresElsewhere)
    found = {}
    for name, kept in {population: None, **({} if honest is None else {"honest": honest.nonzero()[:, 0]})}.items():
        found[name] = chosen.statistics(scores if kept is None else tree.index(scores, kept))
        if pooled:
            found[name] |= table.pool.values(chosen, table.rows.device, kept)
    return found


def _notice_outlier(module: FederatedModule, population: str, split: str, scores: ClientScores) -> None:
    """Name once a client whose loss dominates the mean over clients."""
    clients, held = getattr(data_of(module.trainer), population), scores.held
    if module.outlier_noticed or not held.any():
        return
    found = outlier(scores.loss[held] / scores.samples[held], SMALL_LOSS)
    if found is None:
        return
    position, value, median = found
    module.outlier_noticed = True
    notice(
        f"client {clients.names[int(clients.positions[held][position])]!r} has a {split} loss of {value:.3g}, the "
        f"median of the {population} clients is {median:.3g}; it decides the mean, so look at its data"
    )


def _notice_chosen(module: FederatedModule, population: str, split: str, scores: ClientScores) -> None:
    """Report once which chosen metrics equal the accuracy, are undefined for some clients, or have no worst client."""
    clients, chosen = getattr(data_of(module.trainer), population), module.chosen_metrics
    same = [one.name for one in chosen.metrics if one.is_accuracy]
    if same and "accuracy" not in chosen.said:
        chosen.said.add("accuracy")
        notice(
            f"{', '.join(same)}: averaged over samples (micro), which is the accuracy again; give "
            "{F1Score: {average: macro}}, say, for a mean over classes"
        )
    for one in chosen.metrics:
        undefined, measured = scores.held & ~scores.metrics[one.name].isfinite(), int(scores.held.sum())
        if one.larger_is_better is None and f"{one.name}_worst" not in chosen.said:
            chosen.said.add(f"{one.name}_worst")
            notice(
                f"{type(one.metric).__name__} does not say whether larger is better, so {one.name} has no worst client"
            )
        if undefined.any() and one.name not in chosen.said:
            chosen.said.add(one.name)
            why = f", since {one.reason}" if one.reason else ""
            notice(
                f"{one.name} is undefined for {int(undefined.sum())} of {measured} {population} clients, for "
                f"{clients.names[int(clients.positions[undefined][0])]!r}, say{why}; its statistics leave them out, "
                f"and {split}/{population}/{one.name}_undefined counts them"
            )


class ClientMetrics(FederatedCallback):
    """Logs each round's training loss, local learning rate and time; after each evaluation statistics over clients.

    Keys of a round: `train/seen/loss`, `lr`, `time/round_seconds`. Keys of an evaluation: `{split}/seen/loss`, and for
    the accuracy (of a regression `mse`) each of `lit_fed.metrics.scores.STATISTICS`, `{split}/seen/accuracy`,
    `{split}/seen/accuracy_decile` and so on. A metric of `--model.metrics` has the same, and two of its own: `_pooled`
    and `_undefined`. With `--data.attackers` all keys of an evaluation are there once more as `{split}/honest/…`, of
    the seen clients that do not attack.
    """

    def on_round_end(self, trainer: Trainer, module: FederatedModule, record: RoundRecord) -> None:
        results = {name if "/" in name else f"train/seen/{name}": value for name, value in record.metrics.items()}
        module.results.update(results)
        module.log_dict(results, on_step=True, on_epoch=False, batch_size=1)
        log_round(trainer, module, {"time/round_seconds": record.seconds, "lr": record.lr})

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        report_population(federated(pl_module), "seen", data_of(trainer).evaluation_split)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        report_population(federated(pl_module), "seen", "test")


class UnseenClientEvaluation(Callback):
    """Adapts the clients held out of training on their training split and measures them on the evaluated split.

    Keys are those of `ClientMetrics` with `unseen` for `seen`. Their adapted states are discarded.
    """

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._measure(trainer, pl_module, data_of(trainer).evaluation_split)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._measure(trainer, pl_module, "test")

    def _measure(self, trainer: Trainer, pl_module: LightningModule, split: Literal["val", "test"]) -> None:
        module = federated(pl_module)
        if data_of(trainer).unseen is None:
            return
        measure_population(trainer, module, "unseen", split)
        report_population(module, "unseen", split)


class TrainingSplitEvaluation(Callback):
    """Measures clients on their training samples too, in every periodic evaluation and in the test.

    Clients that adapt do so on the samples that they are measured on. Keys are those of `ClientMetrics` with `train`
    for the split, and `loss@served` for `loss`, since `train/seen/loss` is the loss of the local steps; of a mixture it
    is the negative log-likelihood of a sample, by which starts are compared. clients.csv shows the test split only.
    Table 3 (accuracies in parentheses) and Figures 3 to 8 of https://arxiv.org/abs/2108.10252 show these numbers.
    """

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._measure(trainer, federated(pl_module), "seen")
        if data_of(trainer).unseen is not None:
            self._measure(trainer, federated(pl_module), "unseen")

    on_test_epoch_end = on_validation_epoch_end

    def _measure(self, trainer: Trainer, module: FederatedModule, population: Literal["seen", "unseen"]) -> None:
        table = measured_table(trainer, module, population, "train")
        for name, results in statistics(module, population, table).items():
            named = {"loss@served" if key == "loss" else key: value for key, value in results.items()}
            log_results(module, f"train/{name}", named)
