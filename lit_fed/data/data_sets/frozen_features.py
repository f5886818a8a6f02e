"""Features of images under a frozen body, which other images of the same data have trained."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everybody knows

from lit_fed.core.types import Population, Split
from lit_fed.data.data_sets.base import (
    ANY_SEED,
    PLACE,
    PooledDataSet,
    Samples,
    draw_subsample,
    input_array,
    label_array,
    require,
    say,
)
from lit_fed.errors import ConfigError, check_settings

__all__ = ["FrozenFeatures", "RowFeatures"]

BATCH = 64
PEAK_RATE = 0.05
SMALLEST = 16
"""Pixels of an image that LeNet-5 reads, each way."""

DEAD = 1e-3
"""Units with a smaller deviation, which the body hardly uses, are not scaled: other images would be large numbers."""

FORWARD = 1000
"""Images whose features are computed at a time."""


@dataclass(frozen=True)
class FrozenFeatures(PooledDataSet):
    """Features of images x [n, 84] float32, for a head that is trained alone (linear probing).

    A LeNet-5 is trained on a share of the images, which belong to no client. All of it but the last layer makes the
    features of the other images, standardised by the body's own. It is trained anew in every process, on one thread: a
    minute for 30,000 images of CIFAR-10. Digests of a benchmark's samples are those of the images, since processors
    round differently. An exported program takes features, not images.

    Args:
        dataset: pooled images with a class each, of 16 pixels or more each way, such as `CIFAR10`.
        body_fraction: share of the images that train the body, drawn at random.
        body_epochs: passes over them: SGD with momentum 0.9, weight decay 5e-4, batches of 64, and a rate that falls
            from 0.05 to 0 along a cosine.
        seed: seed of that draw, the body's first weights and its batches, independent of the training seed.
    """

    dataset: PooledDataSet
    body_fraction: float = 0.5
    body_epochs: int = 10
    seed: int = 0

    num_classes = property(lambda self: self.dataset.num_classes)

    def __post_init__(self) -> None:
        check_settings(self, prefix=PLACE, body_fraction="(0, 1)", body_epochs=">= 1", seed=ANY_SEED)

    def prepare(self) -> None:
        with _own_place():
            self.dataset.prepare()

    def load(self) -> Samples:
        """The images that do not train the body; `x` [n] numbers their rows, until they are encoded."""
        with _own_place():
            pool = self.dataset.load()
        place, name = f"{PLACE}.dataset", type(self.dataset).__name__
        require(
            pool.x.ndim == 4 and min(pool.x.shape[2:]) >= SMALLEST and pool.encode is None and pool.inputs is None,
            f"{place} {name} has no images of one size, {SMALLEST} pixels or more each way; give such as CIFAR10",
        )
        require(
            pool.y.ndim == 1 and pool.y.dtype.kind in "iu",
            f"{place} {name} has no class for each image; give such as CIFAR10",
        )
        kept = ~draw_subsample(len(pool.y), self.body_fraction, self.seed)
        parts = int((~kept).sum()), int(kept.sum())
        why = f"{parts[0]} of {len(kept)} images for the body and {parts[1]} for clients, who need 2 and 1"
        require(parts[0] > 1 and parts[1] > 0, f"{PLACE}.body_fraction {self.body_fraction} leaves {why}; give another")
        say(f"FrozenFeatures trains the body on {parts[0]:,} images, {self.body_epochs} times")
        x, y = torch.from_numpy(input_array(pool.x)).float(), torch.from_numpy(label_array(pool.y))
        with _one_thread():
            body = _trained_body(x[~kept], y[~kept], self.body_epochs, self.seed)
            own = _features(body, x[~kept])
            std = own.std(0)
            features = (_features(body, x[kept]) - own.mean(0)) / torch.where(std > DEAD, std, 1)
        return pool._replace(
            x=np.arange(kept.sum()), y=pool.y[kept], owner=None if pool.owner is None else pool.owner[kept],
            split=None if pool.split is None else pool.split[kept],
            encode=RowFeatures(features), ids=_ids(pool.x[kept]),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class RowFeatures:
    """Replaces numbers of rows by features."""

    features: Tensor  # [n, 84]

    def __call__(self, seen: Population, unseen: Population | None) -> tuple[Population, Population | None]:
        """Populations with features as inputs."""
        return seen.with_splits(self._encoded), None if unseen is None else unseen.with_splits(self._encoded)

    def _encoded(self, split: Split) -> Split:
        return Split(self.features[split.x], split.y, split.offsets)


@contextmanager
def _own_place() -> Iterator[None]:
    """Errors of the images name the options that they have here."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(str(error).replace(f"{PLACE}.", f"{PLACE}.dataset.")) from error


def _ids(images: np.ndarray) -> np.ndarray:
    """Digests [n, 8] uint8 of images whose numbers are rounded, since normalisation rounds differently."""
    rounded = (np.round(image.astype(np.float64), 5) + 0.0 for image in images)  # + 0.0: there is one zero
    digests = (hashlib.blake2b(one.astype("<f8").tobytes(), digest_size=8).digest() for one in rounded)
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(len(images), 8)


def _trained_body(x: Tensor, y: Tensor, epochs: int, seed: int) -> nn.Module:
    """A LeNet-5 without its last layer, trained on images [n, C, H, W] with classes [n]."""
    from lit_fed.models.lenet import LeNet5

    rng = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = LeNet5(tuple(x.shape[1:]), int(y.max()) + 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=PEAK_RATE, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * -(-len(x) // BATCH))
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=rng).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(network(x[rows]), y[rows]).backward()
            optimizer.step()
            schedule.step()
    network.classifier[-1] = nn.Identity()
    return network.eval()


def _features(body: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([body(part) for part in x.split(FORWARD)])


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums do not depend on the number of cores."""
    number = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(number)
