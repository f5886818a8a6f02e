"""Samples that are read one after another: pictures of one shape, and a word now and then of how far it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from lit_fed.data.data_sets.base import require
from lit_fed.errors import ConfigError, notice

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["SECONDS_BETWEEN_WORDS", "picture_array", "stacked_samples", "with_words"]

SECONDS_BETWEEN_WORDS = 10.0
"""How often a long reading says how far it is."""

GREY, COLOUR = ("1", "L", "LA"), ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr", "HSV", "LAB", "RGBX", "RGBa", "La")
"""Modes of Pillow with 8 bits per channel that become one channel, or three."""

Item = TypeVar("Item")


def with_words(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """The items, with a line on how many were read whenever a while has passed; only the first process speaks.

    Args:
        items: what is read.
        total: how many there are.
        what: where they come from.
    """
    last = time.monotonic()
    for number, item in enumerate(items):
        yield item
        if time.monotonic() - last > SECONDS_BETWEEN_WORDS:
            last = time.monotonic()
            if _is_first_process():
                notice(f"{what}: {number + 1:,} of {total:,} samples are read")


def _is_first_process() -> bool:
    """Whether no other process says the same: Lightning counts ranks, and where nobody loaded it there is one."""
    loaded = sys.modules.get("lightning.pytorch.utilities.rank_zero")
    return loaded is None or getattr(loaded.rank_zero_only, "rank", 0) == 0


def picture_array(image: Image, size: tuple[int, int] | None) -> np.ndarray:
    """The pixels of a picture, [1, height, width] of a grey one and [3, height, width] of any other, uint8.

    Args:
        image: a picture of Pillow.
        size: height and width that it is scaled to (bilinear); None: as it is.

    Raises:
        ConfigError: if its pixels have more than 8 bits per channel.
    """
    require(
        image.mode in GREY + COLOUR,
        f"is a picture of mode {image.mode}, whose pixels have no 8 bits per channel; convert it to L or RGB",
    )
    image = image.convert("L" if image.mode in GREY else "RGB")
    if size is not None:
        image = image.resize(size[::-1], resample=2)  # bilinear, in all versions of Pillow
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)


def stacked_samples(arrays: list[np.ndarray], places: list[str], *, fix: str) -> np.ndarray:
    """Samples of one shape as one array [n, ...]; where only some pictures are grey, these get three equal channels.

    Args:
        arrays: the samples, at least one.
        places: where each stands, for the message.
        fix: what to do about samples of several shapes.

    Raises:
        ConfigError: naming the first sample that has another shape or type than those before.
    """
    pictures = all(one.dtype == np.uint8 and one.ndim == 3 for one in arrays)
    if pictures and {len(one) for one in arrays} == {1, 3}:
        arrays = [np.broadcast_to(one, (3, *one.shape[1:])) for one in arrays]
    first = arrays[0]
    for array, place in zip(arrays, places, strict=True):
        if (array.shape, array.dtype) != (first.shape, first.dtype):
            raise ConfigError(
                f"{place} is {array.dtype} of shape {list(array.shape)}, and the samples before it are {first.dtype} "
                f"of shape {list(first.shape)}; {fix}"
            )
    return np.stack(arrays)
