"""Data sets: pooled samples, or clients with their own; files in this folder are discovered automatically."""

from lit_fed.data.data_sets.base import DataSet
from lit_fed.system.discovery import find_classes

_FOUND = find_classes(__name__, DataSet)
globals().update(_FOUND)

__all__ = [*_FOUND]
