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
from typing import ClassVar, Literal

import numpy as np
import torch
from measuring import PlainLoop, RoundClock, fit, in_process, medians, peak_gigabytes, with_ratios
from textbook import Textbook
from torch import Tensor, nn

from lit_fed import FederatedModule
from lit_fed.algorithms import FedAvg, FedEM
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import Population, Split
from lit_fed.data import CIFAR10, ClientDataSet
from lit_fed.data.data_sets.base import empty_split, make_split
from lit_fed.data.module import FederatedDataModule
from lit_fed.data.partitions import Dirichlet
from lit_fed.models import MLP, CharLSTM, FedEMCNN, LeafCNN, LeNet5, Linear, MobileNetV2, Network


@dataclass(frozen=True)
class Noise(ClientDataSet):
    """Clients with random images or texts; a round costs the same for any content.

    Args:
        shape: shape of a sample; one number means texts of this length.
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
    """A network on random data, for lit_fed and the textbook."""

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
    """Medians after a warm-up round, and ratios to the textbook."""
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
"""Keep freed blocks instead of clearing their pages again."""


def fedem_cnn_child(contiguous: bool = True) -> None:
    """Measure and print the row, optionally with the contiguous format."""
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


def memory_cnn() -> dict[str, float]:
    """Peak gigabytes of two rounds: 100 clients × 64 images, FedEMCNN, M = 3, bf16-mixed, in a process of its own."""
    return in_process("bench_networks", "memory_cnn_child()")


def memory_cnn_child() -> None:
    """Train two rounds with an evaluation and print the peak."""
    data = FederatedDataModule(Noise(num_clients=100, samples=64), batch_size=128)
    module = FederatedModule(FedEM(), LocalSolver(lr=0.1), FedEMCNN)
    with tempfile.TemporaryDirectory() as folder:
        fit(data, module, max_epochs=2, precision="bf16-mixed", default_root_dir=folder, limit_val_batches=0)
    print(json.dumps({"data GB": data.seen.train.x.nbytes / 1e9, "peak GB": peak_gigabytes()}))


NETWORK_ROWS = {one.__name__: one for one in (fedem_cnn, mobilenet, char_lstm, client_trainers, ranks, memory_cnn)}


# ---------------------------------------------------------------------- heads over a frozen body
IMAGES = 2048
BODY_ROUNDS = 2


class TrainedBody(LeafCNN):
    """LEAF's network from the weights of a file.

    Args:
        input_shape: as of `LeafCNN`.
        num_outputs: K.
        weights: a state dict.
    """

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
    """Features of clients' samples, computed once by a network's body.

    Args:
        clients: the clients.
        body: gives the features [n, d] of samples [n, ...].
    """

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
    `heads on kept features` a linear model on what the body made of the samples, once.
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


FROZEN_ROWS = {"frozen_features": frozen_features}

if __name__ == "__main__":
    fit_as_rank(int(sys.argv[1]))
