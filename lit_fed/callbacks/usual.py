"""The callbacks of every run."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LearningRateMonitor, ProgressBar

from lit_fed.callbacks.aggregation import ServerAggregation
from lit_fed.callbacks.attack_success import AttackSuccess
from lit_fed.callbacks.checkpoint import LastCheckpoint
from lit_fed.callbacks.client_faults import ClientFaults
from lit_fed.callbacks.client_metrics import ClientMetrics
from lit_fed.callbacks.client_weights import ClientWeights
from lit_fed.callbacks.communication import CommunicationCost
from lit_fed.callbacks.component_accuracy import ComponentAccuracy
from lit_fed.callbacks.guarantees import Guarantees
from lit_fed.callbacks.monitors import MonitorCheck
from lit_fed.callbacks.network_summary import NetworkSummary
from lit_fed.callbacks.progress import FederatedProgressBar
from lit_fed.callbacks.report import RunReport
from lit_fed.callbacks.robust_rounds import RobustRounds
from lit_fed.callbacks.secure_rounds import SecureRounds
from lit_fed.callbacks.trained_parameters import TrainedParameters
from lit_fed.callbacks.unseen_clients import UnseenClientEvaluation
from lit_fed.training.first_callback import FirstCallback
from lit_fed.training.notices import keep_notices_out
from lit_fed.training.refusals import refuse_callbacks

__all__ = ["callbacks_of", "with_defaults"]


def with_defaults(callbacks: list[Callback], *, checkpoint: bool = True, progress: bool = True) -> list[Callback]:
    """The given callbacks, and of the usual ones those whose kind is not among them; Lightning's notices are kept out.

    Args:
        callbacks: given callbacks; they come first.
        checkpoint: write `last.ckpt` after every round.
        progress: show progress.
    """
    keep_notices_out()  # these callbacks say what a run does
    usual = [
        ServerAggregation, ClientMetrics, UnseenClientEvaluation, CommunicationCost, ClientWeights, ComponentAccuracy,
        RunReport, TrainedParameters, Guarantees, SecureRounds, RobustRounds, AttackSuccess, ClientFaults,
    ]  # fmt: skip
    missing = [kind() for kind in usual if not any(isinstance(one, kind) for one in callbacks)]
    if progress and not any(isinstance(one, ProgressBar) for one in callbacks):
        missing.append(FederatedProgressBar())
    if checkpoint and not any(isinstance(one, LastCheckpoint) for one in callbacks):
        missing.append(LastCheckpoint())
    return [*callbacks, *missing]


def callbacks_of(arguments: dict[str, Any]) -> list[Callback]:
    """The callbacks of a trainer: those that were given, the usual ones, and before all what tells them of rounds.

    Args:
        arguments: of the trainer.

    Raises:
        ConfigError: if one of the given would cut a round, or means nothing here.
    """
    given = arguments.get("callbacks") or []
    chosen = [given] if isinstance(given, Callback) else list(given)
    refuse_callbacks(chosen)
    if arguments.get("enable_model_summary") and not any(isinstance(one, NetworkSummary) for one in chosen):
        chosen.append(NetworkSummary())
    # What Lightning's monitor would log as `lr-Assign` is logged as `lr` in any case.
    chosen = [one for one in chosen if type(one) is not LearningRateMonitor]
    usual = with_defaults(
        chosen,
        checkpoint=arguments.get("enable_checkpointing") is not False,
        progress=arguments.get("enable_progress_bar") is not False,
    )
    return [FirstCallback(), MonitorCheck(), *usual]
