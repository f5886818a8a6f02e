"""Rows of bench.py about networks on a CPU: memory format, precision, client trainers, ranks, memory, frozen bodies."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from measuring import (
    PlainLoop,
    RoundClock,
    Textbook,
    fit,
    in_process,
    index_batches,
    medians,
    peak_gigabytes,
    with_ratios,
)  # fmt: skip
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lit_fed import FederatedModule
from lit_fed.algorithms import FedAvg, FedEM
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import Population, Split
from lit_fed.data import CIFAR10, ClientDataSet
from lit_fed.data.data_sets.base import empty_split, make_split
from lit_fed.data.module import FederatedDataModule
from lit_fed.data.partitions import Dirichlet
from lit_fed.models import MLP, CharLSTM, FedEMCNN, LeafCNN, LeNet5, Linear, MobileNetV2, Network
from lit_fed.system.machine import keep_freed_memory


@dataclass(frozen=True)
class Noise(ClientDataSet):
    """Clients with random images or texts; a round costs the same for any content."""

    shape: tuple[int, ...] = (1, 28, 28)  # of a sample; one number: texts of this length
    num_clients: int = 10
    samples: int = 480  # for training, of each
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
    """A network on random data, for lit_fed and the textbook."""

    def __init__(self, network: type[Network], dataset: Noise, batch_size: int, options: dict | None = None) -> None:
        self.network = partial(network, **(options or {}))
        self.data = FederatedDataModule(dataset, batch_size=batch_size)
        self.data.setup()

    def textbook(self, **options: Any) -> Callable[[], None]:
        """A round of the textbook."""
        build = partial(self.network, self.data.input_shape, self.data.target.num_outputs)
        return Textbook(build, self.data.seen.train, batch_size=self.data.batch_size, **options).round

    def ours(
        self, memory_format: Literal["auto", "contiguous"] = "auto", client_trainer: str = "auto", bf16: bool = False
    ) -> Callable[[], None]:
        """A round of lit_fed."""
        chosen = {"client_trainer": client_trainer, "memory_format": memory_format}
        module = FederatedModule(FedEM(), LocalSolver(lr=0.1), self.network, **chosen)
        return PlainLoop(self.data, module, bf16=bf16).round

    def compare(self, *formats: str) -> dict[str, float]:
        """Medians of the textbook and of lit_fed in some formats, after a warm-up round, and ratios to the textbook."""
        rounds = {"textbook": self.textbook()} | {name: self.ours(**FORMATS[name]) for name in formats}
        for one in rounds.values():
            one()
        return with_ratios(medians(3, **{name: (one, 1) for name, one in rounds.items()}))


FORMATS: dict[str, dict[str, Any]] = {
    "float32": {}, "bf16-mixed": {"bf16": True},
    "float32 channels_last": {}, "bf16-mixed channels_last": {"bf16": True},
    "float32 contiguous": {"memory_format": "contiguous"},
    "bf16-mixed contiguous": {"memory_format": "contiguous", "bf16": True},
}  # fmt: skip
TUNED_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "4000000000", "MALLOC_TRIM_THRESHOLD_": "8000000000"}
"""Keep freed blocks instead of clearing their pages again."""


def fedem_cnn() -> dict[str, float]:
    """FedEM with FedEMCNN, 10 clients × 480 images of 1×28×28, M = 3, batch 128: CPU seconds of one round.

    Once with the C library's default allocator, and once with the settings of the guide to large runs (`tuned malloc`),
    each in a separate process with its own baseline.
    """
    usual = ("float32 channels_last", "bf16-mixed channels_last")
    row = fedem_cnn_in(*usual, "float32 contiguous", "bf16-mixed contiguous")
    tuned = fedem_cnn_in(*usual, environment=TUNED_MALLOC)
    return row | {f"tuned malloc: {key}": value for key, value in tuned.items()}


@in_process
def fedem_cnn_in(*formats: str) -> dict[str, float]:
    """The row in some formats."""
    return Case(FedEMCNN, Noise(), 128).compare(*formats)


def mobilenet() -> dict[str, float]:
    """FedEM with MobileNetV2, 4 clients × 448 images of 3×32×32, M = 3, batch 64: CPU seconds of one round."""
    case = Case(MobileNetV2, Noise((3, 32, 32), 4, 448, 10), 64)
    return case.compare("float32 contiguous", "float32 channels_last", "bf16-mixed channels_last")


def char_lstm() -> dict[str, float]:
    """FedEM with CharLSTM, 4 clients × 128 texts of 80 characters, M = 3, batch 32: CPU seconds of one round."""
    return Case(CharLSTM, Noise((80,), 4, 128, 100), 32).compare("float32", "bf16-mixed")


def client_trainers() -> dict[str, float]:
    """Sequential and vectorised: CPU seconds of a FedEM round, 20 clients × 100 samples, M = 3; the rule of `auto`."""
    row: dict[str, float] = {}
    small, large = (Noise(shape, 20, 100, 10) for shape in ((1, 4, 8), (1, 28, 28)))
    cases: dict[str, tuple[type[Network], Noise, dict[str, Any]]] = {
        "Linear, 32 inputs": (Linear, small, {}),
        "MLP 32-64-10": (MLP, small, {"hidden_sizes": (64,)}),
        "MLP 784-20-10": (MLP, large, {"hidden_sizes": (20,)}),
        "MLP 784-200-10": (MLP, large, {"hidden_sizes": (200,)}),
        "LeNet5": (LeNet5, large, {}),
    }
    for name, (network, noise, options) in cases.items():
        case = Case(network, noise, 32, options)
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


def fit_as_rank(count: int) -> None:
    """Fit as one rank of `count` and print the wall seconds of every round but the first."""
    torch.set_num_threads(1)
    clock = RoundClock(time.perf_counter)
    data = FederatedDataModule(Noise(num_clients=16), batch_size=128)
    extra = {"devices": 2, "strategy": "fed_ddp"} if count == 2 else {"devices": 1}
    module = FederatedModule(FedEM(), LocalSolver(lr=0.1), FedEMCNN)
    trainer = fit(data, module, max_epochs=6, precision="bf16-mixed", limit_val_batches=0, callbacks=[clock], **extra)
    if trainer.is_global_zero:
        print(json.dumps({"rounds": clock.seconds[1:]}))


@in_process
def memory_cnn() -> dict[str, float]:
    """Peak gigabytes of two rounds: 100 clients × 64 images, FedEMCNN, M = 3, bf16-mixed, in a separate process."""
    data = FederatedDataModule(Noise(num_clients=100, samples=64), batch_size=128)
    module = FederatedModule(FedEM(), LocalSolver(lr=0.1), FedEMCNN)
    with tempfile.TemporaryDirectory() as folder:
        fit(data, module, max_epochs=2, precision="bf16-mixed", default_root_dir=folder, limit_val_batches=0)
    return {"data GB": data.seen.train.x.nbytes / 1e9, "peak GB": peak_gigabytes()}


# ---------------------------------------------------------------------- clients of about a hundred images
NETWORKS = {"FedEMCNN": FedEMCNN, "LeNet5": LeNet5}
PRECISIONS = ("float32", "bf16-mixed")
SGD = {"momentum": 0.9, "weight_decay": 5e-4}
TURNS = 3


def small_clients() -> dict[str, float]:
    """FedEM, 32 clients × 120 images of 3×32×32, M = 3, batch 128, momentum kept: CPU seconds of one round.

    The textbook takes its batches from tensors in memory. The programs run in separate processes, in turn, with the C
    library's defaults: the textbook does not get lit_fed's settings of the allocator. `passes alone` are only a forward
    and a backward pass of every model for every client, one after another: a lower bound for a program with these
    passes.
    """
    row: dict[str, float] = {}
    for network in NETWORKS:
        names = ("textbook", *(name for one in PRECISIONS for name in (one, f"{one}, passes alone")))
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(TURNS):
            for name, measured in seconds.items():
                measured.append(seconds_of_round(network, name)["s"])
        found = {name: float(np.median(measured)) for name, measured in seconds.items()}
        row |= {f"{network}, {name}": value for name, value in found.items()}
        row |= {f"{network}, textbook / {name}": found["textbook"] / found[name] for name in names[1:]}
    return row


@in_process
def seconds_of_round(network: str, name: str) -> dict[str, float]:
    """CPU seconds of the third round: in the first clients have no momentum, and memory is taken anew."""
    one_round = rounds_of(network, name, num_clients=32)
    one_round()
    one_round()
    start = time.process_time()
    one_round()
    return {"s": time.process_time() - start}


def rounds_of(network: str, name: str, num_clients: int) -> Callable[[], None]:
    """A round of the textbook, or of lit_fed in a precision, or its `passes alone`."""
    case = Case(NETWORKS[network], Noise((3, 32, 32), num_clients, 120, 10), 128)
    precision, _, alone = name.partition(", ")
    if alone:
        return partial(passes, case, bf16=precision == "bf16-mixed")
    if name == "textbook":
        return case.textbook(batches=index_batches, sgd=SGD, keep_momentum=True)
    solver = LocalSolver(lr=0.1, persist_optimizer=True, **SGD)
    module = FederatedModule(FedEM(), solver, case.network)
    return PlainLoop(case.data, module, bf16=name == "bf16-mixed").round


def passes(case: Case, *, bf16: bool) -> None:
    """Gradients of three models on the samples of every client, in the layout of lit_fed."""
    keep_freed_memory(torch.device("cpu"))
    data = case.data.seen.train
    network = case.network(case.data.input_shape, case.data.target.num_outputs).to(memory_format=torch.channels_last)
    parameters = list(network.parameters())
    for client in map(data.client, range(data.num_clients)):
        x, y = client.all_x.to(memory_format=torch.channels_last), client.all_y
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16, cache_enabled=False):
                outputs = network(x)
            torch.autograd.grad(cross_entropy(outputs.float(), y), parameters)


# ---------------------------------------------------------------------- heads over a frozen body
IMAGES = 2048
BODY_ROUNDS = 2


class TrainedBody(LeafCNN):
    """LEAF's network from the state dict in a file."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, weights: str = "") -> None:
        super().__init__(input_shape, num_outputs, dropout=0.0)
        if weights:
            self.load_state_dict(torch.load(weights, weights_only=True))

    @property
    def body(self) -> nn.Module:
        """All but the last layer."""
        return nn.Sequential(self.features, self.classifier[:-1])


@dataclass(frozen=True)
class Features(ClientDataSet):
    """Features [n, d] of clients' samples, computed once by a network's body."""

    clients: Population = field(repr=False)
    body: nn.Module = field(repr=False)
    num_classes: ClassVar[int | None] = 10

    def load(self) -> tuple[Population, None]:
        """The clients with features as inputs."""
        train, test = (self._features(split) for split in (self.clients.train, self.clients.test))
        return self.clients._replace(train=train, val=test, test=test), None

    def _features(self, split: Split) -> Split:
        with torch.no_grad():
            z: Tensor = torch.cat([self.body(x) for x in split.x.split(256)] or [split.x.flatten(1)])
        return make_split(z.numpy(), split.y.numpy(), split.sizes.numpy())


def pictures() -> FederatedDataModule:
    """Clients with images of CIFAR-10 from `CIFAR_ROOT`, or with random images."""
    root = os.environ.get("CIFAR_ROOT")
    if root is None:
        data = FederatedDataModule(Noise((3, 32, 32), 8, IMAGES // 8, 10), batch_size=64)
    else:
        some = CIFAR10(root=root, download=False, fraction=IMAGES / 48000)
        data = FederatedDataModule(some, Dirichlet(alpha=0.4), num_clients=8, batch_size=64)
    data.setup()
    return data


def frozen_features() -> dict[str, float]:
    """FedEM, M = 3, LeafCNN, 2,048 images of CIFAR-10: CPU seconds and bytes of a round, whole and of heads alone.

    The body is trained by FedAvg first. `heads` trains the last layer of the whole network (`--model.trainable head`),
    `heads on kept features` a linear model on the body's features of the samples, computed once.
    """
    data = pictures()
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "body.pt"
        first = FederatedModule(FedAvg(), LocalSolver(lr=0.05), TrainedBody)
        loop = PlainLoop(data, first)
        for _ in range(BODY_ROUNDS):
            loop.round()
        models = loop.federation.shared.models
        state = {name: leaf[0] for name, leaf in (models.parameters | models.buffers).items()}
        torch.save(state, weights)
        body = TrainedBody(data.input_shape, data.target.num_outputs, str(weights)).body.eval()

        def network(shape: tuple[int, ...], outputs: int) -> TrainedBody:
            return TrainedBody(shape, outputs, str(weights))

        kept = FederatedDataModule(Features(data.seen, body), batch_size=64)
        kept.setup()
        loops = {
            "whole network": PlainLoop(data, FederatedModule(FedEM(), LocalSolver(lr=0.05), network)),
            "heads": PlainLoop(data, FederatedModule(FedEM(), LocalSolver(lr=0.05), network, trainable="head")),
            "heads on kept features": PlainLoop(kept, FederatedModule(FedEM(), LocalSolver(lr=0.05), Linear)),
        }
        return _row(loops)


def _row(loops: dict[str, PlainLoop]) -> dict[str, float]:
    """Seconds, ratios to the whole network, and megabytes sent to each client."""
    for loop in loops.values():
        loop.round()
    row = medians(3, **{name: (loop.round, 1) for name, loop in loops.items()})
    whole = row["whole network"]
    row |= {f"whole network / {name}": whole / seconds for name, seconds in row.items() if name != "whole network"}
    for name, loop in loops.items():
        sent = sum(leaf.nbytes for leaf in loop.federation.shared.models.parameters.values())
        row[f"{name}, MB down to each client"] = sent / 1e6
    return row


ROWS = (
    fedem_cnn, mobilenet, char_lstm, client_trainers, ranks, memory_cnn, small_clients, frozen_features,
)  # fmt: skip

if __name__ == "__main__":
    fit_as_rank(int(sys.argv[1]))
