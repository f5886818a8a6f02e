"""Office-Home: images of 65 classes in four domains, as features of a trained network.

Deep Hashing Network for Unsupervised Domain Adaptation (Venkateswara, Eusebio, Chakraborty, Panchanathan; CVPR 2017,
arXiv:1706.07522, https://www.hemanthdv.org/officeHomeDataset.html). The features are those of the FedeRiCo paper
(arXiv:2210.06597, Appendix D): the penultimate layer of a ResNet-18 trained on ImageNet.

ROOT/OfficeHome/features.npz    x [n, 512], y [n], domain [n], class_names [65], domain_names [4], checksum;
                                written by scripts/office_home_features.py
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from lit_fed.data.data_sets.base import (
    ANY_SEED,
    PLACE,
    PooledDataSet,
    Samples,
    draw_subsample,
    input_array,
    label_array,
    require,
)
from lit_fed.data.data_sets.npz import read_npz
from lit_fed.errors import check_settings
from lit_fed.system.files import given_path

__all__ = ["DOMAINS", "FEATURES", "FOLDER", "NUM_CLASSES", "OfficeHome"]

Domain: TypeAlias = Literal["Art", "Clipart", "Product", "Real World"]

DOMAINS: tuple[Domain, ...] = ("Art", "Clipart", "Product", "Real World")
"""Folders of the official archive, in the order of their numbers."""

FOLDER = "OfficeHome"
FEATURES = f"{FOLDER}/features.npz"
NUM_CLASSES = 65
NUM_FEATURES = 512
ARRAYS = ("x", "y", "domain", "class_names", "domain_names")


@dataclass(frozen=True)
class OfficeHome(PooledDataSet):
    """Features of images: x [n, 512] float32, y [n] in 0..64, of the chosen domains.

    Args:
        root: folder that holds `OfficeHome/features.npz`.
        domains: domains to pool, of `Art`, `Clipart`, `Product` and `Real World`.
        fraction: share of the pool to keep, sampled at random.
        seed: seed of that sample, independent of the training seed.
        by_domain: the domains own the samples as clients.
    """

    root: str = "data"
    domains: tuple[Domain, ...] = DOMAINS
    fraction: float = 1.0
    seed: int = 0
    by_domain: bool = False

    num_classes = NUM_CLASSES

    def __post_init__(self) -> None:
        require(
            bool(self.domains) and set(self.domains) <= set(DOMAINS),
            f"--data.dataset.domains is {list(self.domains)}; choose some of {', '.join(map(repr, DOMAINS))}",
        )
        check_settings(self, prefix=PLACE, fraction="(0, 1]", seed=ANY_SEED)

    def load(self) -> Samples:
        path = given_path(self.root, "--data.dataset.root") / FEATURES
        require(
            path.is_file(),
            f"--data.dataset.root {self.root}: OfficeHome has no {FEATURES} there; correct the folder, or make the "
            f"file from the images by python scripts/office_home_features.py {self.root}",
        )
        arrays = read_npz(path, ARRAYS, ())
        _check(arrays, path)
        rows = np.flatnonzero(np.isin(arrays["domain"], [DOMAINS.index(name) for name in self.domains]))
        require(rows.size > 0, f"{path}: has no image of --data.dataset.domains {list(self.domains)}; choose others")
        rows = rows[draw_subsample(len(rows), self.fraction, self.seed)]
        x, y = input_array(arrays["x"])[rows], label_array(arrays["y"])[rows]
        if not self.by_domain:
            return Samples(x, y)
        numbers, owner = np.unique(arrays["domain"][rows], return_inverse=True)
        return Samples(x, y, owner, [DOMAINS[number] for number in numbers])


def _check(arrays: dict[str, np.ndarray], path: Path) -> None:
    """Refuse arrays that are not features, classes and domains of Office-Home images, or of a part of them."""
    x, fix = arrays["x"], "write the file anew by scripts/office_home_features.py"
    table = x.ndim == 2 and x.shape[1] == NUM_FEATURES and x.dtype.kind == "f"
    require(table, f"{path}: x holds {x.dtype} of shape {list(x.shape)}, not {NUM_FEATURES} features per image; {fix}")
    for name, count in (("y", NUM_CLASSES), ("domain", len(DOMAINS))):
        values = arrays[name]
        require(
            values.shape == (len(x),) and values.dtype.kind in "iu",
            f"{path}: {name} holds {values.dtype} of shape {list(values.shape)}, not an integer for each of "
            f"{len(x)} images; {fix}",
        )
        inside = values.size == 0 or (int(values.min()) >= 0 and int(values.max()) < count)
        require(inside, f"{path}: {name} holds a number outside 0..{count - 1}; {fix}")
    num_classes, domains = len(np.unique(arrays["class_names"])), arrays["domain_names"].tolist()
    require(num_classes == NUM_CLASSES, f"{path}: names {num_classes} classes, Office-Home has {NUM_CLASSES}; {fix}")
    require(domains == list(DOMAINS), f"{path}: domain_names are {domains}, not {list(DOMAINS)}; {fix}")
