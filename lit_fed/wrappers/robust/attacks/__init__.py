"""Attacks for tests: messages of malicious clients; files in this folder are discovered automatically."""

from lit_fed.system.discovery import room
from lit_fed.wrappers.robust.attacks.base import Attack

__getattr__, _FOUND = room(__name__, "Attack")

__all__ = ["Attack", *_FOUND]
