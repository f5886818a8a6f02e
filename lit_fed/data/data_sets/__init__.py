"""Data sets: samples still to be divided, or clients with samples of their own; every file here is found by itself."""

from lit_fed.data.data_sets.base import DataSet
from lit_fed.system.discovery import find_classes

_FOUND = find_classes(__name__, DataSet)
globals().update(_FOUND)

__all__ = [*_FOUND]
