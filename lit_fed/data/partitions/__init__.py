"""Partitions of pooled samples into clients; files in this folder are discovered automatically."""

from lit_fed.data.partitions.base import Partition
from lit_fed.system.discovery import find_classes

_FOUND = find_classes(__name__, Partition)
globals().update(_FOUND)

__all__ = [*_FOUND]
