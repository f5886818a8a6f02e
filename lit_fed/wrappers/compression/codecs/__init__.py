"""Codecs: encodings of a vector in fewer bits, and their decoded values."""

from lit_fed.system.discovery import room
from lit_fed.wrappers.compression.codecs.base import Codec, Encoded

__getattr__, _FOUND = room(__name__, "Codec")

__all__ = ["Codec", "Encoded", *_FOUND]
