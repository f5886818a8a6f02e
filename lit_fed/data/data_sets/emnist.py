"""EMNIST: handwritten digits and letters.

EMNIST: an extension of MNIST to handwritten letters (Cohen, Afshar, Tapson, van Schaik; IJCNN 2017, arXiv:1702.05373).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lit_fed.data.data_sets.base import Normalisation
from lit_fed.data.data_sets.torchvision_set import Pictures, TorchvisionSet

__all__ = ["EMNIST"]

FOLDER = "EMNIST/raw"
NUM_CLASSES = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}
FIRST_LABEL = {"letters": 1}
"""First label of splits whose classes are not numbered from 0."""


@dataclass(frozen=True)
class EMNIST(TorchvisionSet):
    """Handwritten characters: x [n, 1, 28, 28] float32, normalised by mean 0.1307 and deviation 0.3081; y [n] from 0.

    The images are transposed in the files; here they are upright.

    Args:
        root: folder that holds `EMNIST/raw`.
        download: download missing files by torchvision, which checks checksums.
        part: official parts to pool: `all`, `train` or `test`.
        fraction: share of the pool to keep, sampled at random; the FedEM paper takes 0.1.
        seed: seed of that sample, independent of the training seed.
        split: selection of characters: `byclass` has 62 classes, `bymerge` and `balanced` 47, `letters` 26,
            `digits` and `mnist` 10.
    """

    split: Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"] = "byclass"

    normalisation = Normalisation((0.1307,), (0.3081,))
    image_shape = (1, 28, 28)

    @property
    def num_classes(self) -> int:  # type: ignore[override]  # the base promises one number for the whole class
        """Number of classes of the split."""
        return NUM_CLASSES[self.split]

    def _files(self, train: bool) -> list[str]:
        prefix = f"{FOLDER}/emnist-{self.split}-{'train' if train else 'test'}"
        return [f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"]

    def _read(self, folder: Path, train: bool, download: bool) -> Pictures:
        from torchvision.datasets import EMNIST as TORCHVISION_EMNIST

        source = TORCHVISION_EMNIST(folder, self.split, train=train, download=download)
        upright = source.data.numpy().swapaxes(1, 2)
        return Pictures(upright[:, None], source.targets.numpy() - FIRST_LABEL.get(self.split, 0))
