"""FEMNIST: handwritten digits and letters in LEAF's JSON layout; each writer is a client.

LEAF: A Benchmark for Federated Settings (Caldas, Duddu, Wu, Li, Konečný, McMahan, Smith, Talwalkar; arXiv:1812.01097,
https://github.com/TalwalkarLab/leaf/tree/master/data/femnist), made from NIST's Special Database 19.

ROOT/femnist/train/*.json, ROOT/femnist/test/*.json   LEAF's layout: x lists of 784 fractions, y the character
ROOT/femnist/all_data/*.json                          the same, before LEAF divides it
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lit_fed.data.data_sets.base import (
    ANY_SEED,
    PLACE,
    Normalisation,
    PooledDataSet,
    Samples,
    draw_subsample,
    require,
    say_left_out,
)
from lit_fed.data.data_sets.leaf import LeafUser, read_leaf_users
from lit_fed.errors import check_settings
from lit_fed.system.files import given_path

__all__ = ["FEMNIST"]

FOLDER = "femnist"
DIVIDED, WHOLE = ("train", "test"), ("all_data",)
"""Folders of LEAF's two forms."""

IMAGE_SHAPE = (1, 28, 28)
NUM_PIXELS = 28 * 28
NUM_CLASSES = 62


@dataclass(frozen=True)
class FEMNIST(PooledDataSet):
    """Handwritten characters: x [n, 1, 28, 28] float32, normalised by mean 0.1307 and deviation 0.3081; y [n] in 0..61.

    The classes are the digits, A to Z, and a to z. Unlike in MNIST and EMNIST the characters are dark on white: LEAF
    stores the background as 1. A writer's samples in `train` and `test` are pooled, as in the FedEM paper
    (arXiv:2108.10252), and split by the fractions of the data module; without both folders `all_data` is read.

    Args:
        root: folder that holds `femnist`.
        fraction: share of the writers to keep, sampled at random; the FedEM paper keeps 0.15.
        seed: seed of that sample, independent of the training seed.
        min_samples: writers with fewer samples are left out before sampling; the FedEM paper's code requires 3.
    """

    root: str = "data"
    fraction: float = 1.0
    seed: int = 0
    min_samples: int = 3

    num_classes = NUM_CLASSES
    normalisation = Normalisation((0.1307,), (0.3081,))

    def __post_init__(self) -> None:
        check_settings(self, prefix=PLACE, fraction="(0, 1]", seed=ANY_SEED, min_samples=">= 1")

    def load(self) -> Samples:
        """The writers' samples end to end, writers by name."""
        writers = self._kept(_pooled(self._folders()))
        names, sizes = list(writers), [_num_samples(parts) for parts in writers.values()]
        x = np.empty((sum(sizes), *IMAGE_SHAPE), dtype=np.float32)
        y = np.empty(sum(sizes), dtype=np.int64)
        end = 0
        for name in names:
            for part in writers.pop(name):  # freed when copied: all of FEMNIST takes 2.4 GiB
                start, end = end, end + len(part.y)
                x[start:end], y[start:end] = part.x.reshape(-1, *IMAGE_SHAPE), part.y
        return Samples(self.normalisation.apply(x), y, np.repeat(np.arange(len(names)), sizes), names)

    def _folders(self) -> list[Path]:
        """Folders to read: LEAF's train and test, or all_data."""
        root = given_path(self.root, "--data.dataset.root") / FOLDER
        forms = [[root / name for name in form] for form in (DIVIDED, WHOLE)]
        found = [folders for folders in forms if all(folder.is_dir() for folder in folders)]
        require(
            bool(found),
            f"--data.dataset.root {self.root}: FEMNIST has neither the folders {FOLDER}/train and {FOLDER}/test nor "
            f"{FOLDER}/all_data there; correct the folder, or make the files by LEAF's data/femnist/preprocess.sh",
        )
        return found[0]

    def _kept(self, writers: dict[str, list[LeafUser]]) -> dict[str, list[LeafUser]]:
        """The sampled share of the writers with enough samples, by name."""
        names = sorted(name for name, parts in writers.items() if _num_samples(parts) >= self.min_samples)
        say_left_out(sorted(writers.keys() - {*names}), f"{self.min_samples} samples")
        require(
            bool(names),
            f"--data.dataset.root {self.root}: none of {len(writers)} writers has the {self.min_samples} samples that "
            "--data.dataset.min_samples asks for; lower it",
        )
        drawn = draw_subsample(len(names), self.fraction, self.seed)
        return {name: writers[name] for name, kept in zip(names, drawn, strict=True) if kept}


def _pooled(folders: list[Path]) -> dict[str, list[LeafUser]]:
    writers: dict[str, list[LeafUser]] = {}
    for folder in folders:
        for name, user in read_leaf_users(folder).items():
            _check(user)
            writers.setdefault(name, []).append(user)
    return writers


def _num_samples(parts: list[LeafUser]) -> int:
    return sum(len(part.y) for part in parts)


def _check(user: LeafUser) -> None:
    """Refuse samples other than 784 pixels in 0..1 with a label each."""
    x, y, source = user.x, user.y, user.source
    require(len(x) == len(y), f"{source}: {len(x)} samples in x, but {len(y)} in y; make them equal")
    if len(y) == 0:  # an empty list has no shape
        return
    require(
        x.shape == (len(x), NUM_PIXELS) and x.dtype.kind in "fi",
        f"{source}: x holds {x.dtype} of shape {list(x.shape[1:])}, not lists of {NUM_PIXELS} pixels; follow "
        "LEAF's layout",
    )
    low, high = float(x.min()), float(x.max())
    require(low >= 0 and high <= 1, f"{source}: pixels from {low:g} to {high:g}; scale them to 0..1, as LEAF does")
    characters = y.dtype.kind == "i" and y.ndim == 1 and int(y.min()) >= 0 and int(y.max()) < NUM_CLASSES
    require(characters, f"{source}: y holds a label that is not a whole number from 0 to {NUM_CLASSES - 1}; correct it")
