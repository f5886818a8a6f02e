"""The row of bench.py about heads over a frozen body: what a round costs beside one of the whole network."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from bench_networks import Noise
from measuring import PlainLoop, medians
from torch import Tensor, nn

from lit_fed import FederatedModule
from lit_fed.algorithms import FedAvg, FedEM
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import Population, Split
from lit_fed.data import CIFAR10, ClientDataSet
from lit_fed.data.data_sets.base import make_split
from lit_fed.data.module import FederatedDataModule
from lit_fed.data.partitions import Dirichlet
from lit_fed.models import LeafCNN, Linear

__all__ = ["FROZEN_ROWS"]

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
    """What a network's body makes of the samples of clients, computed once.

    Args:
        clients: the clients.
        body: gives the features [n, d] of samples [n, ...].
    """

    clients: Population = field(repr=False)
    body: nn.Module = field(repr=False)
    num_classes: ClassVar[int | None] = 10

    def load(self) -> tuple[Population, None]:
        """The clients, by what they hold."""
        train, test = (self._features(split) for split in (self.clients.train, self.clients.test))
        return self.clients._replace(train=train, val=test, test=test), None

    def _features(self, split: Split) -> Split:
        with torch.no_grad():
            z: Tensor = torch.cat([self.body(x) for x in split.x.split(256)] or [split.x.flatten(1)])
        return make_split(z.numpy(), split.y.numpy(), split.sizes.numpy())


def pictures() -> FederatedDataModule:
    """Clients with images of CIFAR-10 from the folder that `CIFAR_ROOT` names, without it with random ones."""
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
    """Seconds, how many times less than the whole network, and megabytes that eight clients are sent."""
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
    print({name: float(np.round(value, 4)) for name, value in frozen_features().items()})
