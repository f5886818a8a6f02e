"""Poisons to test with: what attackers do to their training samples; every file in this folder is found by itself."""

from lit_fed.data.poison.base import Poison
from lit_fed.system.discovery import find_classes

_FOUND = find_classes(__name__, Poison)
globals().update(_FOUND)

__all__ = ["Poison", *_FOUND]
