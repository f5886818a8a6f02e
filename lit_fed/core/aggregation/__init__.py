"""Robust rules: what a server makes of messages of which some may lie; a rule in a file of this folder is found."""

from lit_fed.core.aggregation.base import Aggregate, Rule
from lit_fed.core.discovery import find_classes

_FOUND = find_classes(__name__, Rule)
globals().update(_FOUND)

__all__ = ["Aggregate", "Rule", *_FOUND]
