"""CIFAR-10 and CIFAR-100: small colour photographs.

Learning Multiple Layers of Features from Tiny Images (Krizhevsky; technical report, University of Toronto, 2009). The
constants of the normalisation are those of the code published with the FedEM paper (arXiv:2108.10252).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lit_fed.data.data_sets.base import Normalisation
from lit_fed.data.data_sets.torchvision_set import Pictures, TorchvisionSet

__all__ = ["CIFAR10", "CIFAR100"]


@dataclass(frozen=True)
class _CIFAR(TorchvisionSet):
    """Common base: pickled rows of 3 x 32 x 32 bytes."""

    image_shape = (3, 32, 32)

    def _torchvision_class(self) -> Any:
        """The class of torchvision that reads the files."""
        from torchvision import datasets

        return getattr(datasets, f"CIFAR{self.num_classes}")

    def _files(self, train: bool) -> list[str]:
        source = self._torchvision_class()  # torchvision requires the files of both parts
        names = [name for name, _ in source.train_list + source.test_list] + [source.meta["filename"]]
        return [f"{source.base_folder}/{name}" for name in names]

    def _read(self, folder: Path, train: bool, download: bool) -> Pictures:
        source = self._torchvision_class()(folder, train=train, download=download)
        return Pictures(source.data.transpose(0, 3, 1, 2), np.array(source.targets, dtype=np.int64))


@dataclass(frozen=True)
class CIFAR10(_CIFAR):
    """Photographs of 10 classes: x [n, 3, 32, 32] float32, normalised for each channel; y [n] in 0..9.

    Args:
        root: folder that holds `cifar-10-batches-py`.
        download: download missing files by torchvision, which checks checksums.
        part: official parts to pool: `all`, `train` or `test`.
        fraction: share of the pool to keep, sampled at random.
        seed: seed of that sample, independent of the training seed.
    """

    num_classes = 10
    normalisation = Normalisation((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))


@dataclass(frozen=True)
class CIFAR100(_CIFAR):
    """Photographs of 100 classes: x [n, 3, 32, 32] float32, normalised for each channel; y [n] in 0..99.

    Labels are the fine ones.

    Args:
        root: folder that holds `cifar-100-python`.
        download: download missing files by torchvision, which checks checksums.
        part: official parts to pool: `all`, `train` or `test`.
        fraction: share of the pool to keep, sampled at random.
        seed: seed of that sample, independent of the training seed.
    """

    num_classes = 100
    normalisation = Normalisation((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
