"""LeNet-5."""

from __future__ import annotations

from torch import nn

from lit_fed.models.cnn import ConvolutionalNetwork, pooled_convolutions

__all__ = ["LeNet5"]


class LeNet5(ConvolutionalNetwork):
    """LeNet-5 with ReLU and max pooling: two 5×5 convolutions (6 and 16 channels), dense layers of 120 and 84 units.

    LeCun et al. "Gradient-Based Learning Applied to Document Recognition". Proceedings of the IEEE 1998, whose
    activations are tanh and whose pooling is a trained average; UCFL trains it on EMNIST and CIFAR-10: Mestoukirdi et
    al. "User-Centric Federated Learning". 2021. https://arxiv.org/abs/2110.09869. The convolutions are not padded, so
    28×28 pixels leave 4×4 and 32×32 pixels 5×5 in the last map.

    Args:
        input_shape: channels, height and width of one image, 16 pixels or more each way.
        num_outputs: K.
    """

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__(input_shape, num_outputs)
        self.features, num_features = pooled_convolutions("LeNet5", input_shape, (6, 16), kernel_size=5)
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(num_features, 120), nn.ReLU(),
            nn.Linear(120, 84), nn.ReLU(),
            nn.Linear(84, num_outputs),
        )  # fmt: skip
