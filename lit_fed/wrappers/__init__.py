"""What goes around any algorithm; settings that stand in a file of this folder are found by themselves."""

from lit_fed.core.discovery import find_classes
from lit_fed.wrappers.around import WrapperSettings

_FOUND = find_classes(__name__, WrapperSettings)
globals().update(_FOUND)

__all__ = [*_FOUND]
