"""The callbacks of every run."""

from __future__ import annotations

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ProgressBar

from lit_fed.callbacks.aggregation import ServerAggregation
from lit_fed.callbacks.checkpoint import LastCheckpoint
from lit_fed.callbacks.client_faults import ClientFaults
from lit_fed.callbacks.client_metrics import ClientMetrics
from lit_fed.callbacks.client_weights import ClientWeights
from lit_fed.callbacks.communication import CommunicationCost
from lit_fed.callbacks.component_accuracy import ComponentAccuracy
from lit_fed.callbacks.guarantees import Guarantees
from lit_fed.callbacks.progress import FederatedProgressBar
from lit_fed.callbacks.report import RunReport
from lit_fed.callbacks.secure_rounds import SecureRounds
from lit_fed.callbacks.trained_parameters import TrainedParameters
from lit_fed.callbacks.unseen_clients import UnseenClientEvaluation
from lit_fed.training.notices import keep_notices_out

__all__ = ["with_defaults"]


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
        RunReport, TrainedParameters, Guarantees, SecureRounds, ClientFaults,
    ]  # fmt: skip
    missing = [kind() for kind in usual if not any(isinstance(one, kind) for one in callbacks)]
    if progress and not any(isinstance(one, ProgressBar) for one in callbacks):
        missing.append(FederatedProgressBar())
    if checkpoint and not any(isinstance(one, LastCheckpoint) for one in callbacks):
        missing.append(LastCheckpoint())
    return [*callbacks, *missing]
