"""Training, validation and test split of each client.

Each client has its own random stream, so its split does not depend on the other clients, unless a person has samples at
several of them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from lit_fed.core.seeds import generator
from lit_fed.core.types import Population, Split
from lit_fed.data.data_sets.base import (
    MOST_CLASSES,
    Normalisation,
    input_array,
    label_array,
    make_split,
    say,
)
from lit_fed.data.populations.drawn_clients import DrawnSplit

__all__ = [
    "Division", "SplitKind", "SplitRows", "classes_of", "cut_part", "divided_rows", "numbers_of",
    "set_calibration_apart", "split_counts", "split_of", "split_rows", "stored_split", "with_part",
]  # fmt: skip


SplitKind = Literal["random", "stratified", "time"]
"""Division of a client's samples. Stratified: each split has about its share of each class. Time: the last are tested.
"""


class Division(NamedTuple):
    """Shares of each client's samples for validation and test, and how they are drawn."""

    val_fraction: float = 0.0
    test_fraction: float = 0.2
    seed: int = 0
    test_seed: int | None = None  # of the test samples; None: `seed`
    split: SplitKind = "random"
    calibration_fraction: float = 0.0  # of the training samples that are left

    @property
    def seed_of_clients(self) -> int:
        """Seed of the partition, of the unseen clients and of test samples."""
        return self.seed if self.test_seed is None else self.test_seed


class SplitRows(NamedTuple):
    """Sample indices of one client in each split."""

    train: np.ndarray
    val: np.ndarray
    test: np.ndarray


def split_counts(num_samples: int, val_fraction: float, test_fraction: float) -> tuple[int, int, int]:
    """Numbers of training, validation and test samples of a client with `num_samples` samples.

    Parts are rounded half up, and each requested part gets at least one sample, in the order training, test,
    validation.

    Example:
        >>> split_counts(10, 0.2, 0.25), split_counts(2, 0.2, 0.2), split_counts(1, 0.2, 0.2)
        ((5, 2, 3), (1, 0, 1), (1, 0, 0))
    """
    kept_for_val = int(val_fraction > 0 and num_samples >= 3)
    num_test = _part(num_samples, test_fraction, num_samples - 1 - kept_for_val)
    num_val = _part(num_samples, val_fraction, num_samples - 1 - num_test)
    return num_samples - num_val - num_test, num_val, num_test


def split_rows(
    rows: np.ndarray, val_fraction: float, test_fraction: float, seed: int, client_id: int,
    labels: np.ndarray | None = None, purpose: str = "split",
) -> SplitRows:  # fmt: skip
    """Shuffle a client's samples and cut them into splits.

    Stratified splits are systematic samples: the i-th of the n shuffled samples of a class stands at (i + u)/n, with u
    in [0, 1) drawn for the class, so that each split has about its share of each class.

    Args:
        rows: sample indices [n] of the client.
        val_fraction: share for validation.
        test_fraction: share for testing.
        seed: seed of the splits.
        client_id: selects the random stream.
        labels: class of each row [n], for stratified splits; None: they are random.
        purpose: selects the random stream, too.
    """
    shuffled = rows[_shuffled(len(rows), generator(seed, 0, client_id, purpose), labels)]
    num_train, num_val, _ = split_counts(len(rows), val_fraction, test_fraction)
    return SplitRows(*np.split(shuffled, [num_train, num_train + num_val]))


def _shuffled(number: int, random: np.random.Generator, labels: np.ndarray | None) -> np.ndarray:
    """The positions 0 … number − 1, shuffled; with labels [number], so that each part has its share of each class."""
    order = random.permutation(number)
    if labels is None:
        return order
    place = np.zeros(number)
    for one in np.unique(labels):
        own = np.flatnonzero(labels[order] == one)
        place[own] = (np.arange(len(own)) + random.random()) / len(own)
    return order[np.argsort(place, kind="stable")]


def classes_of(y: np.ndarray) -> np.ndarray | None:
    """Labels [n] by which splits are stratified; None if they are not a few classes, as with numbers or positions."""
    few = y.ndim == 1 and (y.dtype.kind in "iub" or len(np.unique(y)) <= MOST_CLASSES)
    if not few:
        say("--data.split is stratified, but the labels are no classes of a sample, so splits are random")
    return y if few else None


def divided_rows(
    parts: list[np.ndarray], split: np.ndarray | None, division: Division, labels: np.ndarray | None = None,
    groups: np.ndarray | None = None, order: np.ndarray | None = None,
) -> list[SplitRows]:  # fmt: skip
    """The splits of all clients: those of the data set, completed by shares.

    Test samples are drawn first, and validation samples from the rest. Samples of one person, and with the split `time`
    those of one time, stay together; as many are drawn as come closest to the share.

    Args:
        parts: sample indices of each client.
        split: [n] 0 training, 1 validation, 2 test, as the data set assigns samples, -1 where it leaves a client to the
            shares; None: it leaves all.
        division: shares for the splits to which the data set assigns no sample, and their seeds.
        labels: classes [n], for stratified splits.
        groups: the person of each sample [n].
        order: the time of each sample [n], for the split `time`.
    """
    shares = {1: division.val_fraction, 2: division.test_fraction}
    val, test = (0.0 if split is not None and (split == one).any() else share for one, share in shares.items())
    each = [(val, test)] * len(parts)
    if split is None:
        own = [[part, part[:0], part[:0]] for part in parts]
    else:
        own = [[part[split[part].clip(0) == one] for one in (0, 1, 2)] for part in parts]
        each = [(shares[1], shares[2]) if (split[part] < 0).any() else (val, test) for part in parts]
        if not any(map(any, each)):
            return [SplitRows(*rows) for rows in own]
    units, is_time = (order, True) if division.split == "time" else (groups, False)
    kinds: tuple[Units, Units] = ("last", "times") if is_time else ("persons", "persons")
    free = [rows for rows, _, _ in own]
    if units is None and division.test_seed is None:
        drawn = [
            split_rows(rows, *each[client], division.seed, client, None if labels is None else labels[rows])
            for client, rows in enumerate(free)
        ]
    else:
        counts = [split_counts(len(rows), *one) for rows, one in zip(free, each, strict=True)]
        _, of_val, of_test = zip(*counts, strict=True)
        streams = (division.seed_of_clients, "test samples"), (division.seed, "validation samples")
        rest, tested = _set_apart(free, of_test, streams[0], labels, units, kinds[0])
        kept, held = _set_apart(rest, of_val, streams[1], labels, units, kinds[1])
        drawn = list(map(SplitRows, kept, held, tested))
    return [
        SplitRows(one.train, np.concatenate([given[1], one.val]), np.concatenate([given[2], one.test]))
        for given, one in zip(own, drawn, strict=True)
    ]


def set_calibration_apart(
    drawn: list[SplitRows], division: Division, labels: np.ndarray | None = None, groups: np.ndarray | None = None,
    order: np.ndarray | None = None,
) -> tuple[list[SplitRows], list[np.ndarray] | None]:  # fmt: skip
    """Set a share of each client's training samples apart; arguments as of `divided_rows`. None: none is wanted."""
    if not division.calibration_fraction:
        return drawn, None
    counts = [split_counts(len(one.train), division.calibration_fraction, 0.0)[1] for one in drawn]
    is_time = division.split == "time"
    rest, apart = _set_apart(
        [one.train for one in drawn], counts, (division.seed, CALIBRATION), labels, order if is_time else groups,
        "times" if is_time else "persons",
    )  # fmt: skip
    return [one._replace(train=train) for one, train in zip(drawn, rest, strict=True)], apart


Units = Literal["persons", "times", "last"]
"""Units that are drawn whole: persons, the same at all clients; times of a client, by chance or the last ones."""


def _set_apart(
    parts: Sequence[np.ndarray], counts: Sequence[int], stream: tuple[int, str], labels: np.ndarray | None,
    units: np.ndarray | None, kind: Units,
) -> tuple[list[np.ndarray], list[np.ndarray]]:  # fmt: skip
    """Sample indices of each client that stay, and those that are set apart.

    Args:
        parts: sample indices of each client.
        counts: number of samples to set apart at each client.
        stream: seed and purpose of the draws.
        labels: classes [n], for stratified draws.
        units: the unit of each sample [n]; None: each is one.
        kind: of the units.
    """
    fates: dict[Any, bool] = {}  # of the persons of earlier clients; True: set apart
    stay, apart = [], []
    for client, (rows, wanted) in enumerate(zip(parts, counts, strict=True)):
        own = np.arange(len(rows)) if units is None else units[rows]
        names, first, place, sizes = np.unique(own, return_index=True, return_inverse=True, return_counts=True)
        order = np.arange(len(names))
        if kind != "last":
            random = generator(stream[0], 0, client, stream[1])
            order = _shuffled(len(names), random, None if labels is None else labels[rows][first])
        drawn = np.array([fates.get(one, False) for one in names.tolist()], dtype=bool)
        known = np.array([one in fates for one in names.tolist()], dtype=bool)
        order = order[~known[order]][::-1]
        reached = sizes[drawn].sum() + np.cumsum([0, *sizes[order]])
        least, most = int(wanted > 0 and not drawn.any()), len(order) - int(not (known & ~drawn).any())
        if least <= most:
            drawn[order[: least + int(np.abs(reached[least : most + 1] - wanted).argmin())]] = True
        if units is not None and kind == "persons":
            fates |= dict(zip(names.tolist(), drawn.tolist(), strict=True))
        stay.append(rows[~drawn[place]])
        apart.append(rows[drawn[place]])
    return stay, apart


def split_of(x: np.ndarray, y: np.ndarray, rows: list[np.ndarray], normalisation: Normalisation | None = None) -> Split:
    """The split in which each client owns some of the samples.

    Args:
        x: inputs [n, ...].
        y: labels [n] or [n, L].
        rows: sample indices of each client, T arrays.
        normalisation: constants for uint8 pixels.

    Returns:
        A split in memory, or one that reads on demand if pixels are in a memory-mapped file.
    """
    if isinstance(x, np.memmap) and x.dtype == np.uint8:
        return stored_split(x, y, rows, normalisation)
    order = np.concatenate(rows)
    return make_split(
        numbers_of(x[order], normalisation), label_array(y[order]), np.array([len(part) for part in rows])
    )


Part = Literal["val", "calibration"]
"""Samples that are cut from the training samples."""

CALIBRATION = "calibration samples"
"""Purpose of the stream that draws them."""


def with_part(
    seen: Population, unseen: Population | None, part: Part, fraction: float, seed: int, *, stratified: bool = False
) -> tuple[Population, Population | None]:
    """Cut samples from the training samples; validation samples only if the data set has none of its own.

    Args:
        seen: the training clients.
        unseen: clients held out of training, or None.
        part: what they are for.
        fraction: share of each client's training samples.
        seed: seed of the splits.
        stratified: by labels.
    """
    own_validation = any(population.val.num_samples for population in (seen, unseen) if population is not None)
    if fraction == 0 or (part == "val" and own_validation):
        return seen, unseen
    first_unseen = seen.train.num_clients  # unseen clients continue the numbering of streams
    seen = cut_part(seen, part, fraction, seed, range(first_unseen), stratified=stratified)
    if unseen is not None:
        streams = range(first_unseen, first_unseen + unseen.train.num_clients)
        unseen = cut_part(unseen, part, fraction, seed, streams, stratified=stratified)
    return seen, unseen


def cut_part(
    population: Population, part: Part, fraction: float, seed: int, client_ids: Sequence[int], *,
    stratified: bool = False, least: int = 1,
) -> Population:  # fmt: skip
    """Move a share of each client's training samples to another split.

    Args:
        population: T clients.
        part: the split.
        fraction: share of each client's training samples.
        seed: seed of the splits.
        client_ids: number of each client's random stream, T.
        stratified: by labels.
        least: a client whose share is fewer samples keeps them all.
    """
    train, purpose = population.train, "split" if part == "val" else CALIBRATION
    sizes = train.sizes.tolist()
    fractions = [fraction if split_counts(size, fraction, 0.0)[1] >= least else 0.0 for size in sizes]
    if isinstance(train, DrawnSplit):
        return _draw_part(population, train, part, purpose, fractions, seed, client_ids)
    labels = classes_of(train.y.numpy()) if stratified else None
    rows = [
        split_rows(
            np.arange(start, end), share, 0.0, seed, client_id, None if labels is None else labels[start:end], purpose
        )
        for client_id, share, (start, end) in zip(client_ids, fractions, pairwise(train.offsets.tolist()), strict=True)
    ]
    x, y = train.x.numpy(), train.y.numpy()
    new_train, cut = split_of(x, y, [r.train for r in rows]), split_of(x, y, [r.val for r in rows])
    return _with(population, new_train, part, cut)


def _draw_part(
    population: Population, train: DrawnSplit, part: Part, purpose: str, fractions: Sequence[float], seed: int,
    client_ids: Sequence[int],
) -> Population:  # fmt: skip
    """`cut_part` for samples generated on demand: each split keeps its own rows of the generated samples."""
    sizes = train.sizes.tolist()

    def rows(position: int) -> SplitRows:
        size, share = sizes[position], fractions[position]
        return split_rows(np.arange(size), share, 0.0, seed, client_ids[position], purpose=purpose)

    counts = torch.tensor([split_counts(*one, 0.0)[:2] for one in zip(sizes, fractions, strict=True)])
    new_train = train.rows(lambda position: rows(position).train, counts[:, 0])
    cut = train.rows(lambda position: rows(position).val, counts[:, 1])
    return _with(population, new_train, part, cut)


def _with(population: Population, train: Split, part: Part, cut: Split) -> Population:
    changed: dict[str, Any] = {"train": train, part: cut}
    return population._replace(**changed)


def _part(num_samples: int, fraction: float, most: int) -> int:
    """Share of the samples, rounded half up: 0 if the fraction is 0, else from 1 to `most`."""
    wanted = max(1, math.floor(fraction * num_samples + 0.5)) if fraction > 0 else 0
    return max(0, min(wanted, most))


ROWS_PER_READ = 4096


def numbers_of(x: np.ndarray, normalisation: Normalisation | None) -> np.ndarray:
    """Convert inputs for training: uint8 pixels are scaled to 0..1 and normalised; others see `input_array`.

    Args:
        x: inputs [n, ...].
        normalisation: constants of the data set, which has already applied them to inputs that are not uint8.
    """
    numbers = input_array(x)
    return normalisation.apply(numbers) if normalisation is not None and x.dtype == np.uint8 else numbers


def stored_split(
    x: np.memmap, y: np.ndarray, rows: list[np.ndarray], normalisation: Normalisation | None
) -> DrawnSplit:
    """A split of images in a file, read on demand.

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
    draw = partial(_read_client, x, y, rows, normalisation)
    return DrawnSplit(draw, sizes, *empty, f"stored pictures {digest.hexdigest()}")


def _read_client(
    x: np.memmap, y: np.ndarray, rows: list[np.ndarray], normalisation: Normalisation | None, number: int
) -> tuple[np.ndarray, np.ndarray]:
    return numbers_of(np.asarray(x[rows[number]]), normalisation), label_array(y[rows[number]])
