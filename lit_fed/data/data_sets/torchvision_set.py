"""Pictures that torchvision finds, downloads and checks; decoded as whole arrays, never one picture after another.

Annotations are not postponed, for the reason given in `dataset.py`.
"""

import pickle
import tarfile
import zipfile
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from lit_fed.data.data_sets.base import Normalisation, PooledDataSet, Samples, check_subsample, draw_subsample, require
from lit_fed.errors import ConfigError
from lit_fed.system.given_paths import given_path

__all__ = ["Pictures", "TorchvisionSet"]

PARTS = {"all": (True, False), "train": (True,), "test": (False,)}
"""Which official parts (training? or test) each value of `part` pools."""

DAMAGE = (
    AssertionError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
    tarfile.TarError,
    zipfile.BadZipFile,
)
"""What torchvision's readers raise at damaged files, and its downloads at a network that fails."""


class Pictures(NamedTuple):
    """The pictures of an official part, training or test, as they were read."""

    pixels: np.ndarray  # [n, channels, height, width] uint8
    labels: np.ndarray  # [n] int64
    writers: np.ndarray | None = None  # [n] int, number of the person who wrote each, where that is asked for


@dataclass(frozen=True)
class TorchvisionSet(PooledDataSet):
    """Base of the data sets that torchvision reads.

    Args:
        root: folder that holds the data set's own folder.
        download: fetch missing files by torchvision, which compares their checksums.
        part: official parts that are pooled: `all`, `train` or `test`.
        fraction: share of the pool that is kept, drawn at random.
        seed: seed of that draw, independent of the training seed.

    Attributes:
        image_shape: channels, height and width of a picture.
    """

    root: str = "data"
    download: bool = False
    part: Literal["all", "train", "test"] = "all"
    fraction: float = 1.0
    seed: int = 0

    normalisation: ClassVar[Normalisation]
    image_shape: ClassVar[tuple[int, int, int]]

    def __post_init__(self) -> None:
        require(
            self.part in PARTS, f"--data.dataset.part is {self.part!r}; choose one of {', '.join(map(repr, PARTS))}"
        )
        check_subsample(self.fraction, self.seed)

    def prepare(self) -> None:
        """Download missing files, if that is asked for.

        Raises:
            ConfigError: if that fails, or what was fetched cannot be read.
        """
        folder = given_path(self.root, "--data.dataset.root")
        for train in PARTS[self.part] if self.download else ():
            if self._missing(folder, train):
                self._checked(folder, train)

    def load(self) -> Samples:
        """The pool in the official order, training part first: x [n, channels, height, width], normalised; y [n]."""
        folder = given_path(self.root, "--data.dataset.root")
        parts = [self._checked(folder, train) for train in PARTS[self.part]]
        sizes = [len(part.labels) for part in parts]
        kept = draw_subsample(sum(sizes), self.fraction, self.seed)
        chosen = np.split(kept, np.cumsum(sizes)[:-1])
        pairs = list(zip(parts, chosen, strict=True))
        labels = np.concatenate([part.labels[rows] for part, rows in pairs])
        x = self.normalisation.apply(_scaled(pairs, len(labels), self.image_shape))
        writers = [part.writers[rows] for part, rows in pairs if part.writers is not None]
        if not writers:
            return Samples(x, labels)
        numbers, owner = np.unique(np.concatenate(writers), return_inverse=True)
        return Samples(x, labels, owner, [f"writer {number:04d}" for number in numbers])

    @abstractmethod
    def _files(self, train: bool) -> list[str]:
        """Files, relative to the root, without which a part cannot be read."""

    @abstractmethod
    def _read(self, folder: Path, train: bool, download: bool) -> Pictures:
        """Read the official training or test part; with `download`, fetch its missing files first."""

    def _missing(self, folder: Path, train: bool) -> list[str]:
        """Files of a part that are not there."""
        return [file for file in self._files(train) if not (folder / file).is_file()]

    def _checked(self, folder: Path, train: bool) -> Pictures:
        """An official part, or a `ConfigError` that says which file is missing or what is wrong with it."""
        name, option = type(self).__name__, f"--data.dataset.root {self.root}"
        missing = self._missing(folder, train)
        require(
            self.download or not missing,
            f"{option}: {name} has no {', '.join(missing)} there; correct the folder, or fetch the files by "
            "--data.dataset.download true",
        )
        try:
            pictures = self._read(folder, train, bool(missing))
            height_and_width = self.image_shape[1:]
            require(
                pictures.pixels.shape == (len(pictures.labels), *self.image_shape),
                f"pixels of shape {list(pictures.pixels.shape)} and {len(pictures.labels)} labels, where one label and "
                f"{height_and_width[0]} x {height_and_width[1]} pixels belong to each picture",
            )
        except DAMAGE as error:
            problem = "cannot be downloaded" if missing else "cannot be read"
            raise ConfigError(
                f"{option}: {name} {problem} ({error}); delete its files there and fetch them anew by "
                "--data.dataset.download true"
            ) from error
        return pictures


def _scaled(pairs: list[tuple[Pictures, np.ndarray]], num_samples: int, shape: tuple[int, int, int]) -> np.ndarray:
    """The chosen pixels in 0..1, [n, channels, height, width] float32, written part by part into the one array."""
    x = np.empty((num_samples, *shape), dtype=np.float32)
    end = 0
    for part, rows in pairs:
        pixels = part.pixels if rows.all() else part.pixels[rows]
        start, end = end, end + len(pixels)
        np.divide(pixels, 255, out=x[start:end], dtype=np.float32)
    return x
