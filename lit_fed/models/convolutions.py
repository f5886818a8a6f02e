"""The part that small networks for images have in common: convolutions, each pooled."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from torch import Tensor, nn

from lit_fed.models.base import Network, image_shape

__all__ = ["ConvolutionalNetwork", "pooled_convolutions"]


class ConvolutionalNetwork(Network):
    """Convolutions, then dense layers.

    Attributes:
        features: the convolutions, each pooled.
        classifier: the dense layers.
    """

    features: nn.Sequential
    classifier: nn.Sequential

    @abstractmethod
    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [B, K] of images [B, C, H, W]."""
        return self.classifier(self.features(x))  # type: ignore[no-any-return]

    def layers_in_order(self) -> list[tuple[str, nn.Module]]:
        """The layers one after another, with the names of their parameters; none of a class that does more to x."""
        if type(self).forward is not ConvolutionalNetwork.forward:
            return []
        parts = {"features": self.features, "classifier": self.classifier}
        return [(f"{part}.{name}", layer) for part, whole in parts.items() for name, layer in whole.named_children()]


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
