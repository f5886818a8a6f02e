"""Convolutional networks for small images."""

from __future__ import annotations

from torch import nn

from lit_fed.models.base import check_dropout, check_sizes
from lit_fed.models.convolutions import ConvolutionalNetwork, pooled_convolutions

__all__ = ["CNN2", "FedEMCNN", "LeafCNN"]


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
