"""Callbacks: the server, evaluation, communication, reports; files in this folder are discovered automatically."""

from lit_fed.system.discovery import room
from lit_fed.training.hooks import FederatedCallback

LIGHTNING = ("Callback", "ModelCheckpoint", "ModelSummary", "ProgressBar", "RichModelSummary")
"""Its classes that callbacks here derive from."""

__getattr__, _FOUND = room(__name__, "FederatedCallback", *LIGHTNING)

__all__ = [*_FOUND, "FederatedCallback"]
