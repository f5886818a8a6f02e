"""Clients whose pictures lie in a file as bytes, read and turned into numbers when they are needed."""

from __future__ import annotations

import hashlib
from functools import partial

import numpy as np
import torch

from lit_fed.data.data_sets.base import Normalisation, input_array, label_array
from lit_fed.data.populations.drawn_clients import DrawnSplit

__all__ = ["numbers_of", "stored_split"]

ROWS_PER_READ = 4096


def numbers_of(x: np.ndarray, normalisation: Normalisation | None) -> np.ndarray:
    """Inputs as they are trained on: uint8 pixels scaled to 0..1 and then normalised, all others see `input_array`.

    Args:
        x: inputs [n, ...].
        normalisation: constants of the data set; inputs that are not uint8 have been normalised by it already.
    """
    numbers = input_array(x)
    return normalisation.apply(numbers) if normalisation is not None and x.dtype == np.uint8 else numbers


def stored_split(
    x: np.memmap, y: np.ndarray, rows: list[np.ndarray], normalisation: Normalisation | None
) -> DrawnSplit:
    """The split in which each client owns some of the pictures of a file.

    Args:
        x: pixels [n, ...] uint8.
        y: labels [n].
        rows: sample indices of each client, T arrays.
        normalisation: constants of the data set.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in rows:
        for lo in range(0, len(part), ROWS_PER_READ):
            digest.update(np.ascontiguousarray(x[part[lo : lo + ROWS_PER_READ]]).data)
        digest.update(np.ascontiguousarray(y[part]).data)
    sizes = torch.tensor([len(part) for part in rows], dtype=torch.int64)
    empty = torch.from_numpy(numbers_of(np.asarray(x[:0]), normalisation)), torch.from_numpy(label_array(y[:0]))
    draw = partial(_read, x, y, rows, normalisation)
    return DrawnSplit(draw, sizes, *empty, f"stored pictures {digest.hexdigest()}")


def _read(
    x: np.memmap, y: np.ndarray, rows: list[np.ndarray], normalisation: Normalisation | None, number: int
) -> tuple[np.ndarray, np.ndarray]:
    """One client's inputs and labels."""
    return numbers_of(np.asarray(x[rows[number]]), normalisation), label_array(y[rows[number]])
