"""Data poisoning by attackers, for tests of robustness; classes in this folder are found automatically."""

from lit_fed.data.poison.base import Poison
from lit_fed.system.discovery import room

__getattr__, _FOUND = room(__name__, "Poison")

__all__ = ["Poison", *_FOUND]
