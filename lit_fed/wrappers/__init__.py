"""Features around any algorithm, one folder each: mathematics, settings, wrapper, and what the rest asks of it."""

from lit_fed.system.discovery import room

__getattr__, _FOUND = room(__name__, "WrapperSettings")

__all__ = [*_FOUND]
