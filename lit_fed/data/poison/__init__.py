"""Data poisoning by attackers, for tests of robustness; classes in this folder are found automatically."""

from lit_fed.data.poison.base import Poison
from lit_fed.system.discovery import find_classes

_FOUND = find_classes(__name__, Poison)
globals().update(_FOUND)

__all__ = ["Poison", *_FOUND]
