"""Linear model."""

from __future__ import annotations

import math

from torch import Tensor, nn

from lit_fed.core.networks.products import AffineMap
from lit_fed.models.base import Network

__all__ = ["Linear"]


class Linear(Network):
    """Affine map of the flattened input: logistic regression, softmax regression or least squares.

    Args:
        input_shape: shape of one sample.
        num_outputs: K.
    """

    affine = AffineMap("linear.weight", "linear.bias")

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(math.prod(input_shape), num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [B, K] of inputs [B, ...]."""
        return self.linear(x.flatten(1))  # type: ignore[no-any-return]
