"""Image data sets that torchvision finds, downloads and checks, read as whole arrays.

Annotations are not postponed, for the reason given in `base.py`.
"""

import pickle
import tarfile
import zipfile
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from lit_fed.data.data_sets.base import ANY_SEED, PLACE, Normalisation, PooledDataSet, Samples, draw_subsample, require
from lit_fed.errors import ConfigError, check_settings
from lit_fed.system.files import given_path

__all__ = ["Pictures", "TorchvisionSet"]

PARTS = {"all": (True, False), "train": (True,), "test": (False,)}
"""Official parts (True: training, False: test) of each value of `part`."""

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
"""Exceptions of torchvision on damaged files and failed downloads."""


class Pictures(NamedTuple):
    """Images of an official part, training or test."""

    pixels: np.ndarray  # [n, channels, height, width] uint8
    labels: np.ndarray  # [n] int64
    writers: np.ndarray | None = None  # [n] int, writer of each, if requested


@dataclass(frozen=True)
class TorchvisionSet(PooledDataSet):
    """Base of the data sets that torchvision reads.

    Args:
        root: folder that holds the data set's own folder.
        download: download missing files by torchvision, which checks checksums.
        part: official parts to pool: `all`, `train` or `test`.
        fraction: share of the pool to keep, sampled at random.
        seed: seed of that sample, independent of the training seed.

    Attributes:
        image_shape: channels, height and width of an image.
    """

    root: str = "data"
    download: bool = False
    part: Literal["all", "train", "test"] = "all"
    fraction: float = 1.0
    seed: int = 0

    normalisation: ClassVar[Normalisation]
    image_shape: ClassVar[tuple[int, int, int]]

    def __post_init__(self) -> None:
        check_settings(self, prefix=PLACE, fraction="(0, 1]", seed=ANY_SEED)

    def prepare(self) -> None:
        """Download missing files if `download` is set; a `ConfigError` says what failed."""
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
        """Required files of a part, relative to the root."""

    @abstractmethod
    def _read(self, folder: Path, train: bool, download: bool) -> Pictures:
        """Read the official training or test part; with `download`, download missing files first."""

    def _missing(self, folder: Path, train: bool) -> list[str]:
        return [file for file in self._files(train) if not (folder / file).is_file()]

    def _checked(self, folder: Path, train: bool) -> Pictures:
        """Read an official part; a `ConfigError` names the missing or damaged file."""
        name, option = type(self).__name__, f"--data.dataset.root {self.root}"
        missing = self._missing(folder, train)
        require(
            self.download or not missing,
            f"{option}: {name} has no {', '.join(missing)} there; correct the folder, or download the files by "
            "--data.dataset.download true",
        )
        try:
            pictures = self._read(folder, train, bool(missing))
            height_and_width = self.image_shape[1:]
            require(
                pictures.pixels.shape == (len(pictures.labels), *self.image_shape),
                f"pixels of shape {list(pictures.pixels.shape)} and {len(pictures.labels)} labels, expected are one "
                f"label and {height_and_width[0]} x {height_and_width[1]} pixels per image",
            )
        except DAMAGE as error:
            problem = "cannot be downloaded" if missing else "cannot be read"
            raise ConfigError(
                f"{option}: {name} {problem} ({error}); delete its files there and download them again by "
                "--data.dataset.download true"
            ) from error
        return pictures


def _scaled(pairs: list[tuple[Pictures, np.ndarray]], num_samples: int, shape: tuple[int, int, int]) -> np.ndarray:
    """Chosen pixels in 0..1, [n, channels, height, width] float32."""
    x = np.empty((num_samples, *shape), dtype=np.float32)
    end = 0
    for part, rows in pairs:
        pixels = part.pixels if rows.all() else part.pixels[rows]
        start, end = end, end + len(pixels)
        np.divide(pixels, 255, out=x[start:end], dtype=np.float32)
    return x
