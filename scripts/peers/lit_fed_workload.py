"""The workloads as own data and own networks of lit_fed's command line."""

from dataclasses import dataclass

import numpy as np
from torch import nn

from lit_fed.data import PooledDataSet, Samples


@dataclass(frozen=True)
class Held(PooledDataSet):
    """The samples of a file, each its client's.

    Args:
        file: with x, y and the clients' sizes.
    """

    file: str

    def load(self) -> Samples:
        """Client after client."""
        with np.load(self.file) as data:
            return Samples(data["x"], data["y"], np.repeat(np.arange(len(data["sizes"])), data["sizes"]))


def logistic(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """Logistic regression."""
    return nn.Linear(input_shape[0], num_outputs)


def cnn(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """The network for pictures."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(512, 78), nn.ReLU(), nn.Linear(78, num_outputs),
    )  # fmt: skip
