"""What a data set hands over: samples still to be divided among clients, or clients with splits of their own.

Subclasses are frozen dataclasses whose fields are their configuration; the bases are plain classes. Annotations are not
postponed here: the command line would look their names up in the module of each subclass, and check no type where one
is missing.
"""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
import torch

from lit_fed.core.types import Population, Split
from lit_fed.errors import ConfigError, notice

if TYPE_CHECKING:
    from PIL.Image import Image


from lit_fed.core.blocks import whole_part
from lit_fed.core.seeds import generator

__all__ = [
    "MOST_CLASSES",
    "SECONDS_BETWEEN_WORDS",
    "ClientDataSet",
    "DataSet",
    "Encode",
    "Labels",
    "Names",
    "Normalisation",
    "PooledDataSet",
    "Samples",
    "check_subsample",
    "draw_subsample",
    "empty_split",
    "input_array",
    "label_array",
    "make_split",
    "names_of",
    "picture_array",
    "require",
    "stacked_samples",
    "with_words",
]


Encode = Callable[[Population, Population | None], tuple[Population, Population | None]]
"""The seen and the unseen clients with other inputs, which may depend on the training samples of the seen."""


MOST_CLASSES = 20
"""Whole numbers as labels: of more than so many different ones they may well be quantities."""

Labels = Literal["auto", "multilabel", "regression"]
"""What labels are: what their type and shape say, several of a sample, or quantities."""

Names = tuple[str, ...] | str
"""Some names, or as one text: a single name, or several divided by commas."""


class Samples(NamedTuple):
    """All samples of a pooled data set, in no particular order."""

    x: np.ndarray  # [n, ...]; pixels as uint8 are scaled to 0..1, and then normalised by the data set's constants
    y: np.ndarray  # [n] or [n, L]
    owner: np.ndarray | None = None  # [n] int, the natural client of each sample
    names: list[str] | None = None  # names of the natural clients, indexed by `owner`
    class_names: tuple[str, ...] | None = None  # of the classes 0 … C − 1, where the data name them
    split: np.ndarray | None = None  # [n] 0 for training, 1 validation, 2 test, where the data say so
    unseen: tuple[str, ...] = ()  # names of the natural clients that take no part in the training
    encode: Encode | None = None  # makes inputs of `x`, once it is known which samples are for training
    stored_type: str | None = None  # NumPy's name of the type in which inputs were stored; None: that of `x`


class Normalisation(NamedTuple):
    """Constants that shift and scale each channel of inputs in 0..1: (x - mean) / std."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Normalise inputs, in `x` itself if that is a float32 array that can be written to.

        Args:
            x: inputs [n, channels, ...] in 0..1.

        Returns:
            Array of the same shape, float32; the same object where `x` was overwritten.

        Raises:
            ConfigError: `x` has another number of channels than there are constants.
        """
        channels = x.shape[1] if x.ndim > 1 else None
        require(
            channels == len(self.mean) == len(self.std),
            f"inputs of shape {list(x.shape)} have no {len(self.mean)} channels on axis 1 for the constants "
            f"mean = {self.mean}, std = {self.std}; give one of each per channel",
        )
        mean, std = (np.array(one, dtype=np.float32).reshape(-1, *[1] * (x.ndim - 2)) for one in self)
        # a second copy of a whole data set of pictures would be the largest array of a run
        out = x if x.dtype == np.float32 and x.flags.writeable else np.empty(x.shape, dtype=np.float32)
        np.subtract(x, mean, out=out, dtype=np.float32)
        return np.divide(out, std, out=out)


class DataSet(ABC):
    """Base of everything `--data.dataset` accepts.

    Attributes:
        num_classes: number of classes where the data set knows it; None: one more than the largest training label.
        labels: what labels are. `auto`: whole numbers are classes, with an axis [n, L] those of the L positions of a
            sequence, and fractions are quantities; `multilabel`: L labels of the sample, each 0 or 1; `regression`:
            quantities, whole numbers too.
        divided_by: what the clients have of their own: samples, or features of samples that all of them have.
        natural: the data set itself says who the clients are, so a partition and a number of clients are refused.
        is_remote: the samples stay on other machines, and what is known of them here are their numbers.
        normalisation: constants by which the data set has normalised its inputs, kept in checkpoints so that unseen
            clients can be treated alike; None: there are none, or they are learnt from the samples and stand in
            `Population`.
    """

    num_classes: ClassVar[int | None] = None
    labels: ClassVar[Labels] = "auto"
    divided_by: ClassVar[Literal["samples", "features"]] = "samples"
    natural: ClassVar[bool] = False
    is_remote: ClassVar[bool] = False
    normalisation: ClassVar[Normalisation | None] = None

    def prepare(self) -> None:  # noqa: B027 - most data sets have nothing to fetch
        """Fetch what `load` reads, once on each node before its ranks load; `load` has to do without as well."""

    @abstractmethod
    def load(self) -> Samples | tuple[Population, Population | None]:
        """Read or generate the data."""


class PooledDataSet(DataSet):
    """One pool of samples that a partition divides among clients."""

    @abstractmethod
    def load(self) -> Samples:
        """All samples: x [n, ...], y [n] or [n, L]."""


class ClientDataSet(DataSet):
    """Clients with their own training and test samples."""

    natural: ClassVar[bool] = True

    @abstractmethod
    def load(self) -> tuple[Population, Population | None]:
        """The clients, and those the data set itself keeps unseen (None: it has no opinion)."""


def require(condition: bool, message: str) -> None:
    """Raise a `ConfigError` with this message unless the condition holds."""
    if not condition:
        raise ConfigError(message)


def names_of(given: Sequence[str]) -> tuple[str, ...]:
    """The names themselves.

    Example:
        >>> names_of("age, sex"), names_of(("age, sex",)), names_of("")
        (('age', 'sex'), ('age, sex',), ())
    """
    if not isinstance(given, str):
        return tuple(given)
    return tuple(one.strip() for one in given.split(",") if one.strip())


def input_array(x: np.ndarray) -> np.ndarray:
    """Inputs in the type they are trained in: uint8 / 255, bool and floating as float32, other integers as int64.

    Args:
        x: inputs [n, ...]; uint8 means pixels, other integers mean token ids.

    Returns:
        Array [n, ...], float32 or int64; the same object where nothing has to change.
    """
    if x.dtype == np.uint8:
        return np.asarray(np.divide(x, 255, dtype=np.float32))
    if x.dtype.kind in "iu":
        return x.astype(np.int64, copy=False)
    require(x.dtype.kind in "fb", f"inputs of type {x.dtype} cannot be trained on; store numbers (float, int or uint8)")
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes inf, which the callers report with its sample
        return x.astype(np.float32, copy=False)


def label_array(y: np.ndarray) -> np.ndarray:
    """Labels as int64 (classes) or float32 (regression).

    Args:
        y: labels [n] or [n, L] of integer, bool or floating type.

    Returns:
        Array of the same shape.
    """
    fix = "number the classes from 0, or store a float for each sample"
    require(y.dtype.kind in "fbiu", f"labels of type {y.dtype} cannot be trained on; {fix}")
    with np.errstate(over="ignore"):  # as for inputs
        return y.astype(np.float32 if y.dtype.kind == "f" else np.int64, copy=False)


def make_split(x: np.ndarray, y: np.ndarray, sizes: np.ndarray) -> Split:
    """A split over these arrays, without a copy.

    Args:
        x: inputs [n, ...], client by client, float32 or int64.
        y: labels [n] or [n, L], int64 or float32.
        sizes: samples of each client [T], summing to n.

    Returns:
        The split of T clients.
    """
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Split(torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(offsets))


def empty_split(like: Split) -> Split:
    """A split of the same clients and sample shapes, without any sample."""
    return Split(like.x[:0], like.y[:0], torch.zeros_like(like.offsets))


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


def picture_array(image: "Image", size: tuple[int, int] | None) -> np.ndarray:
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


def check_subsample(fraction: float, seed: int) -> None:
    """Raise a `ConfigError` unless the data set's fields `fraction` and `seed` are in their ranges."""
    require(0 < fraction <= 1, f"--data.dataset.fraction is {fraction}; give a number above 0 and up to 1")
    require(0 <= seed < 2**32, f"--data.dataset.seed is {seed}; give a whole number from 0 to {2**32 - 1}")


def draw_subsample(total: int, fraction: float, seed: int) -> np.ndarray:
    """Choose the samples, or the clients, of a random subsample; a smaller one lies in a larger one of the same seed.

    Args:
        total: how many there are.
        fraction: how much of them the subsample holds; one of them at least.
        seed: seed of the choice.

    Returns:
        Whether each is in the subsample, [total] bool.

    Example:
        >>> int(draw_subsample(100, 0.29, seed=0).sum())
        29
    """
    kept = np.ones(total, dtype=bool)
    if fraction < 1:
        order = generator(seed, 0, 0, "fraction").permutation(total)
        kept[order[max(1, whole_part(fraction, total)) :]] = False
    return kept
