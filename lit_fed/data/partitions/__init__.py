"""Partitions of pooled samples into clients; files in this folder are discovered automatically."""

from lit_fed.system.discovery import room

__getattr__, _FOUND = room(__name__, "Partition")

__all__ = [*_FOUND]
