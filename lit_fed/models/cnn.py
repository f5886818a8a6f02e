"""Convolutional networks for small images."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from torch import Tensor, nn

from lit_fed.models.base import Network, check_dropout, check_sizes, image_shape

__all__ = ["CNN2", "ConvolutionalNetwork", "FedEMCNN", "LeafCNN", "pooled_convolutions"]


class ConvolutionalNetwork(Network):
    """Convolutions, then dense layers.

    Attributes:
        features: the pooled convolutions.
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
        """The layers in order with their parameter names; empty if a subclass overrides `forward`."""
        if type(self).forward is not ConvolutionalNetwork.forward:
            return []
        parts = {"features": self.features, "classifier": self.classifier}
        return [(f"{part}.{name}", layer) for part, whole in parts.items() for name, layer in whole.named_children()]


class LeafCNN(ConvolutionalNetwork):
    """LEAF's network for handwritten characters: two 5×5 convolutions (32 and 64 channels), each pooled, then dense.

    Caldas et al. "LEAF: A Benchmark for Federated Settings". 2018. https://arxiv.org/abs/1812.01097; the FedEM paper
    describes it with a dense layer of 128 units and dropout.

    Args:
        input_shape: channels, height and width of one image, 4 pixels or more each way.
        num_outputs: K.
        hidden_size: units of the dense layer.
        dropout: share of the dense layer's units dropped in training, in [0, 1).
    """

    def __init__(
        self, input_shape: tuple[int, ...], num_outputs: int, hidden_size: int = 128, dropout: float = 0.5
    ) -> None:
        super().__init__(input_shape, num_outputs)
        check_sizes(hidden_size=hidden_size)
        check_dropout(dropout)
        self.features, num_features = pooled_convolutions("LeafCNN", input_shape, (32, 64), kernel_size=5, padding=2)
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(num_features, hidden_size), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(hidden_size, num_outputs),
        )  # fmt: skip


class FedEMCNN(ConvolutionalNetwork):
    """FedEM's network for handwritten characters: LEAF's convolutions without padding, then a wide dense layer.

    Marfoq et al. "Federated Multi-Task Learning under a Mixture of Distributions". 2021.
    https://arxiv.org/abs/2108.10252; this is the network of the official code, which has 2,278,334 parameters on 28×28
    pixels and 62 classes and no dropout. The paper's text describes `LeafCNN`.

    Args:
        input_shape: channels, height and width of one image, 16 pixels or more each way.
        num_outputs: K.
        hidden_size: units of the dense layer.
    """

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, hidden_size: int = 2048) -> None:
        super().__init__(input_shape, num_outputs)
        check_sizes(hidden_size=hidden_size)
        self.features, num_features = pooled_convolutions("FedEMCNN", input_shape, (32, 64), kernel_size=5)
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(num_features, hidden_size), nn.ReLU(),
            nn.Linear(hidden_size, num_outputs),
        )  # fmt: skip


class CNN2(ConvolutionalNetwork):
    """FedeRiCo's network for CIFAR-10: three 3×3 convolutions of 128 channels, each pooled, and one dense layer.

    Sui et al. "Find Your Friends: Personalized Federated Learning with the Right Collaborators". 2022.
    https://arxiv.org/abs/2210.06597; from Shen et al. "Federated Mutual Learning". 2020.
    https://arxiv.org/abs/2006.16765. Neither text speaks of padding, so there is none.

    Args:
        input_shape: channels, height and width of one image, 22 pixels or more each way.
        num_outputs: K.
    """

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__(input_shape, num_outputs)
        self.features, num_features = pooled_convolutions("CNN2", input_shape, (128, 128, 128), kernel_size=3)
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(num_features, num_outputs))


def pooled_convolutions(
    network: str, input_shape: tuple[int, ...], channels: Sequence[int], kernel_size: int, padding: int = 0
) -> tuple[nn.Sequential, int]:
    """Convolutions, each followed by 2×2 max pooling and ReLU.

    Pooling comes before ReLU: they commute with equal outputs and gradients, and ReLU has a quarter of the work.

    Args:
        network: name for the message.
        input_shape: channels, height and width of one image.
        channels: output channels of each convolution.
        kernel_size: height and width of the kernels in pixels.
        padding: zero pixels on each side.

    Returns:
        The layers, and the number of features of one image.

    Raises:
        ConfigError: if the samples are not images, or too small.
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
