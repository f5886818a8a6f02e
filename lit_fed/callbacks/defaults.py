"""The callbacks of every run."""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint, ProgressBar
from lightning.pytorch.loggers import WandbLogger

from lit_fed.callbacks.aggregation import ServerAggregation
from lit_fed.callbacks.attack_success import AttackSuccess
from lit_fed.callbacks.checkpoint import LastCheckpoint
from lit_fed.callbacks.client_weights import ClientWeights
from lit_fed.callbacks.communication import CommunicationCost
from lit_fed.callbacks.component_accuracy import ComponentAccuracy
from lit_fed.callbacks.divergence import Divergence
from lit_fed.callbacks.evaluation import ClientMetrics, UnseenClientEvaluation
from lit_fed.callbacks.monitors import MonitorCheck
from lit_fed.callbacks.network_summary import NetworkSummary, TrainedParameters
from lit_fed.callbacks.progress import FederatedProgressBar
from lit_fed.callbacks.report import RunReport
from lit_fed.callbacks.wandb import WandbRounds
from lit_fed.training.hooks import FederatedCallback, data_of, federated
from lit_fed.training.refusals import refuse_callbacks
from lit_fed.training.round_logger import RoundLogger
from lit_fed.training.run_arguments import run_arguments

__all__ = ["callbacks_of", "keep_notices_out"]

DEFAULTS: tuple[type[Callback], ...] = (
    ServerAggregation, ClientMetrics, UnseenClientEvaluation, CommunicationCost, ClientWeights, ComponentAccuracy,
    Divergence, RunReport, TrainedParameters, AttackSuccess,
)  # fmt: skip
"""Those of every run; a run with features has theirs besides, see `FederatedModule.configure_callbacks`."""


def keep_notices_out() -> None:
    """Silence Lightning's notices of devices and tips, but not its callbacks and profilers, which the user added."""
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    warnings.filterwarnings("ignore", message="Checkpoint directory .* exists and is not empty")  # a continued run's
    warnings.filterwarnings("ignore", message="Using ModelCheckpoint with manual optimization")  # servers are stepped
    # statistics of all clients, which every rank computes from the same table
    warnings.filterwarnings("ignore", message=r".*log\('(train|val|test)/(seen|unseen|honest)/.*sync_dist=True")
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    for asked_for in ("callbacks", "profilers"):
        logging.getLogger(f"lightning.pytorch.{asked_for}").setLevel(logging.INFO)


def callbacks_of(arguments: dict[str, Any]) -> list[Callback]:
    """The callbacks of a trainer: the one that passes on rounds, the given ones, and the default ones of other kinds.

    Also silences Lightning's notices, since these callbacks report the run.

    Args:
        arguments: arguments of the trainer.

    Raises:
        ConfigError: if a given callback cannot work on rounds.
    """
    keep_notices_out()
    given = arguments.get("callbacks") or []
    chosen = [given] if isinstance(given, Callback) else list(given)
    refuse_callbacks(chosen)
    # its `lr-Assign` is logged as `lr` in any case
    chosen = [one for one in chosen if type(one) is not LearningRateMonitor]
    defaults: list[tuple[type[Callback], type[Callback]]] = [(kind, kind) for kind in DEFAULTS]
    if arguments.get("enable_model_summary"):
        defaults.insert(0, (NetworkSummary, NetworkSummary))
    if arguments.get("enable_progress_bar") is not False:
        defaults.append((ProgressBar, FederatedProgressBar))
    if arguments.get("enable_checkpointing") is not False:
        defaults.append((LastCheckpoint, LastCheckpoint))
    loggers = arguments.get("logger")
    if any(isinstance(one, WandbLogger) for one in (loggers if isinstance(loggers, Iterable) else [loggers])):
        defaults.append((WandbRounds, WandbRounds))
    missing = [made() for kind, made in defaults if not any(isinstance(one, kind) for one in chosen)]
    return [_FirstCallback(), MonitorCheck(), *chosen, *missing]


class _FirstCallback(FederatedCallback):
    """Shares the run's folder with all ranks, passes the record of a round to all callbacks, and shows signs of life.

    It comes first, since a ModelCheckpoint may depend at the end of the round on other callbacks' use of the record.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        for logger in trainer.loggers:
            if isinstance(logger, RoundLogger):
                logger.agree(trainer.strategy.broadcast)
        if not trainer.loggers:  # which number the folders of runs
            _keep_apart(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the arguments of a Python run; the command line logs its own."""
        module = federated(pl_module)
        for logger in [] if module.history.arguments else trainer.loggers:
            logger.log_hyperparams(run_arguments(module, data_of(trainer), trainer.given))  # type: ignore[attr-defined]

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, _: int) -> None:
        if batch.ends_round:
            pl_module.tell("on_round_end", pl_module.record)


def _keep_apart(trainer: Trainer) -> None:
    """Give the checkpoints of a run without loggers a folder that holds none of another run."""
    own = None if trainer.ckpt_path is None else Path(trainer.ckpt_path).resolve().parent
    names = itertools.chain(["checkpoints"], (f"checkpoints_{number}" for number in itertools.count(1)))
    folders = (Path(trainer.default_root_dir, name) for name in names)
    folder = next(one for one in folders if not one.exists() or one.resolve() == own)
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and callback.dirpath is None:
            callback.dirpath = str(folder)
