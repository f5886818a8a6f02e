"""Multi-layer perceptron."""

from __future__ import annotations

import math
from itertools import pairwise

from torch import Tensor, nn

from lit_fed.errors import ConfigError
from lit_fed.models.base import Network

__all__ = ["MLP"]


class MLP(Network):
    """Fully connected layers with ReLU between them.

    Args:
        input_shape: shape of one sample.
        num_outputs: K.
        hidden_sizes: width of each hidden layer.
    """

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, hidden_sizes: tuple[int, ...] = (200,)) -> None:
        super().__init__()
        if not all(size >= 1 for size in hidden_sizes):
            raise ConfigError(f"--model.network.hidden_sizes is {list(hidden_sizes)}; give whole numbers >= 1")
        widths = [math.prod(input_shape), *hidden_sizes]
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], num_outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [B, K] of inputs [B, ...]."""
        return self.layers(x)  # type: ignore[no-any-return]
