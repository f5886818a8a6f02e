"""Callbacks: the server, evaluation, communication, reports; files in this folder are discovered automatically."""

from lightning.pytorch import Callback

from lit_fed.callbacks.defaults import with_defaults
from lit_fed.system.discovery import find_classes
from lit_fed.training.hooks import FederatedCallback

_FOUND = find_classes(__name__, Callback)
globals().update(_FOUND)

__all__ = [*_FOUND, "FederatedCallback", "with_defaults"]
