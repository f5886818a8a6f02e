"""Robust rules: what a server makes of messages of which some may lie; a rule in a file of this folder is found."""

from lit_fed.system.discovery import find_classes
from lit_fed.wrappers.robust.rules.base import Aggregate, Rule

_FOUND = find_classes(__name__, Rule)
globals().update(_FOUND)

__all__ = ["Aggregate", "Rule", *_FOUND]
