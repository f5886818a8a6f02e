"""A small U-Net for segmentation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lit_fed.errors import ConfigError
from lit_fed.models.base import Network, check_sizes, image_shape

__all__ = ["UNet"]


class UNet(Network):
    """Encoder and decoder with skip connections, from pictures [B, C, H, W] to outputs [B, K, H, W].

    Ronneberger, Fischer, Brox. "U-Net: Convolutional Networks for Biomedical Image Segmentation". MICCAI 2015.
    https://arxiv.org/abs/1505.04597. Ours: padded convolutions, so that outputs are as large as pictures, and fewer
    channels.

    Args:
        input_shape: channels, height and width of one picture; both sizes divisible by 2 at every level but the last.
        num_outputs: K.
        channels: channels of each level, from the full size down.
    """

    def __init__(
        self, input_shape: tuple[int, ...], num_outputs: int, channels: tuple[int, ...] | list[int] = (16, 32, 64)
    ) -> None:
        super().__init__()
        if not channels:
            raise ConfigError("--model.network.channels is empty; give the channels of each level, such as [16, 32]")
        check_sizes(channels=min(channels))
        before, height, width = image_shape("UNet", input_shape)
        factor = 2 ** (len(channels) - 1)
        if height % factor or width % factor:
            raise ConfigError(
                f"UNet halves pictures {len(channels) - 1} times, and {height}×{width} cannot be divided by {factor}; "
                "scale or pad them, or give fewer --model.network.channels"
            )
        self.down, self.up, self.join = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for width_of_level in channels:
            self.down.append(_convolutions(before, width_of_level))
            before = width_of_level
        for width_of_level in reversed(channels[:-1]):
            self.up.append(nn.ConvTranspose2d(before, width_of_level, 2, stride=2))
            self.join.append(_convolutions(2 * width_of_level, width_of_level))
            before = width_of_level
        self.head = nn.Conv2d(before, num_outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        levels: list[Tensor] = []
        for layers in self.down:
            x = layers(x if not levels else nn.functional.max_pool2d(x, 2))
            levels.append(x)
        for up, join, skip in zip(self.up, self.join, reversed(levels[:-1]), strict=True):
            x = join(torch.cat([skip, up(x)], dim=1))
        out: Tensor = self.head(x)
        return out


def _convolutions(before: int, channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()
    )
