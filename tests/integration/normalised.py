"""A small network with BatchNorm, named by its path on the command line."""

import math

from torch import nn

from lit_fed.models import Network


class NormalisedMLP(Network):
    """One hidden layer of 8 normalised units."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(math.prod(input_shape), 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, num_outputs)
        )

    def forward(self, x):
        return self.layers(x)
