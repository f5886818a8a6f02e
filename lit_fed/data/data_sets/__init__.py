"""Data sets: pooled samples, or clients with their own; files in this folder are discovered automatically."""

from lit_fed.system.discovery import room

__getattr__, _FOUND = room(__name__, "DataSet")

__all__ = [*_FOUND]
