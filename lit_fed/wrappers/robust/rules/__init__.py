"""Robust rules: aggregation if some messages may be malicious; files in this folder are discovered automatically."""

from lit_fed.system.discovery import find_classes
from lit_fed.wrappers.robust.rules.base import Aggregate, Rule

_FOUND = find_classes(__name__, Rule)
globals().update(_FOUND)

__all__ = ["Aggregate", "Rule", *_FOUND]
