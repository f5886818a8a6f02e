"""Features around any algorithm, one folder each: mathematics, settings and wrapper."""

import importlib

from lit_fed.system.discovery import find_classes
from lit_fed.wrappers.base import WrapperSettings

_ROOMS = ("compression", "faults", "privacy", "robust", "secure")
_FOUND = {
    name: cls
    for room in _ROOMS
    for name, cls in find_classes(importlib.import_module(f"{__name__}.{room}").__name__, WrapperSettings).items()
}
globals().update(_FOUND)

__all__ = [*_FOUND]
