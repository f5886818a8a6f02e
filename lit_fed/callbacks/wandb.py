"""Weights & Biases."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import WandbLogger

from lit_fed.callbacks.report import client_table, populations_of
from lit_fed.core.types import RoundRecord
from lit_fed.errors import ConfigError
from lit_fed.metrics.summary import RunSummary
from lit_fed.system.packages import imported_later, mpl, pd
from lit_fed.training.checkpoint import WORD, load_checkpoint
from lit_fed.training.hooks import FederatedCallback, data_of, federated
from lit_fed.training.module import FederatedModule

__all__ = ["FederatedWandb", "WandbRounds", "continue_run"]

wandb = imported_later("wandb")  # of the extra `wandb`


def continue_run(logger: WandbLogger, checkpoint: Path) -> None:
    """Continue the W&B run of a checkpoint, unless the environment names another.

    Args:
        logger: the logger, before its run begins.
        checkpoint: a checkpoint of the run that goes on.
    """
    run_id = load_checkpoint(checkpoint, values=False).get("callbacks", {}).get("FederatedWandb", {}).get("run_id")
    if isinstance(run_id, str) and WORD.fullmatch(run_id) and "WANDB_RUN_ID" not in os.environ:
        os.environ["WANDB_RUN_ID"] = run_id  # W&B names a folder by it
        try:
            _ = logger.experiment  # begins the run
        finally:
            del os.environ["WANDB_RUN_ID"]  # the next run of the process is another


BY_BYTES, SENT = "by_bytes/", "comm/sent_mb"
"""Beginning of copies of results whose axis is what all clients have sent and received so far, and that axis."""

RESULTS = ("val/", "test/")
"""Beginning of the keys of results."""


class _Row:
    """Collects what is logged to a W&B run, in place of its `log`, of which each call would make a row."""

    def __init__(self, log: Any) -> None:
        self.log, self.values = getattr(log, "log", log), dict[str, Any]()
        self.sent = 0.0

    def __call__(self, data: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        self.values |= data

    def write(self) -> None:
        """Write the row."""
        results = {key: one for key, one in self.values.items() if key.startswith(RESULTS) and isinstance(one, float)}
        if results and self.sent:
            self.values |= {SENT: self.sent} | {f"{BY_BYTES}{key}": one for key, one in results.items()}
        if self.values:
            self.log(self.values)
        self.values = {}


class WandbRounds(FederatedCallback):
    """Makes a round one row of a W&B run, with the number of rounds as the horizontal axis; every such run has it.

    Results stand a second time under `by_bytes/`, against the MB of all clients so far. Checkpoints hold the run's id
    and this number, so that a resumed run continues it.
    """

    state_key = "FederatedWandb"  # of both classes

    def __init__(self) -> None:
        self._run_id: str | None = None
        self._sent = 0.0  # MB

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for run in _runs(trainer):
            self._run_id = run.id
            run.define_metric("round")
            run.define_metric("*", step_metric="round", step_sync=True)
            run.define_metric(SENT)
            run.define_metric(f"{BY_BYTES}*", step_metric=SENT, step_sync=False)
            run.log = _Row(run.log)

    def state_dict(self) -> dict[str, Any]:
        return {"run_id": self._run_id, "sent": self._sent}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._sent = float(state_dict.get("sent", 0.0))

    def on_round_end(self, trainer: Trainer, module: FederatedModule, record: RoundRecord) -> None:
        self._sent += (record.bits_up + record.bits_down) / 8e6
        for run in _runs(trainer):
            run.log({"round": record.round_idx + 1})
            run.log.sent = self._sent

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the row of the round before."""
        for run in _runs(trainer):
            run.log.write()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write the last row; later calls of `log` are rows of their own again."""
        for run in _runs(trainer):
            if isinstance(run.log, _Row):
                run.log.write()
                run.log = run.log.log

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._run_id is not None:  # else there is no run to which a row belongs
            WandbRounds.teardown(self, trainer, pl_module, "")


class FederatedWandb(WandbRounds):
    """Logs tables, figures and models to a W&B run, against the round.

    These are, in evaluated rounds, a table of the clients' results, their histogram, and the mixture weights as a heat
    map; after the fit the best checkpoint of every `ModelCheckpoint` that monitors a metric, as an artefact; after the
    test the table of clients, the figures of `plots/` and the content of `summary.json`.

    It needs Lightning's `WandbLogger` among the loggers (`--trainer.logger WandbLogger`).

    Args:
        every_n_rounds: lower limit of rounds between two tables, histograms and heat maps.
    """

    def __init__(self, every_n_rounds: int = 1) -> None:
        if every_n_rounds < 1:
            raise ConfigError(f"FederatedWandb.every_n_rounds is {every_n_rounds}; give a whole number >= 1")
        super().__init__()
        self.every_n_rounds = every_n_rounds
        self._last_map: int | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a fit without `WandbLogger`; other commands, which have no loggers, log nothing."""
        if stage == "fit" and not any(isinstance(logger, WandbLogger) for logger in trainer.loggers):
            raise ConfigError("FederatedWandb needs a W&B run; add --trainer.logger WandbLogger, or leave it out")
        super().setup(trainer, pl_module, stage)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log results and mixture weights of the measured clients, in the heat map ordered by largest component."""
        module = federated(pl_module)
        done = module.num_rounds_done
        soon = self._last_map is not None and done - self._last_map < self.every_n_rounds
        if trainer.state.fn != "fit" or (soon and done < module.num_rounds):
            return
        self._last_map = done
        made: dict[str, Any] = {
            "clients_by_round": lambda: wandb.Table(dataframe=_round_table(trainer, module)),
            "clients_histogram": lambda: _histogram(trainer, module),
        }
        if module.store.has_mixtures:
            made["mixture_weights"] = lambda: _mixture_image(trainer, module)
        _log(trainer, made)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for run in _runs(trainer):
            for checkpoints in trainer.checkpoint_callbacks:
                if isinstance(checkpoints, ModelCheckpoint) and checkpoints.monitor and checkpoints.best_model_path:
                    _log_best(run, checkpoints)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        populations, module = populations_of(data_of(trainer)), federated(pl_module)
        _log(trainer, {"clients": lambda: wandb.Table(dataframe=client_table(populations, module))})

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Log summary and figures, which the report writes after the test."""
        summary = Path(trainer.log_dir or "") / "summary.json"
        if stage == "test" and trainer.is_global_zero and summary.is_file():
            for picture in sorted((summary.parent / "plots").glob("*.png")):
                _log(trainer, {f"plots/{picture.stem}": lambda path=picture: wandb.Image(str(path))})
            for run in _runs(trainer):
                run.summary.update(RunSummary.read(summary.parent).entries)
        super().teardown(trainer, pl_module, stage)


def _runs(trainer: Trainer) -> list[Any]:
    """The W&B runs of rank zero; other ranks have none."""
    if not trainer.is_global_zero:
        return []
    return [logger.experiment for logger in trainer.loggers if isinstance(logger, WandbLogger)]


def _log(trainer: Trainer, values: dict[str, Any]) -> None:
    """Log the results of functions that run on rank zero only."""
    for run in _runs(trainer):
        run.log({name: make() for name, make in values.items()})


def _round_table(trainer: Trainer, module: FederatedModule) -> pd.DataFrame:
    """The table of clients of this round's evaluation."""
    data = data_of(trainer)
    table = client_table(populations_of(data), module).rename(columns={"num_test": f"num_{data.evaluation_split}"})
    table.insert(0, "round", module.num_rounds_done)
    return table


def _histogram(trainer: Trainer, module: FederatedModule) -> Any:
    """The seen clients' accuracies, or their errors."""
    table = client_table(populations_of(data_of(trainer)), module)
    values = table.loc[table["population"] == "seen", module.target.metric].dropna()
    return wandb.Histogram(values.to_numpy(float))


def _mixture_image(trainer: Trainer, module: FederatedModule) -> Any:
    """The heat map of this round's mixture weights, in the style of the report's."""
    import PIL.Image

    from lit_fed.pictures.run import mixture_heat_map
    from lit_fed.pictures.style import COLUMN

    population, _ = data_of(trainer).populations
    weights = module.mixture_weights.cpu()[population.positions].float()
    table = pd.DataFrame({f"pi_{m}": column.tolist() for m, column in enumerate(weights.T)})
    table["population"] = "seen"
    if population.groups is not None:
        table["group"] = population.groups[population.positions].tolist()
    content = io.BytesIO()
    with mpl.rc_context(COLUMN):
        mixture_heat_map(table).savefig(content, format="png")
    return wandb.Image(PIL.Image.open(content, formats=["PNG"]), caption=f"round {module.num_rounds_done}")


def _log_best(run: Any, checkpoints: ModelCheckpoint) -> None:
    """Log a checkpoint as an artefact of the run, with its score."""
    score = None if checkpoints.best_model_score is None else float(checkpoints.best_model_score)
    facts = {"monitor": checkpoints.monitor, "score": score, "file": Path(checkpoints.best_model_path).name}
    artefact = wandb.Artifact(f"model-{run.id}", type="model", metadata=facts)
    artefact.add_file(checkpoints.best_model_path, name="best.ckpt")
    run.log_artifact(artefact, aliases=["best"])
