"""Attacks for tests: messages of malicious clients; files in this folder are discovered automatically."""

from lit_fed.system.discovery import find_classes
from lit_fed.wrappers.robust.attacks.base import Attack

_FOUND = find_classes(__name__, Attack)
globals().update(_FOUND)

__all__ = ["Attack", *_FOUND]
