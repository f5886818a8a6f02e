"""Interfaces of data sets, pooled or divided into clients, and helpers that they share.

Subclasses are frozen dataclasses whose fields are their settings; the bases are plain classes. Annotations are not
postponed here: the command line would look up their names in the module of each subclass, and skip checks on failure.
"""

import sys
import time
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
import torch

from lit_fed.core.named_inputs import NamedInputs
from lit_fed.core.types import Population, Split
from lit_fed.errors import ConfigError, notice

if TYPE_CHECKING:
    from PIL.Image import Image


from lit_fed.core.blocks import whole_part
from lit_fed.core.seeds import generator
from lit_fed.system.names import few

__all__ = [
    "ANY_SEED", "CONSTANT", "MOST_CLASSES", "OF_LABELS", "PLACE", "SECONDS_BETWEEN_WORDS", "ClientDataSet", "DataSet",
    "Encode", "Labels", "Names", "Normalisation", "PooledDataSet", "Samples", "check_names", "draw_subsample",
    "empty_split", "files_of", "given_array", "input_array", "is_first_process", "label_array", "make_split",
    "matched_classes", "names_of", "picture_array", "require", "say", "say_left_out", "say_resized",
    "scaled_labels", "stacked_samples", "with_words", "without_ghostscript",
]  # fmt: skip


Encode = Callable[[Population, Population | None], tuple[Population, Population | None]]
"""Replaces the inputs of seen and unseen clients; may depend on the seen clients' training samples."""


PLACE = "--data.dataset"
"""The option that holds a data set's settings."""

ANY_SEED = f"[0, {2**32 - 1}]"
"""The range of seeds, for `check_settings`."""

CONSTANT = 1e-13
"""Numbers count as constant below this ratio of standard deviation and mean, near float64 resolution."""

MOST_CLASSES = 20
"""Integer labels with more different values than this may be quantities."""

OF_LABELS = "mean and standard deviation of labels"
"""Description of the constants that standardise labels, in `Population.learned`."""

Labels = Literal["auto", "multilabel", "regression"]
"""Kind of labels: inferred from type and shape, several labels per sample, or quantities."""

Names = tuple[str, ...] | str
"""Names, or one text with names separated by commas."""


class Samples(NamedTuple):
    """All samples of a pooled data set."""

    x: np.ndarray  # [n, ...]; uint8 pixels are scaled to 0..1, then normalised by the data set's constants
    y: np.ndarray  # [n] or [n, L]
    owner: np.ndarray | None = None  # [n] int, the natural client of each sample
    names: list[str] | None = None  # names of the natural clients, indexed by `owner`
    class_names: tuple[str, ...] | None = None  # of the classes 0 … C − 1, if known
    split: np.ndarray | None = None  # [n] 0 training, 1 validation, 2 test; -1: by fractions; None: all
    unseen: tuple[str, ...] = ()  # names of natural clients held out of training
    encode: Encode | None = None  # converts `x` to inputs after the split
    stored_type: str | None = (
        None  # NumPy name of the inputs' type on disk, or `tokens …`, `columns …`; None: that of `x`
    )
    ids: np.ndarray | None = None  # [n, ...] what identifies each sample; None: its inputs
    inputs: NamedInputs | None = None  # that a row of `x` holds one after another; None: it is one input
    labelled: np.ndarray | None = None  # [n] bool; None: all, as in a training
    groups: np.ndarray | None = None  # [n] int, the person of each sample: all samples of one are in one split
    order: np.ndarray | None = None  # [n] the time of each sample
    files: np.ndarray | None = None  # [n] of texts, the path of each sample in the data set's folder


class Normalisation(NamedTuple):
    """Constants of each channel of inputs in 0..1: (x - mean) / std."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Normalise inputs, in place if `x` is a writable float32 array.

        Args:
            x: inputs [n, channels, ...] in 0..1, or as uint8. The mean of float64 is taken off in float64, since it may
                be far larger than what is left.

        Returns:
            Array of the same shape, float32; `x` itself if it was overwritten.

        Raises:
            ConfigError: if the numbers of channels and constants differ.
        """
        channels = x.shape[1] if x.ndim > 1 else None
        require(
            channels == len(self.mean) == len(self.std),
            f"inputs of shape {list(x.shape)} have no {len(self.mean)} channels on axis 1 for the constants "
            f"mean = {self.mean}, std = {self.std}; give one of each per channel",
        )
        x = input_array(x) if x.dtype == np.uint8 else x
        kind = np.float64 if x.dtype == np.float64 else np.float32
        mean, std = (np.array(one, dtype=kind).reshape(-1, *[1] * (x.ndim - 2)) for one in self)
        # avoids a second copy of a whole image data set
        out = x if x.dtype == np.float32 and x.flags.writeable else np.empty(x.shape, dtype=kind)
        np.subtract(x, mean, out=out, dtype=kind)
        np.divide(out, std, out=out)
        return out.astype(np.float32, copy=False)


def scaled_labels(y: np.ndarray, scale: tuple[float, float]) -> np.ndarray:
    """Labels [n, ...] less their mean, by their deviation, as float32."""
    mean, std = scale
    scaled: np.ndarray = ((y.astype(np.float64) - mean) / std).astype(np.float32)
    return scaled


class DataSet(ABC):
    """Base of everything `--data.dataset` accepts.

    Attributes:
        num_classes: number of classes if known; None: one more than the largest training label.
        labels: kind of labels. `auto`: integers are classes (with shape [n, L] of the L positions of a sequence),
            floats are quantities; `multilabel`: L labels 0 or 1 per sample; `regression`: quantities, also integers.
        divided_by: what differs between clients: samples, or features of the same samples.
        natural: the data set has natural clients; partition and number of clients are refused.
        is_remote: samples stay on other machines; only their numbers are known here.
        reaches: options by which it reaches other machines, or "" if it always does, and what it does then. A
            checkpoint that alone names such a class is refused.
        normalisation: constants of the inputs' normalisation, kept in checkpoints for unseen clients; None: none, or
            learned from samples and kept in `Population`.
        texts: how texts become tokens, if inputs are texts: `Texts`, kept in checkpoints for unseen clients.
    """

    num_classes: ClassVar[int | None] = None
    labels: ClassVar[Labels] = "auto"
    divided_by: ClassVar[Literal["samples", "features"]] = "samples"
    natural: ClassVar[bool] = False
    is_remote: ClassVar[bool] = False
    reaches: ClassVar[Mapping[str, str]] = {}
    normalisation: ClassVar[Normalisation | None] = None
    texts: ClassVar[Any] = None

    @property
    def unsaid(self) -> Literal["labels", "task"] | None:
        """The setting that would say what labels are, if there is one and it is not given."""
        return "labels" if self.labels == "auto" and "labels" in getattr(self, "__dataclass_fields__", {}) else None

    def prepare(self) -> None:  # noqa: B027 - most data sets have nothing to fetch
        """Download what `load` reads; called once per node before its ranks load, and not by all callers of `load`."""

    @abstractmethod
    def load(self) -> Samples | tuple[Population, Population | None]:
        """Read or generate the data."""

    def new_store(self, num_clients: int) -> Any:
        """A store for the states of clients that are on other machines; None: they are stored here."""
        return None

    def client_trainer(self, module: Any, data: Any) -> Any:
        """The client trainer of a data set that `is_remote`.

        Args:
            module: the `FederatedModule`.
            data: the `FederatedDataModule`.
        """
        raise NotImplementedError


class PooledDataSet(DataSet):
    """A pool of samples that a partition divides among clients."""

    @abstractmethod
    def load(self) -> Samples:
        """All samples: x [n, ...], y [n] or [n, L]."""


class ClientDataSet(DataSet):
    """Clients with their own training and test samples."""

    natural = True

    @abstractmethod
    def load(self) -> tuple[Population, Population | None]:
        """The seen clients, and the data set's own unseen clients or None."""


def require(condition: bool, message: str) -> None:
    """Raise a `ConfigError` with this message unless the condition holds."""
    if not condition:
        raise ConfigError(message)


def names_of(given: Sequence[str]) -> tuple[str, ...]:
    """Split names; a list in brackets remains a text if YAML cannot read it, as with patterns that begin with a star.

    Example:
        >>> names_of("age, sex"), names_of("[*wte*, head]"), names_of(("age, sex",)), names_of("")
        (('age', 'sex'), ('*wte*', 'head'), ('age, sex',), ())
    """
    if not isinstance(given, str):
        return tuple(given)
    if given.startswith("[") and given.endswith("]"):
        given = given[1:-1]
    return tuple(one.strip() for one in given.split(",") if one.strip())


LONGEST_NAME = 200
"""Upper limit of bytes in a client's name; files are named after clients, and file systems take 255 with the ending."""

UTF_8 = "utf-8", "surrogatepass"

INVISIBLE = dict.fromkeys((0x200B, 0x2060, 0xFEFF))
"""Characters without width, for `str.translate`."""


def check_names(names: Sequence[str], what: str) -> None:
    """Refuse names that look the same, and long ones of clients; print a line on names that differ in case alone.

    Args:
        names: clients, classes, categories or columns.
        what: what they name, in the plural.

    Raises:
        ConfigError: naming two that differ only in white space or Unicode form, or a client of over 200 bytes.
    """
    long = [one for one in names if len(one) > LONGEST_NAME // 4 and len(one.encode(*UTF_8)) > LONGEST_NAME]
    if long and what == "clients":
        size = len(long[0].encode(*UTF_8))
        raise ConfigError(f"client {long[0][:20]!a}… has a name of {size} bytes; shorten it, since files bear it")
    if len({*map(_folded, names)}) == len({*names}):
        return
    for form, said in ((_as_it_looks, "spaces or Unicode form; rename one"), (_folded, "case; they are kept apart")):
        known: dict[str, str] = {}
        pairs = [(other, one) for one in names if (other := known.setdefault(form(one), one)) != one]
        more = f", as {len(pairs) - 1} more do," if len(pairs) > 1 else ""
        shown = f"{what} {' and '.join(map(ascii, pairs[0]))}{more} differ only in {said}" if pairs else ""
        require(not pairs or form is _folded, shown)
    say(shown)


def _as_it_looks(name: str) -> str:
    """The name without differences that are not seen."""
    return " ".join((name if name.isascii() else unicodedata.normalize("NFC", name.translate(INVISIBLE))).split())


def _folded(name: str) -> str:
    """The name without differences of case and width, either."""
    return unicodedata.normalize("NFKC", _as_it_looks(name)).casefold()


def files_of(folder: Path, ending: str) -> list[Path]:
    """The files of a folder with this ending, sorted by name; a line names the others."""
    others = [one.name for one in sorted(folder.glob("[!.]*")) if one.is_file() and one.suffix != ending]
    if others:
        say(f"{folder}: files that do not end in {ending} are not read: {few(others)}")
    return sorted(folder.glob(f"*{ending}"))


def say_left_out(names: Sequence[str], lacking: str) -> None:
    """Print a line on clients in the data that do not take part.

    Args:
        names: their names.
        lacking: what they have too little of.
    """
    if names:
        say(f"clients without {lacking} are left out: {few(map(repr, names))}")


def matched_classes(
    lists: Sequence[Sequence[str]], place: str
) -> tuple[tuple[str, ...], list[np.ndarray] | list[None]]:
    """One list of the classes that the parts of a data set list, each in its own order.

    Args:
        lists: names of the classes 0, 1, … of each part.
        place: their name in the line that is printed if the lists differ.

    Returns:
        All names, those of the first list first, and for each part the number of each of its classes among them, and
        last -1, so that a hidden class stays -1; None for each part if all lists are equal.

    Example:
        >>> matched_classes([("no", "yes"), ("no", "yes")], "labels")
        (('no', 'yes'), [None, None])
    """
    if len({*map(tuple, lists)}) == 1:
        return tuple(lists[0]), [None] * len(lists)
    number = {name: position for position, name in enumerate(dict.fromkeys(name for one in lists for name in one))}
    say(f"{place}: parts of the data list the classes differently; they are matched by name: {few(number, 6)}")
    return tuple(number), [np.array([*(number[name] for name in one), -1]) for one in lists]


def input_array(x: np.ndarray) -> np.ndarray:
    """Convert inputs to their training type: uint8 / 255, bool and floating to float32, other integers to int64.

    Args:
        x: inputs [n, ...]; uint8 means pixels, other integers mean token ids.

    Returns:
        Array [n, ...], float32 or int64; `x` itself if nothing changes.
    """
    if x.dtype == np.uint8:
        return np.asarray(np.divide(x, 255, dtype=np.float32))
    if x.dtype.kind in "iu":
        return x.astype(np.int64, copy=False)
    require(x.dtype.kind in "fb", f"inputs of type {x.dtype} cannot be trained on; store numbers (float, int or uint8)")
    return _as_float32(x)


def label_array(y: np.ndarray) -> np.ndarray:
    """Convert labels to int64 (classes) or float32 (regression).

    Args:
        y: labels [n] or [n, L] of integer, bool or floating type.

    Returns:
        Array of the same shape.
    """
    fix = "number the classes from 0, or store a float for each sample"
    require(y.dtype.kind in "fbiu", f"labels of type {y.dtype} cannot be trained on; {fix}")
    return _as_float32(y) if y.dtype.kind == "f" else y.astype(np.int64, copy=False)


def _as_float32(values: np.ndarray) -> np.ndarray:
    """Numbers as float32; what is too large becomes infinite, which callers report with its sample."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32, copy=False)


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
    """A split of the same clients and shapes without samples."""
    return Split(like.x[:0], like.y[:0], torch.zeros_like(like.offsets))


SECONDS_BETWEEN_WORDS = 10.0
"""Interval of progress messages in seconds."""

GREY, COLOUR = ("1", "L", "LA"), ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr", "HSV", "LAB", "RGBX", "RGBa", "La")
"""Pillow modes with 8 bits per channel, converted to one channel or three."""

Item = TypeVar("Item")


def with_words(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """Yield the items and print progress of long reads on rank 0.

    Args:
        items: the samples.
        total: their number.
        what: name of their source.
    """
    last = time.monotonic()
    for number, item in enumerate(items):
        yield item
        if time.monotonic() - last > SECONDS_BETWEEN_WORDS:
            last = time.monotonic()
            say(f"{what}: {number + 1:,} of {total:,} samples are read")


def is_first_process() -> bool:
    """Whether this is rank 0, by Lightning if it is loaded."""
    loaded = sys.modules.get("lightning.pytorch.utilities.rank_zero")
    return loaded is None or getattr(loaded.rank_zero_only, "rank", 0) == 0


def say(text: str) -> None:
    """Print a warning on rank 0."""
    if is_first_process():
        notice(text)


def given_array(given: Any, place: str) -> np.ndarray:
    """A tensor, an array, a list or a number as an array; bfloat16, which NumPy lacks, becomes float32.

    Raises:
        ConfigError: naming the place of what has no array, such as lists of several lengths.
    """
    try:
        if isinstance(given, torch.Tensor):
            given = given.detach().cpu()
            given = given.float() if given.dtype is torch.bfloat16 else given
        return np.asarray(given)
    except Exception as error:  # of lists, of types that NumPy does not have, or of objects of the user
        raise ConfigError(
            f"{place} cannot become an array ({error}); give tensors, arrays or numbers of one shape"
        ) from error


def say_resized(sizes: Sequence[tuple[int, int]], size: tuple[int, int]) -> None:
    """Print a line if images are scaled.

    Args:
        sizes: width and height of each image.
        size: width and height after scaling.
    """
    others = sorted({one for one in sizes if one != size}, key=lambda one: (one[0] * one[1], one))
    if others:
        first, last, wanted = (f"{width} x {height}" for width, height in (others[0], others[-1], size))
        number = sum(one != size for one in sizes)
        say(
            f"{number:,} of {len(sizes):,} pictures are scaled to {wanted} pixels, from "
            f"{first}{'' if first == last else f' … {last}'}; the training's {PLACE}.image_size sets the size"
        )


def without_ghostscript() -> None:
    """Keep Pillow from starting Ghostscript, where other libraries open files that may hold PostScript."""
    from PIL import EpsImagePlugin

    EpsImagePlugin.gs_binary = False


def picture_array(image: "Image", size: tuple[int, int] | None, place: str) -> np.ndarray:
    """Pixels of an image, uint8 [1, height, width] if grey, otherwise [3, height, width].

    Args:
        image: a Pillow image.
        size: height and width to scale to (bilinear); None: no scaling.
        place: its name in messages.

    Raises:
        ConfigError: if its pixels have more than 8 bits per channel.
    """
    require(
        image.mode in GREY + COLOUR,
        f"{place} is an image of mode {image.mode}, not of 8 bits per channel; convert it to L or RGB",
    )
    image = image.convert("L" if image.mode in GREY else "RGB")
    if size is not None:
        image = image.resize(size[::-1], resample=2)  # bilinear, in all versions of Pillow
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)


def stacked_samples(arrays: list[np.ndarray], places: list[str], *, fix: str) -> np.ndarray:
    """Stack samples to [n, ...]; if only some images are grey, they get three equal channels.

    Args:
        arrays: the samples, at least one.
        places: name of each in messages.
        fix: advice if shapes differ.

    Raises:
        ConfigError: naming the first sample whose shape or type differs.
    """
    pictures = all(one.dtype == np.uint8 and one.ndim == 3 for one in arrays)
    if pictures and {len(one) for one in arrays} == {1, 3}:
        arrays = [np.broadcast_to(one, (3, *one.shape[1:])) for one in arrays]
    first = arrays[0]
    for array, place in zip(arrays, places, strict=True):
        if (array.shape, array.dtype) != (first.shape, first.dtype):
            raise ConfigError(
                f"{place} is {array.dtype} of shape {list(array.shape)}, the samples before it are {first.dtype} "
                f"of shape {list(first.shape)}; {fix}"
            )
    return np.stack(arrays)


def draw_subsample(total: int, fraction: float, seed: int) -> np.ndarray:
    """Sample a fraction of samples or clients; with one seed a smaller subsample is part of a larger one.

    Args:
        total: number to choose from.
        fraction: share to keep, at least one.
        seed: seed of the choice.

    Returns:
        Mask of the kept ones, [total] bool.

    Example:
        >>> int(draw_subsample(100, 0.29, seed=0).sum())
        29
    """
    kept = np.ones(total, dtype=bool)
    if fraction < 1:
        order = generator(seed, 0, 0, "fraction").permutation(total)
        kept[order[max(1, whole_part(fraction, total)) :]] = False
    return kept
