"""Handwritten digits of scikit-learn: 1,797 images of 8 x 8 pixels, no download."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from lit_fed.data.data_sets.base import PooledDataSet, Samples

__all__ = ["Digits"]

FILE = "datasets/data/digits.csv.gz"
"""Path in scikit-learn's folder."""


@dataclass(frozen=True)
class Digits(PooledDataSet):
    """scikit-learn's digits: x [1797, 1, 8, 8] float32 in 0..1, y [1797] int64 in 0..9."""

    num_classes = 10

    def load(self) -> Samples:
        table = _table()
        x = table[:, :-1].astype(np.float32) / 16  # the pixels are counts of 0 to 16 dark dots
        return Samples(x.reshape(-1, 1, 8, 8), table[:, -1].astype(np.int64))


@cache
def _table() -> np.ndarray:
    """64 pixels and the digit of each sample, [1797, 65] uint8.

    The file is read directly, since importing scikit-learn takes longer than a small run; if it is missing,
    scikit-learn loads it.
    """
    spec = find_spec("sklearn")
    folders = spec.submodule_search_locations if spec else None
    for path in (Path(folder, FILE) for folder in folders or ()):
        if path.is_file():
            with gzip.open(path) as file:
                return np.loadtxt(file, delimiter=",", dtype=np.uint8)
    from sklearn.datasets import load_digits

    digits = load_digits()
    return np.column_stack([digits.data, digits.target]).astype(np.uint8)
