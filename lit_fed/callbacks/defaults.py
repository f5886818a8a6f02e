"""The callbacks of every run."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor, ProgressBar
from lightning.pytorch.loggers import WandbLogger

from lit_fed.callbacks.aggregation import ServerAggregation
from lit_fed.callbacks.attack_success import AttackSuccess
from lit_fed.callbacks.checkpoint import LastCheckpoint, checkpoint_folder
from lit_fed.callbacks.client_weights import ClientWeights
from lit_fed.callbacks.coefficients import LinearCoefficients
from lit_fed.callbacks.communication import CommunicationCost
from lit_fed.callbacks.component_accuracy import ComponentAccuracy
from lit_fed.callbacks.divergence import Divergence
from lit_fed.callbacks.evaluation import ClientMetrics, UnseenClientEvaluation
from lit_fed.callbacks.monitors import MonitorCheck
from lit_fed.callbacks.network_summary import NetworkSummary, TrainedParameters
from lit_fed.callbacks.progress import FederatedProgressBar, TimeAhead
from lit_fed.callbacks.report import RunReport
from lit_fed.errors import notice
from lit_fed.training.hooks import FederatedCallback, data_of, federated, results_folder
from lit_fed.training.refusals import refuse_callbacks
from lit_fed.training.round_logger import RoundLogger
from lit_fed.training.run_arguments import run_arguments

__all__ = ["callbacks_of", "keep_notices_out"]

DEFAULTS: tuple[type[Callback], ...] = (
    ServerAggregation, ClientMetrics, UnseenClientEvaluation, CommunicationCost, ClientWeights, ComponentAccuracy,
    LinearCoefficients, Divergence, RunReport, TrainedParameters, AttackSuccess, TimeAhead,
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
        from lit_fed.callbacks.wandb import WandbRounds

        defaults.append((WandbRounds, WandbRounds))
    missing = [made() for kind, made in defaults if not any(isinstance(one, kind) for one in chosen)]
    return [_FirstCallback(), MonitorCheck(), *chosen, *missing]


class _FirstCallback(FederatedCallback):
    """Shares the run's folder with all ranks, passes the record of a round to all callbacks, and shows signs of life.

    It comes first, since a ModelCheckpoint may depend at the end of the round on other callbacks' use of the record.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for logger in trainer.loggers if stage == "fit" else ():
            if isinstance(logger, RoundLogger):
                logger.agree(trainer.strategy.broadcast)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Name the folder of a Python run, and log its arguments; the command line does both."""
        module = federated(pl_module)
        if module.history.arguments:
            return
        for logger in trainer.loggers:
            logger.log_hyperparams(run_arguments(module, data_of(trainer), trainer.given))  # type: ignore[attr-defined]
        folder = results_folder(trainer) or checkpoint_folder(trainer)
        if folder is not None and trainer.is_global_zero:
            notice(f"the run is written to {folder}")

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, _: int) -> None:
        if batch.ends_round:
            pl_module.tell("on_round_end", pl_module.record)
