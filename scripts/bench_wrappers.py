"""Rows of bench.py about wrappers and codecs, beside plain FedAvg and the mean."""

from typing import Any

import torch
from measuring import medians
from torch import Tensor

from lit_fed import rounds
from lit_fed.algorithms import FedAvg
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.reduce import Accumulator
from lit_fed.core.seeds import uniforms
from lit_fed.core.targets import Multiclass
from lit_fed.core.task import Task
from lit_fed.core.types import Message, Split
from lit_fed.models import LeafCNN
from lit_fed.rounds import FederatedRounds
from lit_fed.wrappers.base import AlgorithmWrapper
from lit_fed.wrappers.compression import codecs as kinds
from lit_fed.wrappers.compression.wrapper import Compressed
from lit_fed.wrappers.privacy.client_level import ClientPrivacy
from lit_fed.wrappers.privacy.local import LocalPrivacy
from lit_fed.wrappers.robust.rules import CenteredClipping
from lit_fed.wrappers.robust.wrapper import RobustAverage
from lit_fed.wrappers.secure.wrapper import SecureSum

CLIENTS, CLASSES = 2, 10

AROUND: dict[str, Any] = {  # little noise, since much would stop the training, and costs the same
    "Around": AlgorithmWrapper,
    "ClientPrivacy": ClientPrivacy(1e-4, delta=1e-3, clip_norm=1.0).around,
    "LocalPrivacy": LocalPrivacy(1e-4, delta=1e-3, clip_norm=1.0).around,
    "SecureSum": SecureSum().around,
    "FloatCast": lambda inner: Compressed(inner, kinds.FloatCast()),
    "QSGD": lambda inner: Compressed(inner, kinds.QSGD()),
    "TopK with EF14": lambda inner: Compressed(inner, kinds.TopK(), "ef14"),
    "CenteredClipping": lambda inner: RobustAverage(inner, CenteredClipping()),
}

MESSAGES, NUMBERS = 20, 2**20


def federation(algorithm: Any, images: int, batch_size: int) -> tuple[FederatedRounds, Split]:
    """LEAF's network on random images of two clients, so many of each, which take an epoch."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS * images, 1, 28, 28, generator=rng)
    y = torch.randint(CLASSES, (CLIENTS * images,), generator=rng)
    train = Split(x, y, torch.arange(CLIENTS + 1) * images)
    task = Task.create(lambda: LeafCNN((1, 28, 28), CLASSES, dropout=0.0), Multiclass(CLASSES), 0)
    found = rounds.start(
        algorithm, task, train, solver=LocalSolver(lr=0.01), client_trainer="sequential", batch_size=batch_size,
        num_rounds=100, weighting="uniform",
    )  # fmt: skip
    return found, train


@torch.no_grad()
def wrappers() -> dict[str, float]:
    """A client's round of FedAvg with LEAF's network: CPU seconds, and how many times that inside wrappers.

    With 128 images in batches of 16, and with 500 in batches of 10, the least local work of FedAvg's paper.
    """
    row = {}
    for images, batch_size in ((128, 16), (500, 10)):
        algorithms = {"plain": FedAvg()} | {name: around(FedAvg()) for name, around in AROUND.items()}
        running = {name: federation(one, images, batch_size) for name, one in algorithms.items()}
        for one, train in running.values():
            one.round(train)
        functions = {name: (lambda one=one, train=train: one.round(train), 1) for name, (one, train) in running.items()}
        found = medians(7, **functions)
        row[f"plain, {images} images"] = found["plain"] / CLIENTS
        row |= {f"{name} / plain, {images} images": found[name] / found["plain"] for name in AROUND}
    return row


# ---------------------------------------------------------------------- codecs
MEASURED: dict[str, kinds.Codec] = {
    "FloatCast": kinds.FloatCast(),
    "Uniform": kinds.Uniform(),
    "QSGD": kinds.QSGD(),
    "QSGD, sparse": kinds.QSGD(coding="sparse"),
    "TernGrad": kinds.TernGrad(),
    "ScaledSign": kinds.ScaledSign(),
    "TopK, 1 %": kinds.TopK(),
    "RandomK, 1 %": kinds.RandomK(),
    "Drive": kinds.Drive(),
    "LowRank, rank 2": kinds.LowRank(),
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

    def client_with(codec: kinds.Codec) -> None:
        message: Tensor = values[0].view(1024, -1) if codec.keeps_shape else values[0]
        codec.encode(message, lambda count: chances[:count])

    functions = {name: (lambda codec=codec: client_with(codec), 5) for name, codec in MEASURED.items()}
    functions["random numbers"] = (lambda: uniforms(0, 1, client, "bench", NUMBERS), 5)
    row = medians(3, weighted_mean=(server, 1), **functions)
    mean = row.pop("weighted_mean") / MESSAGES
    return {"weighted mean": mean} | {f"{name} / weighted mean": seconds / mean for name, seconds in row.items()}


ROWS = (codecs, wrappers)
