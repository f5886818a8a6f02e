"""Codecs: encodings of a vector in fewer bits, and their decoded values."""

from lit_fed.wrappers.compression.codecs.base import Codec, Encoded
from lit_fed.wrappers.compression.codecs.drive import Drive
from lit_fed.wrappers.compression.codecs.float_cast import FloatCast
from lit_fed.wrappers.compression.codecs.levels import QSGD, TernGrad
from lit_fed.wrappers.compression.codecs.low_rank import LowRank
from lit_fed.wrappers.compression.codecs.scaled_sign import ScaledSign
from lit_fed.wrappers.compression.codecs.sparse import RandomK, TopK
from lit_fed.wrappers.compression.codecs.uniform import Uniform

__all__ = [
    "QSGD", "Codec", "Drive", "Encoded", "FloatCast", "LowRank", "RandomK", "ScaledSign", "TernGrad", "TopK", "Uniform",
]  # fmt: skip
