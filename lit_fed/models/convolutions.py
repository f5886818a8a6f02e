"""The part that small networks for images have in common: convolutions, each pooled."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from lit_fed.models.base import image_shape

__all__ = ["pooled_convolutions"]


def pooled_convolutions(
    network: str, input_shape: tuple[int, ...], channels: Sequence[int], kernel_size: int, padding: int = 0
) -> tuple[nn.Sequential, int]:
    """Convolutions with ReLU and 2×2 max pooling after each.

    Pooling comes before ReLU: they commute, outputs and gradients are the same, and ReLU has a quarter of the work.

    Args:
        network: name of the network, for the message.
        input_shape: channels, height and width of one image.
        channels: output channels of each convolution.
        kernel_size: height and width of the kernels in pixels.
        padding: pixels of zeros on each side.

    Returns:
        The layers, and the number of features that they give for one image.

    Raises:
        ConfigError: if the samples are no images, or so small that nothing is left of them.
    """
    border, smallest = kernel_size - 1 - 2 * padding, 1
    for _ in channels:
        smallest = 2 * smallest + border
    before, height, width = image_shape(network, input_shape, smallest)
    layers: list[nn.Module] = []
    for after in channels:
        layers += [nn.Conv2d(before, after, kernel_size, padding=padding), nn.MaxPool2d(2), nn.ReLU()]
        before, height, width = after, (height - border) // 2, (width - border) // 2
    return nn.Sequential(*layers), before * height * width
