"""Robust rules: aggregation if some messages may be malicious; files in this folder are discovered automatically."""

from lit_fed.system.discovery import room
from lit_fed.wrappers.robust.rules.base import Aggregate, Rule

__getattr__, _FOUND = room(__name__, "Rule")

__all__ = ["Aggregate", "Rule", *_FOUND]
