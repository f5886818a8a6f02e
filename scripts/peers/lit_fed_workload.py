"""The workloads as own data and own networks of lit_fed's command line."""

from dataclasses import dataclass

import numpy as np
from torch import nn
from torch_workload import layers

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
    return layers("logistic", input_shape[0], num_outputs)[0]


def cnn(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """The network for pictures."""
    return nn.Sequential(*layers("cnn", input_shape[0], num_outputs))
