"""Dividing each client's samples into training, validation and test.

Every client has a stream of random numbers of its own, so its split does not depend on the other clients.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from lit_fed.core.seeds import generator
from lit_fed.core.types import Population, Split
from lit_fed.data.data_sets.base import input_array, label_array, make_split
from lit_fed.data.populations.drawn_clients import DrawnSplit

__all__ = ["SplitRows", "official_rows", "split_counts", "split_of", "split_rows", "with_validation"]


class SplitRows(NamedTuple):
    """Sample indices of one client in each split."""

    train: np.ndarray
    val: np.ndarray
    test: np.ndarray


def split_counts(num_samples: int, val_fraction: float, test_fraction: float) -> tuple[int, int, int]:
    """Training, validation and test samples of a client with `num_samples` samples.

    Parts are rounded half up, but a part that is asked for gets at least one sample: training goes first, then test,
    then validation.

    Example:
        >>> split_counts(10, 0.2, 0.25), split_counts(2, 0.2, 0.2), split_counts(1, 0.2, 0.2)
        ((5, 2, 3), (1, 0, 1), (1, 0, 0))
    """
    kept_for_val = int(val_fraction > 0 and num_samples >= 3)
    num_test = _part(num_samples, test_fraction, num_samples - 1 - kept_for_val)
    num_val = _part(num_samples, val_fraction, num_samples - 1 - num_test)
    return num_samples - num_val - num_test, num_val, num_test


def split_rows(rows: np.ndarray, val_fraction: float, test_fraction: float, seed: int, client_id: int) -> SplitRows:
    """Shuffle a client's samples and cut them into splits.

    Args:
        rows: sample indices [n] of the client.
        val_fraction: part of them for validation.
        test_fraction: part of them for testing.
        seed: seed of the splits.
        client_id: the client, whose stream of random numbers is its own.
    """
    shuffled = generator(seed, 0, client_id, "split").permutation(rows)
    num_train, num_val, _ = split_counts(len(rows), val_fraction, test_fraction)
    return SplitRows(*np.split(shuffled, [num_train, num_train + num_val]))


def official_rows(
    parts: list[np.ndarray], official: np.ndarray, val_fraction: float, test_fraction: float, seed: int
) -> list[SplitRows]:
    """Each client's samples by the official splits; a split that the data set lacks is cut from the training samples.

    Args:
        parts: sample indices of each client.
        official: split of each sample, [n]: 0 training, 1 validation, 2 test.
        val_fraction: part of a client's training samples for validation, where there are no official ones.
        test_fraction: the same for testing.
        seed: seed of the splits.

    Example:
        >>> rows = official_rows([np.array([0, 1]), np.array([2, 3])], np.array([0, 2, 0, 0]), 0.5, 0.5, seed=0)
        >>> [[len(split) for split in client] for client in rows]
        [[1, 0, 1], [1, 1, 0]]
    """
    val_fraction, test_fraction = (
        0.0 if (official == number).any() else fraction for number, fraction in ((1, val_fraction), (2, test_fraction))
    )
    found = []
    for client_id, part in enumerate(parts):
        train, val, test = (part[official[part] == number] for number in range(3))
        cut = split_rows(train, val_fraction, test_fraction, seed, client_id)
        found.append(SplitRows(cut.train, np.concatenate([cut.val, val]), np.concatenate([cut.test, test])))
    return found


def split_of(x: np.ndarray, y: np.ndarray, rows: list[np.ndarray]) -> Split:
    """The split in which each client owns some of the samples.

    Args:
        x: inputs [n, ...].
        y: labels [n] or [n, L].
        rows: sample indices of each client, T arrays.
    """
    order = np.concatenate(rows)
    return make_split(input_array(x[order]), label_array(y[order]), np.array([len(part) for part in rows]))


def with_validation(
    seen: Population, unseen: Population | None, val_fraction: float, seed: int
) -> tuple[Population, Population | None]:
    """Take validation samples from the training ones, where they are wanted and the data set has none.

    Args:
        seen: clients that take part in the training.
        unseen: clients that do not, or None.
        val_fraction: part of each client's training samples for validation.
        seed: seed of the splits.
    """
    own_validation = any(population.val.num_samples for population in (seen, unseen) if population is not None)
    if val_fraction == 0 or own_validation:
        return seen, unseen
    first_unseen = seen.train.num_clients  # unseen clients get streams of their own
    return (
        _cut_validation(seen, val_fraction, seed, 0),
        None if unseen is None else _cut_validation(unseen, val_fraction, seed, first_unseen),
    )


def _cut_validation(population: Population, val_fraction: float, seed: int, first_id: int) -> Population:
    """The same clients with a part of their training samples moved to the validation split."""
    train = population.train
    if isinstance(train, DrawnSplit):
        return _draw_validation(population, train, val_fraction, seed, first_id)
    bounds = train.offsets.tolist()
    rows = [
        split_rows(np.arange(start, end), val_fraction, 0.0, seed, first_id + client_id)
        for client_id, (start, end) in enumerate(pairwise(bounds))
    ]
    x, y = train.x.numpy(), train.y.numpy()
    new_train, new_val = split_of(x, y, [r.train for r in rows]), split_of(x, y, [r.val for r in rows])
    return population._replace(train=new_train, val=new_val)


def _draw_validation(
    population: Population, train: DrawnSplit, val_fraction: float, seed: int, first_id: int
) -> Population:
    """`_cut_validation` for clients that are drawn when they are needed: a draw for either split keeps its own rows."""
    sizes = train.sizes.tolist()

    def rows(position: int) -> SplitRows:
        return split_rows(np.arange(sizes[position]), val_fraction, 0.0, seed, first_id + position)

    counts = torch.tensor([split_counts(size, val_fraction, 0.0)[:2] for size in sizes])
    return population._replace(
        train=train.rows(lambda position: rows(position).train, counts[:, 0]),
        val=train.rows(lambda position: rows(position).val, counts[:, 1]),
    )


def _part(num_samples: int, fraction: float, most: int) -> int:
    """Half-up rounded part of the samples: 0 if none is wanted, else at least 1, but never more than `most`."""
    wanted = max(1, math.floor(fraction * num_samples + 0.5)) if fraction > 0 else 0
    return max(0, min(wanted, most))
