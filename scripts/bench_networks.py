"""Rows of bench.py about networks on a CPU: memory format, precision, client trainers, ranks, memory."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import torch
from lightning.pytorch import Callback
from measuring import PlainLoop, in_process, medians, with_ratios
from textbook import Textbook

from lit_fed import FederatedModule, FederatedTrainer
from lit_fed.algorithms import FedEM
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import Population
from lit_fed.data import ClientDataSet
from lit_fed.data.data_sets.base import empty_split, make_split
from lit_fed.data.module import FederatedDataModule
from lit_fed.models import MLP, CharLSTM, FedEMCNN, LeNet5, Linear, MobileNetV2, Network

__all__ = ["NETWORK_ROWS"]


@dataclass(frozen=True)
class Noise(ClientDataSet):
    """Clients with random images or texts: what a round costs does not depend on what they show.

    Args:
        shape: of one sample; one number for texts of so many characters.
        num_clients: number of clients T.
        samples: training samples of each.
        classes: number of classes.
    """

    shape: tuple[int, ...] = (1, 28, 28)
    num_clients: int = 10
    samples: int = 480
    classes: int = 62

    num_classes: ClassVar[int | None] = None

    def load(self) -> tuple[Population, None]:
        """The clients."""
        rng, total = np.random.default_rng(0), self.num_clients * self.samples
        if len(self.shape) == 1:
            text = rng.integers(0, self.classes, (total, self.shape[0] + 1))
            x, y = np.ascontiguousarray(text[:, :-1]), np.ascontiguousarray(text[:, 1:])
        else:
            x, y = rng.standard_normal((total, *self.shape), np.float32), rng.integers(0, self.classes, total)
        train = make_split(x, y, np.full(self.num_clients, self.samples))
        names = [str(one) for one in range(self.num_clients)]
        return Population(train, empty_split(train), empty_split(train), names), None


class Case:
    """A network on random data, for lit_fed and for the textbook."""

    def __init__(self, network: type[Network], dataset: Noise, batch_size: int, options: dict | None = None) -> None:
        self.network = partial(network, **(options or {}))
        self.data = FederatedDataModule(dataset, batch_size=batch_size)
        self.data.setup()

    def textbook(self) -> Callable[[], None]:
        """A round of the textbook."""
        build = partial(self.network, self.data.input_shape, self.data.target.num_outputs)
        return Textbook(build, self.data.seen.train, batch_size=self.data.batch_size).round

    def ours(
        self, memory_format: Literal["auto", "contiguous"] = "auto", client_trainer: str = "auto", bf16: bool = False
    ) -> Callable[[], None]:
        """A round of lit_fed."""
        module = FederatedModule(
            FedEM(), LocalSolver(lr=0.1), self.network, client_trainer=client_trainer, memory_format=memory_format
        )
        return PlainLoop(self.data, module, bf16=bf16).round


def compare(repetitions: int, rounds: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Medians after a round of warming up, and ratios to the textbook."""
    for one in rounds.values():
        one()
    return with_ratios(medians(repetitions, **{name: (one, 1) for name, one in rounds.items()}))


def fedem_cnn() -> dict[str, float]:
    """FedEM with FedEMCNN, 10 clients × 480 images of 1×28×28, M = 3, batch 128: CPU seconds of one round.

    Once as the C library allocates by default, and once as the guide to large runs advises (`tuned malloc`), each in a
    process of its own with its own yardstick.
    """
    row = in_process("bench_networks", "fedem_cnn_child()")
    tuned = in_process("bench_networks", "fedem_cnn_child(contiguous=False)", environment=TUNED_MALLOC)
    return row | {f"tuned malloc: {key}": value for key, value in tuned.items()}


TUNED_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "4000000000", "MALLOC_TRIM_THRESHOLD_": "8000000000"}
"""Keeps large blocks that were freed, instead of having their pages cleared again."""


def fedem_cnn_child(contiguous: bool = True) -> None:
    """Measure and print the row, with the other memory format or without."""
    torch.set_num_threads(1)
    case = Case(FedEMCNN, Noise(), 128)
    rounds = {
        "textbook": case.textbook(),
        "float32 channels_last": case.ours(),
        "bf16-mixed channels_last": case.ours(bf16=True),
    }
    if contiguous:
        rounds["float32 contiguous"] = case.ours("contiguous")
        rounds["bf16-mixed contiguous"] = case.ours("contiguous", bf16=True)
    print(json.dumps(compare(3, rounds)))


def mobilenet() -> dict[str, float]:
    """FedEM with MobileNetV2, 4 clients × 448 images of 3×32×32, M = 3, batch 64: CPU seconds of one round."""
    case = Case(MobileNetV2, Noise((3, 32, 32), 4, 448, 10), 64)
    return compare(
        3,
        {
            "textbook": case.textbook(),
            "float32 contiguous": case.ours("contiguous"),
            "float32 channels_last": case.ours(),
            "bf16-mixed channels_last": case.ours(bf16=True),
        },
    )


def char_lstm() -> dict[str, float]:
    """FedEM with CharLSTM, 4 clients × 128 texts of 80 characters, M = 3, batch 32: CPU seconds of one round."""
    case = Case(CharLSTM, Noise((80,), 4, 128, 100), 32)
    return compare(3, {"textbook": case.textbook(), "float32": case.ours(), "bf16-mixed": case.ours(bf16=True)})


def client_trainers() -> dict[str, float]:
    """Sequential and vectorised: CPU seconds of a FedEM round, 20 clients × 100 samples, M = 3; `auto` goes by it."""
    row: dict[str, float] = {}
    cases = {
        "Linear, 32 inputs": Case(Linear, Noise((1, 4, 8), 20, 100, 10), 32),
        "MLP 32-64-10": Case(MLP, Noise((1, 4, 8), 20, 100, 10), 32, {"hidden_sizes": (64,)}),
        "MLP 784-20-10": Case(MLP, Noise((1, 28, 28), 20, 100, 10), 32, {"hidden_sizes": (20,)}),
        "MLP 784-200-10": Case(MLP, Noise((1, 28, 28), 20, 100, 10), 32, {"hidden_sizes": (200,)}),
        "LeNet5": Case(LeNet5, Noise((1, 28, 28), 20, 100, 10), 32),
    }
    for name, case in cases.items():
        rounds = {how: case.ours(client_trainer=how) for how in ("sequential", "vectorized")}
        for one in rounds.values():
            one()
        found = medians(5, **{how: (one, 1) for how, one in rounds.items()})
        row |= {f"{name}, {how}": seconds for how, seconds in found.items()}
        row[f"{name}, sequential / vectorized"] = found["sequential"] / found["vectorized"]
    return row


def ranks() -> dict[str, float]:
    """Wall seconds of a FedEM round with FedEMCNN, 16 clients × 480 images, bf16-mixed: one rank against two."""
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(3):
        for count in seconds:
            launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"] if count == 2 else []
            command = [sys.executable, *launcher, __file__, str(count)]
            out = subprocess.run(command, capture_output=True, text=True, check=False)
            if out.returncode:
                raise RuntimeError(out.stderr)
            seconds[count] += json.loads(out.stdout.splitlines()[-1])["rounds"]
    one, two = (float(np.median(measured)) for measured in seconds.values())
    return {"one rank": one, "two ranks": two, "ratio": one / two}


class RoundStarts(Callback):
    """When each round began, in wall seconds."""

    def __init__(self) -> None:
        self.starts: list[float] = []

    def on_train_epoch_start(self, trainer: object, pl_module: object) -> None:
        """A round begins where the one before ended."""
        self.starts.append(time.perf_counter())


def fit_as_rank(count: int) -> None:
    """Fit as one rank of `count` and print the wall seconds of every round but the first."""
    torch.set_num_threads(1)
    clock = RoundStarts()
    data = FederatedDataModule(Noise(num_clients=16), batch_size=128)
    extra = {"devices": 2, "strategy": "fed_ddp"} if count == 2 else {"devices": 1}
    trainer = FederatedTrainer(
        accelerator="cpu", max_epochs=6, precision="bf16-mixed", logger=False, enable_checkpointing=False,
        limit_val_batches=0, callbacks=[clock],
        enable_progress_bar=False, **extra,
    )  # fmt: skip
    trainer.fit(FederatedModule(FedEM(), LocalSolver(lr=0.1), FedEMCNN), datamodule=data)
    if trainer.is_global_zero:
        print(json.dumps({"rounds": np.diff(clock.starts)[1:].tolist()}))


def memory_cnn() -> dict[str, float]:
    """Peak gigabytes of two rounds: 100 clients × 64 images, FedEMCNN, M = 3, bf16-mixed, in a process of its own."""
    return in_process("bench_networks", "memory_cnn_child()")


def memory_cnn_child() -> None:
    """Train two rounds with an evaluation and print the peak."""
    data = FederatedDataModule(Noise(num_clients=100, samples=64), batch_size=128)
    with tempfile.TemporaryDirectory() as folder:
        trainer = FederatedTrainer(
            accelerator="cpu", max_epochs=2, precision="bf16-mixed", default_root_dir=folder, logger=False,
            enable_checkpointing=False, limit_val_batches=0,
            enable_progress_bar=False,
        )  # fmt: skip
        trainer.fit(FederatedModule(FedEM(), LocalSolver(lr=0.1), FedEMCNN), datamodule=data)
    held = data.seen.train.x.nbytes / 1e9
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(json.dumps({"data GB": held, "peak GB": peak}))


NETWORK_ROWS = {one.__name__: one for one in (fedem_cnn, mobilenet, char_lstm, client_trainers, ranks, memory_cnn)}

if __name__ == "__main__":
    fit_as_rank(int(sys.argv[1]))
