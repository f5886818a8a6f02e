"""MobileNetV2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from lit_fed.models.base import Network, check_dropout, image_shape
from lit_fed.models.pretrained import load_weights
from lit_fed.system.packages import imported_later

if TYPE_CHECKING:
    from torchvision import models
else:
    models = imported_later("torchvision.models")

__all__ = ["MobileNetV2"]


class MobileNetV2(Network):
    """torchvision's MobileNetV2, with a classifier for K classes.

    Sandler et al. "MobileNetV2: Inverted Residuals and Linear Bottlenecks". 2018. https://arxiv.org/abs/1801.04381.
    FedEM trains it on CIFAR-10 and CIFAR-100 from ImageNet weights, on images of 32×32 pixels as they are.

    Args:
        input_shape: 3 channels, height and width of one image.
        num_outputs: K.
        weights: weights to start from: a name of torchvision, such as IMAGENET1K_V1, or the path (.pt, .pth) of a
            state dict; null for random ones. A classifier for another number of classes stays random.
        dropout: share of the classifier's inputs dropped in training, in [0, 1).
    """

    def __init__(
        self, input_shape: tuple[int, ...], num_outputs: int, weights: str | None = None, dropout: float = 0.2
    ) -> None:
        super().__init__()
        image_shape("MobileNetV2", input_shape, channels=3)
        check_dropout(dropout)
        self.layers = models.mobilenet_v2(num_classes=num_outputs, dropout=dropout)
        # FedEM's code puts a new layer there: it starts as every nn.Linear does, not as torchvision's classifier
        self.layers.classifier[1].reset_parameters()
        if weights is not None:
            load_weights(self.layers, weights, models.MobileNet_V2_Weights, "classifier.")

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [B, K] of images [B, 3, H, W]."""
        return self.layers(x)  # type: ignore[no-any-return]
