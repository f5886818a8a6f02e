"""Handwritten digits that come with scikit-learn: 1,797 pictures of 8 x 8 pixels, no download."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lit_fed.data.data_sets.base import PooledDataSet, Samples

__all__ = ["Digits"]


@dataclass(frozen=True)
class Digits(PooledDataSet):
    """scikit-learn's digits: x [1797, 1, 8, 8] float32 in 0..1, y [1797] int64 in 0..9."""

    num_classes: ClassVar[int | None] = 10

    def load(self) -> Samples:
        """All 1,797 samples."""
        from sklearn.datasets import load_digits

        digits = load_digits()
        x = (digits.images / 16).astype(np.float32)  # the pixels are counts of 0 to 16 dark dots
        return Samples(x[:, None], digits.target.astype(np.int64))
