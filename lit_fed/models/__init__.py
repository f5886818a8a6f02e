"""Networks: plain modules built from the sizes of the data; classes in this folder are found automatically."""

from lit_fed.models.base import Network
from lit_fed.system.discovery import room

__getattr__, _FOUND = room(__name__, "Network")

__all__ = ["Network", *_FOUND]
