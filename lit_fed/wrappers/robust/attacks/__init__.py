"""Attacks to test with: what clients that lie send; an attack in a file of this folder is found."""

from lit_fed.system.discovery import find_classes
from lit_fed.wrappers.robust.attacks.base import Attack

_FOUND = find_classes(__name__, Attack)
globals().update(_FOUND)

__all__ = ["Attack", *_FOUND]
