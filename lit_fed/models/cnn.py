"""Convolutional networks for small images."""

from __future__ import annotations

from torch import Tensor, nn

from lit_fed.core.errors import ConfigError
from lit_fed.models.base import Network

__all__ = ["LeafCNN"]


class LeafCNN(Network):
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
        super().__init__()
        if len(input_shape) != 3 or min(input_shape[1:]) < 4:
            raise ConfigError(
                f"LeafCNN reads images [channels, height >= 4, width >= 4], the samples are {list(input_shape)}; "
                "choose another --model.network, such as MLP"
            )
        if not 0 <= dropout < 1:
            raise ConfigError(f"--model.network.dropout is {dropout}; give a number in [0, 1)")
        channels, height, width = input_shape
        self.features = nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64 * (height // 4) * (width // 4), hidden_size), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(hidden_size, num_outputs),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [B, K] of images [B, C, H, W]."""
        return self.classifier(self.features(x))  # type: ignore[no-any-return]
