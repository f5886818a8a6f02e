"""Algorithms: one file per paper; every file in this folder is discovered automatically."""

from lit_fed.core.algorithm import Algorithm
from lit_fed.system.discovery import room

__getattr__, _FOUND = room(__name__, "Algorithm", beside="lit_fed.core")

__all__ = ["Algorithm", *_FOUND]
