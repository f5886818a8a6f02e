"""Linear model, with its gradient in closed form."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from lit_fed.models.base import Network

__all__ = ["Linear"]

SHORT = 2048
"""Rows up to which a product with few columns is fastest with the samples last."""

FEW = 4
"""Columns from which a product with the samples last gains nothing from being filled up."""


class Linear(Network):
    """Affine map of the flattened input: logistic regression, softmax regression or least squares.

    Args:
        input_shape: shape of one sample.
        num_outputs: K.
    """

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(math.prod(input_shape), num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [B, K] of inputs [B, ...]."""
        return self.linear(x.flatten(1))  # type: ignore[no-any-return]

    def stacked_outputs(self, parameters: dict[str, Tensor], x: Tensor, per_model: bool) -> Tensor:
        """Outputs [B, M, K] of M linear models: one matrix product where they share the inputs.

        In memory the samples come last: what follows works on long rows instead of groups of M or K numbers.
        """
        weight, bias = parameters["linear.weight"], parameters["linear.bias"]
        if per_model:
            outputs = torch.bmm(weight, x.flatten(2).transpose(1, 2))
        else:
            rows, columns = x.flatten(1), weight.flatten(0, 1)
            # measured on a CPU: many rows are multiplied faster in the other orientation and turned afterwards
            if len(rows) <= SHORT:
                product = (_filled(columns, FEW) @ rows.T)[: len(columns)]
            else:
                product = (rows @ _filled(columns).T).T[: len(columns)].contiguous()
            outputs = product.view(*bias.shape, -1)
        return (outputs + bias.unsqueeze(2)).permute(2, 0, 1)

    def stacked_gradient(self, x: Tensor, residual: Tensor, per_model: bool) -> dict[str, Tensor]:
        """Gradients [M, K, D] and [M, K] from the gradient of the outputs [B, M, K]."""
        if per_model:
            weight = torch.bmm(residual.permute(1, 2, 0), x.flatten(2))
        else:
            columns = residual.flatten(1).T
            weight = (_filled(columns, FEW) @ x.flatten(1))[: len(columns)].view(*residual.shape[1:], -1)
        return {"linear.weight": weight, "linear.bias": residual.sum(0)}

    def squared_norms(self, x: Tensor, residual: Tensor, names: Collection[str]) -> Tensor:
        """Squared norms [B, M] float64 of each sample's gradient, of the parameters of these names: |r|²(|x|² + 1)."""
        squares = x.new_zeros(len(x), dtype=torch.float64)
        if "linear.weight" in names:
            squares = squares + torch.linalg.vector_norm(x.flatten(1), dim=1, dtype=torch.float64).square()
        if "linear.bias" in names:
            squares = squares + 1
        of_residual: Tensor = torch.linalg.vector_norm(residual, dim=2, dtype=torch.float64)
        return of_residual.square() * squares.unsqueeze(1)


def _filled(columns: Tensor, below: int | None = None) -> Tensor:
    """Columns [k, D], and zeros up to a multiple of four; one is left alone, and so are `below` or more.

    Libraries multiply columns by four: on a CPU a product of three takes up to three times as long as one of four.
    """
    count = len(columns)
    missing = -count % 4 if columns.device.type == "cpu" and 1 < count < (below or count + 1) else 0
    return pad(columns, (0, 0, 0, missing)) if missing else columns
