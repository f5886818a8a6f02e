"""MNIST, and its writers as natural clients.

Gradient-based learning applied to document recognition (LeCun, Bottou, Bengio, Haffner; Proceedings of the IEEE 1998).
The writers are known from QMNIST: Cold Case: The Lost MNIST Digits (Yadav, Bottou; NeurIPS 2019,
arXiv:1905.10498), whose training labels follow MNIST's order, as do the first 10,000 of its test labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lit_fed.data.data_sets.base import Normalisation, require
from lit_fed.data.data_sets.torchvision_set import Pictures, TorchvisionSet

__all__ = ["MNIST"]

FOLDER = "MNIST/raw"
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
WRITER_FOLDER = "QMNIST/raw"
CLASS_COLUMN, WRITER_COLUMN = 0, 2
"""Columns of QMNIST's extended labels: digit and NIST's number of its writer."""


@dataclass(frozen=True)
class MNIST(TorchvisionSet):
    """Handwritten digits: x [n, 1, 28, 28] float32, normalised by mean 0.1307 and deviation 0.3081; y [n] in 0..9.

    Args:
        root: folder that holds `MNIST/raw`, and `QMNIST/raw` for the writers.
        download: download missing files by torchvision, which checks checksums.
        part: official parts to pool: `all`, `train` or `test`.
        fraction: share of the pool to keep, sampled at random.
        seed: seed of that sample, independent of the training seed.
        by_writer: writers known from QMNIST own the samples: 539 in the training part, 297 in the test part.
    """

    by_writer: bool = False

    num_classes = 10
    normalisation = Normalisation((0.1307,), (0.3081,))
    image_shape = (1, 28, 28)

    def _files(self, train: bool) -> list[str]:
        files = [f"{FOLDER}/{name}" for name in FILES]  # torchvision requires all four for each part
        return [*files, f"{WRITER_FOLDER}/{_writer_file(train)}"] if self.by_writer else files

    def _read(self, folder: Path, train: bool, download: bool) -> Pictures:
        from torchvision.datasets import MNIST as TORCHVISION_MNIST

        source = TORCHVISION_MNIST(folder, train=train, download=download)
        labels = source.targets.numpy()
        writers = self._writers(folder / WRITER_FOLDER, train, labels, download) if self.by_writer else None
        return Pictures(source.data.numpy()[:, None], labels, writers)

    def _writers(self, folder: Path, train: bool, labels: np.ndarray, download: bool) -> np.ndarray:
        """Number of the writer of each sample [n]."""
        from torchvision.datasets import QMNIST
        from torchvision.datasets.mnist import read_sn3_pascalvincent_tensor
        from torchvision.datasets.utils import download_and_extract_archive

        path = folder / _writer_file(train)
        if download and not path.is_file():
            _, (url, md5) = QMNIST.resources["train" if train else "test"]
            download_and_extract_archive(url, str(folder), md5=md5)
        table = read_sn3_pascalvincent_tensor(str(path)).numpy()
        require(
            table.ndim == 2 and table.shape[1] > WRITER_COLUMN and len(table) >= len(labels),
            f"{path.name} has shape {list(table.shape)}, expected are {len(labels)} rows of columns",
        )
        table = table[: len(labels)]
        different = np.flatnonzero(table[:, CLASS_COLUMN] != labels)
        first = different[0] if different.size else None
        require(
            first is None,
            f"{path.name} and MNIST disagree on the class of {different.size} digits, first in row {first}: the "
            "labels belong to other images",
        )
        return np.asarray(table[:, WRITER_COLUMN])


def _writer_file(train: bool) -> str:
    return f"qmnist-{'train' if train else 'test'}-labels-idx2-int"
