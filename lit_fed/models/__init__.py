"""Networks: plain modules built from the sizes of the data; classes in this folder are found automatically."""

from lit_fed.models.base import Network
from lit_fed.system.discovery import find_classes

_FOUND = find_classes(__name__, Network)
globals().update(_FOUND)

__all__ = [*_FOUND]
