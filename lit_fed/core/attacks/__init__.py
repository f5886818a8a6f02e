"""Attacks to test with: what clients that lie send; an attack in a file of this folder is found."""

from lit_fed.core.attacks.base import Attack
from lit_fed.core.discovery import find_classes

_FOUND = find_classes(__name__, Attack)
globals().update(_FOUND)

__all__ = ["Attack", *_FOUND]
