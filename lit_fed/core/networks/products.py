"""Affine networks as one product with a gradient in closed form; narrow convolutions of several models in one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everybody knows
from torch.nn.functional import pad

from lit_fed.core.types import Leaves

__all__ = [
    "AffineMap", "LayerByLayer", "Layers", "affine_map", "full_precision", "grouped_layers", "grouped_outputs",
]  # fmt: skip

# ---------------------------------------------------------------------- affine networks, without autograd
SHORT = 2048
"""Rows up to which a product with few columns is fastest with samples last."""

FEW = 4
"""Columns from which padding a product with samples last gains nothing."""


@dataclass(frozen=True)
class AffineMap:
    """W·x + b for the flattened input x and M models; `parameters` have leaves [M, ...].

    Args:
        weight: name of the parameter W, [K, D].
        bias: name of the parameter b, [K].
    """

    weight: str
    bias: str

    def outputs(self, parameters: Leaves, x: Tensor, per_model: bool) -> Tensor:
        """Outputs [B, M, K] for inputs [B, ...], or [M, B, ...] if `per_model`: one product if models share inputs.

        Samples come last in memory, so that later operations work on long rows.
        """
        weight, bias = parameters[self.weight], parameters[self.bias]
        if per_model:
            outputs = torch.bmm(weight, x.flatten(2).transpose(1, 2))
        else:
            rows, columns = x.flatten(1), weight.flatten(0, 1)
            # measured on a CPU: many rows are faster in the other orientation, transposed afterwards
            if len(rows) <= SHORT:
                product = (_filled(columns, FEW) @ rows.T)[: len(columns)]
            else:
                product = (rows @ _filled(columns).T).T[: len(columns)].contiguous()
            outputs = product.view(*bias.shape, -1)
        return (outputs + bias.unsqueeze(2)).permute(2, 0, 1)

    def gradient(self, x: Tensor, residual: Tensor, per_model: bool) -> Leaves:
        """Gradients [M, K, D] and [M, K] from the gradient of the outputs [B, M, K]."""
        if per_model:
            weight = torch.bmm(residual.permute(1, 2, 0), x.flatten(2))
        else:
            columns = residual.flatten(1).T
            weight = (_filled(columns, FEW) @ x.flatten(1))[: len(columns)].view(*residual.shape[1:], -1)
        return {self.weight: weight, self.bias: residual.sum(0)}

    def squared_norms(self, x: Tensor, residual: Tensor, names: Collection[str]) -> Tensor:
        """Squared norms [B, M] float64 of each sample's gradient of the named parameters: |r|²(|x|² + 1)."""
        squares = x.new_zeros(len(x), dtype=torch.float64)
        if self.weight in names:
            squares = squares + torch.linalg.vector_norm(x.flatten(1), dim=1, dtype=torch.float64).square()
        if self.bias in names:
            squares = squares + 1
        of_residual: Tensor = torch.linalg.vector_norm(residual, dim=2, dtype=torch.float64)
        return of_residual.square() * squares.unsqueeze(1)


def affine_map(network: nn.Module) -> AffineMap | None:
    """The affine map declared by a network (`affine` beside `forward`), or of `nn.Linear`, alone or after `nn.Flatten`.

    `nn.Linear` maps the last axis of its inputs; further axes of a sample are positions.

    Returns:
        The map; None for other networks.
    """
    if any(one._forward_hooks or one._forward_pre_hooks or "forward" in vars(one) for one in network.modules()):
        return None
    said = next(vars(kind) for kind in type(network).__mro__ if "forward" in vars(kind))
    if isinstance(own := said.get("affine"), AffineMap):  # BatchNorm has a bool of this name
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
    """Columns [k, D], on a CPU padded with zeros to a multiple of four if k > 1 and, if given, k < `below`.

    Libraries process columns in fours: on a CPU a product of three takes up to three times as long as one of four.
    """
    count = len(columns)
    missing = -count % 4 if columns.device.type == "cpu" and 1 < count < (below or count + 1) else 0
    return pad(columns, (0, 0, 0, missing)) if missing else columns


# ---------------------------------------------------------------------- narrow convolutions as groups
WIDEST = 16
"""Channels of a convolution up to which a joint pass is faster than separate ones."""

KINDS = (nn.Conv2d, nn.MaxPool2d, nn.ReLU, nn.Flatten, nn.Linear)

Layers = Sequence[tuple[str, nn.Module]]
"""Layers in order, with the prefix of their parameters' names."""


@runtime_checkable
class LayerByLayer(Protocol):
    """A network that is a chain of layers."""

    def layers_in_order(self) -> Layers:
        """The layers; empty if there are other operations."""


def grouped_layers(network: nn.Module) -> Layers:
    """The layers of a network with narrow convolutions, for a joint pass; empty for other networks."""
    layers = network.layers_in_order() if isinstance(network, LayerByLayer) else ()
    hooked = any(one._forward_hooks or one._forward_pre_hooks for one in network.modules())
    plain = not hooked and all(type(layer) in KINDS for _, layer in layers)
    convolutions = [layer for _, layer in layers if isinstance(layer, nn.Conv2d)]
    narrow = all(one.out_channels <= WIDEST and one.groups == 1 and one.bias is not None for one in convolutions)
    begins = bool(layers) and isinstance(layers[0][1], nn.Conv2d)
    return layers if begins and plain and narrow else ()


def grouped_outputs(layers: Layers, parameters: Leaves, x: Tensor) -> Tensor:
    """Outputs of M models for the same samples.

    A convolution with few channels leaves most vector registers empty; M models together fill them. A step
    of FedEM with three LeNet5 and 120 images of 3×32×32 takes 18 instead of 29 ms in float32 (one core of an AMD EPYC
    with AVX-512); with 32 and 64 channels it would take longer.

    Args:
        layers: the result of `grouped_layers`.
        parameters: leaves [M, ...].
        x: images [B, C, H, W], the same for all models; features [B, M, D] if the first layer is dense.

    Returns:
        [B, M, K].
    """
    num_models = len(next(iter(parameters.values())))
    hidden = x.transpose(0, 1) if isinstance(layers[0][1], nn.Linear) else x
    groups = 1  # the first convolution reads shared inputs
    for name, layer in layers:
        if isinstance(layer, nn.Conv2d):
            weight = parameters[f"{name}.weight"].flatten(0, 1).contiguous(memory_format=torch.channels_last)
            bias = parameters[f"{name}.bias"].flatten()
            hidden = F.conv2d(hidden, weight, bias, layer.stride, layer.padding, layer.dilation, groups)
            groups = num_models
        elif isinstance(layer, nn.Flatten):  # [B, M·C, H, W] to [M, B, C·H·W]
            hidden = hidden.unflatten(1, (num_models, -1)).flatten(2).transpose(0, 1)
        elif isinstance(layer, nn.Linear):
            weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
            hidden = torch.baddbmm(bias.unsqueeze(1), hidden, weight.transpose(1, 2))
        else:
            hidden = layer(hidden)
    return hidden.transpose(0, 1)


# ---------------------------------------------------------------------- precision
def full_precision(like: Tensor) -> torch.autocast:
    """Context without autocast: solves and differences of nearly equal numbers would lose all digits in bfloat16.

    Args:
        like: any tensor on the device of the operands.
    """
    return torch.autocast(like.device.type, enabled=False)
