"""Affine networks: outputs and gradients are matrix products over all models at once, without autograd."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

__all__ = ["AffineMap", "affine_map"]

SHORT = 2048
"""Rows up to which a product with few columns is fastest with the samples last."""

FEW = 4
"""Columns from which a product with the samples last gains nothing from being filled up."""


@dataclass(frozen=True)
class AffineMap:
    """W·x + b of the flattened input, for M models; `parameters` have leaves [M, ...].

    Args:
        weight: name of the parameter W, [K, D].
        bias: name of the parameter b, [K].
    """

    weight: str
    bias: str

    def outputs(self, parameters: dict[str, Tensor], x: Tensor, per_model: bool) -> Tensor:
        """Outputs [B, M, K] for inputs [B, ...], or [M, B, ...] if `per_model`: one product where models share them.

        In memory the samples come last: what follows works on long rows instead of groups of M or K numbers.
        """
        weight, bias = parameters[self.weight], parameters[self.bias]
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

    def gradient(self, x: Tensor, residual: Tensor, per_model: bool) -> dict[str, Tensor]:
        """Gradients [M, K, D] and [M, K] from the gradient of the outputs [B, M, K]."""
        if per_model:
            weight = torch.bmm(residual.permute(1, 2, 0), x.flatten(2))
        else:
            columns = residual.flatten(1).T
            weight = (_filled(columns, FEW) @ x.flatten(1))[: len(columns)].view(*residual.shape[1:], -1)
        return {self.weight: weight, self.bias: residual.sum(0)}

    def squared_norms(self, x: Tensor, residual: Tensor, names: Collection[str]) -> Tensor:
        """Squared norms [B, M] float64 of each sample's gradient, of the parameters of these names: |r|²(|x|² + 1)."""
        squares = x.new_zeros(len(x), dtype=torch.float64)
        if self.weight in names:
            squares = squares + torch.linalg.vector_norm(x.flatten(1), dim=1, dtype=torch.float64).square()
        if self.bias in names:
            squares = squares + 1
        of_residual: Tensor = torch.linalg.vector_norm(residual, dim=2, dtype=torch.float64)
        return of_residual.square() * squares.unsqueeze(1)


def affine_map(network: nn.Module) -> AffineMap | None:
    """The map that a network says it is (`affine` beside `forward`), or is: `nn.Linear` alone or behind `nn.Flatten`.

    PyTorch's maps the last axis of its inputs: where that is not all of a sample, the labels have positions.

    Returns:
        The map, None of any other network.
    """
    if any(one._forward_hooks or one._forward_pre_hooks or "forward" in vars(one) for one in network.modules()):
        return None
    said = next(vars(kind) for kind in type(network).__mro__ if "forward" in vars(kind))
    if isinstance(own := said.get("affine"), AffineMap):  # BatchNorm has a switch of this name
        return own
    named = list(network.named_children()) if type(network) is nn.Sequential else [("", network)]
    if not named or any(not _flattens(layer) for _, layer in named[:-1]):
        return None
    name, last = named[-1]
    if type(last) is not nn.Linear or last.bias is None:
        return None
    return AffineMap(*(f"{name}.{leaf}" if name else leaf for leaf in ("weight", "bias")))


def _flattens(layer: nn.Module) -> bool:
    return type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)


def _filled(columns: Tensor, below: int | None = None) -> Tensor:
    """Columns [k, D], and zeros up to a multiple of four; one is left alone, and so are `below` or more.

    Libraries multiply columns by four: on a CPU a product of three takes up to three times as long as one of four.
    """
    count = len(columns)
    missing = -count % 4 if columns.device.type == "cpu" and 1 < count < (below or count + 1) else 0
    return pad(columns, (0, 0, 0, missing)) if missing else columns
