"""Residual networks of 18 and 34 layers.

FedEM compares both on CIFAR-10 (Appendix J.5); FedeRiCo trains ResNet-18 on CIFAR-100.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from lit_fed.models.base import Network, image_shape
from lit_fed.models.pretrained import load_weights
from lit_fed.system.packages import imported_later

if TYPE_CHECKING:
    from torchvision import models
else:
    models = imported_later("torchvision.models")

__all__ = ["ResNet18", "ResNet34"]


class ResNet18(Network):
    """torchvision's ResNet-18, with a classifier for K classes.

    He et al. "Deep Residual Learning for Image Recognition". 2015. https://arxiv.org/abs/1512.03385.

    Args:
        input_shape: 3 channels, height and width of one image.
        num_outputs: K.
        weights: weights to start from: a name of torchvision, such as IMAGENET1K_V1, or the path (.pt, .pth) of a
            state dict; null for random ones. A classifier for another number of classes stays random.
    """

    depth: ClassVar[int] = 18

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, weights: str | None = None) -> None:
        super().__init__()
        name = f"ResNet{self.depth}"
        image_shape(name, input_shape, channels=3)
        self.layers = getattr(models, name.lower())(num_classes=num_outputs)
        if weights is not None:
            load_weights(self.layers, weights, getattr(models, f"{name}_Weights"), "fc.")

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [B, K] of images [B, 3, H, W]."""
        return self.layers(x)  # type: ignore[no-any-return]


class ResNet34(ResNet18):
    """torchvision's ResNet-34, with a classifier for K classes, by the same options as ResNet-18."""

    depth = 34
