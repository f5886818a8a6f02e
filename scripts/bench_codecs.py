"""The row of bench.py about codecs: what encoding a client's message costs beside adding it up at the server."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from measuring import medians
from torch import Tensor

from lit_fed.core.reduce import Accumulator
from lit_fed.core.seeds import uniforms
from lit_fed.core.types import Message
from lit_fed.wrappers.compression.codecs import (
    QSGD,
    Codec,
    Drive,
    FloatCast,
    LowRank,
    RandomK,
    ScaledSign,
    TernGrad,
    TopK,
    Uniform,
)

__all__ = ["CODEC_ROWS"]

NUMBERS = 2**20
MESSAGES = 20

MEASURED: dict[str, Codec] = {
    "FloatCast": FloatCast(),
    "Uniform": Uniform(),
    "QSGD": QSGD(),
    "QSGD, sparse": QSGD(coding="sparse"),
    "TernGrad": TernGrad(),
    "ScaledSign": ScaledSign(),
    "TopK, 1 %": TopK(),
    "RandomK, 1 %": RandomK(),
    "Drive": Drive(),
    "LowRank, rank 2": LowRank(),
}


def codecs() -> dict[str, float]:
    """A message of 2^20 numbers: CPU seconds to add it up at the server, and how many times that a codec takes.

    Random numbers are given to codecs that need some; drawing them is a row of its own. The sum is that of 20 messages
    in blocks of one, in float64, and the division at its end.
    """
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(MESSAGES, NUMBERS, generator=generator)
    chances = torch.rand(NUMBERS, generator=generator, dtype=torch.float64)
    one, client = torch.ones(1, dtype=torch.float64), torch.tensor(3)

    def server() -> None:
        accumulator = Accumulator("sum")
        for row in values.split(1):
            accumulator.add(Message({"w": row}, one, one, one), one, {})
        accumulator.reduce(torch.arange(MESSAGES), [MESSAGES])

    def client_with(codec: Codec) -> None:
        message: Tensor = values[0].view(1024, -1) if codec.keeps_shape else values[0]
        codec.encode(message, lambda count: chances[:count])

    functions = {name: (lambda codec=codec: client_with(codec), 5) for name, codec in MEASURED.items()}
    functions["random numbers"] = (lambda: uniforms(0, 1, client, "bench", NUMBERS), 5)
    row = medians(3, weighted_mean=(server, 1), **functions)
    mean = row.pop("weighted_mean") / MESSAGES
    return {"weighted mean": mean} | {f"{name} / weighted mean": seconds / mean for name, seconds in row.items()}


CODEC_ROWS = {"codecs": codecs}

if __name__ == "__main__":
    torch.set_num_threads(1)
    print({name: round(value, 4) for name, value in codecs().items()})
