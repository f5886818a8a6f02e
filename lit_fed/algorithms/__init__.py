"""Algorithms: one file per paper; every file in this folder is discovered automatically."""

from lit_fed.core.algorithm import Algorithm
from lit_fed.system.discovery import find_classes

_FOUND = find_classes(__name__, Algorithm)
globals().update(_FOUND)

__all__ = ["Algorithm", *_FOUND]
