"""Partitions: how a pool of samples is divided among clients; every file in this folder is found by itself."""

from lit_fed.data.partitions.base import Partition
from lit_fed.system.discovery import find_classes

_FOUND = find_classes(__name__, Partition)
globals().update(_FOUND)

__all__ = [*_FOUND]
