"""What a data set hands over: samples still to be divided among clients, or clients with splits of their own.

Subclasses are frozen dataclasses whose fields are their configuration; the bases are plain classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from lit_fed.core.errors import ConfigError
from lit_fed.core.types import Population, Split

__all__ = [
    "ClientDataSet",
    "DataSet",
    "PooledDataSet",
    "Samples",
    "empty_split",
    "input_array",
    "label_array",
    "make_split",
    "require",
]


class Samples(NamedTuple):
    """All samples of a pooled data set, in no particular order."""

    x: np.ndarray  # [n, ...]
    y: np.ndarray  # [n] or [n, L]
    owner: np.ndarray | None = None  # [n] int, the natural client of each sample
    names: list[str] | None = None  # names of the natural clients, indexed by `owner`


class DataSet(ABC):
    """Base of everything `--data.dataset` accepts.

    Attributes:
        num_classes: number of classes where the data set knows it; None: one more than the largest training label.
        natural: the data set itself says who the clients are, so a partition and a number of clients are refused.
    """

    num_classes: ClassVar[int | None] = None
    natural: ClassVar[bool] = False

    @abstractmethod
    def load(self) -> Samples | tuple[Population, Population | None]:
        """Read or generate the data."""


class PooledDataSet(DataSet):
    """One pool of samples that a partition divides among clients."""

    @abstractmethod
    def load(self) -> Samples:
        """All samples: x [n, ...], y [n] or [n, L]."""


class ClientDataSet(DataSet):
    """Clients with their own training and test samples."""

    natural: ClassVar[bool] = True

    @abstractmethod
    def load(self) -> tuple[Population, Population | None]:
        """The clients, and those the data set itself keeps unseen (None: it has no opinion)."""


def require(condition: bool, message: str) -> None:
    """Raise a `ConfigError` with this message unless the condition holds."""
    if not condition:
        raise ConfigError(message)


def input_array(x: np.ndarray) -> np.ndarray:
    """Inputs in the type they are trained in: uint8 / 255, bool and floating as float32, other integers as int64.

    Args:
        x: inputs [n, ...]; uint8 means pixels, other integers mean token ids.

    Returns:
        Array [n, ...], float32 or int64; the same object where nothing has to change.
    """
    if x.dtype == np.uint8:
        return np.asarray(np.divide(x, 255, dtype=np.float32))
    if x.dtype.kind in "iu":
        return x.astype(np.int64, copy=False)
    require(x.dtype.kind in "fb", f"inputs of type {x.dtype} cannot be trained on; store numbers (float, int or uint8)")
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes inf, which the callers report with its place
        return x.astype(np.float32, copy=False)


def label_array(y: np.ndarray) -> np.ndarray:
    """Labels as int64 (classes) or float32 (regression).

    Args:
        y: labels [n] or [n, L] of integer, bool or floating type.

    Returns:
        Array of the same shape.
    """
    require(y.dtype.kind in "fbiu", f"labels of type {y.dtype} cannot be trained on; number the classes from 0")
    with np.errstate(over="ignore"):  # as for inputs
        return y.astype(np.float32 if y.dtype.kind == "f" else np.int64, copy=False)


def make_split(x: np.ndarray, y: np.ndarray, sizes: np.ndarray) -> Split:
    """A split over these arrays, without a copy.

    Args:
        x: inputs [n, ...], client by client, float32 or int64.
        y: labels [n] or [n, L], int64 or float32.
        sizes: samples of each client [T], summing to n.

    Returns:
        The split of T clients.
    """
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Split(torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(offsets))


def empty_split(like: Split) -> Split:
    """A split of the same clients and sample shapes, without any sample."""
    return Split(like.x[:0], like.y[:0], torch.zeros_like(like.offsets))
