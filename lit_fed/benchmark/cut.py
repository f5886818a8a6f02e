"""A cut of a benchmark's task: its clients, unseen clients and splits of samples, and digests of them all.

Clients, unseen clients and test samples are drawn once for all cuts of a task. A cut draws validation samples from the
others, and gives the training its seed.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from lit_fed.core.blocks import whole_part
from lit_fed.core.seeds import generator
from lit_fed.core.types import Population
from lit_fed.data.data_sets.base import DataSet, PooledDataSet, Samples, require
from lit_fed.data.data_sets.table_encoder import TableEncoder
from lit_fed.data.partitions.base import Partition
from lit_fed.data.partitions.natural import Natural
from lit_fed.data.populations.build import DEFAULT_NUM_CLIENTS
from lit_fed.data.populations.splits import Division, SplitKind, divided_rows

__all__ = ["Cut", "CutClients", "CutRows", "forget_data", "rows_of", "samples_digest"]

OF_TASK = 0
"""Seed of all that is drawn once for a task: partition, changes of labels, clients, unseen clients, test samples."""

VAL, TEST = 0.2, 0.2
"""Shares of each client's samples for validation and test."""

UNSEEN = 0.2
"""Share of the clients that are unseen."""

DECIMALS = 5
"""Fractions are rounded for a sample's id: drawn samples differ in their last bits between processors."""

HEX = 16
"""Digits that are kept of a client's digest."""

SPLITS = ("train", "val", "test")

VALIDATED, TESTED = 1, 2
"""Numbers of splits."""


class CutClients(NamedTuple):
    """The clients of a cut and their samples, as a task's file names them."""

    digests: dict[str, list[str]]  # of the ids of training, validation and test samples, by client
    test_samples: dict[str, int]  # number, by client
    test_persons: dict[str, int]  # number, by client; of a client without persons, its test samples
    unseen: list[str]

    @property
    def tested(self) -> tuple[list[str], dict[str, str], dict[str, int]]:
        """What all cuts of a task have in common: unseen clients, digests of test samples, numbers of persons."""
        return self.unseen, {name: one[TESTED] for name, one in self.digests.items()}, self.test_persons

    def of(self, population: str) -> list[str]:
        """Sorted names of a population of a record: `seen`, or `unseen_...`."""
        return sorted(name for name in self.digests if (name in self.unseen) == (population != "seen"))


@dataclass(frozen=True)
class Cut(PooledDataSet):
    """The clients of one cut, as the protocol divides them; all samples are pooled first.

    Splits are stratified by class. If the data name persons, all samples of one are in one split; if they name times,
    the last samples of a client are its test samples. Quantities are standardised by the training and validation
    labels of the seen clients, which are the same in all cuts.

    Args:
        dataset: the data.
        partition: divides samples without natural clients.
        num_clients: clients of the partition.
        cut: number of the cut, the seed of the validation samples.
        most_clients: clients to keep, drawn once; null: all.
        min_samples: clients with fewer samples are left out.
    """

    dataset: DataSet
    partition: Partition | None = None
    num_clients: int | None = None
    cut: int = 0
    most_clients: int | None = None
    min_samples: int = 10

    natural = True

    num_classes = property(lambda self: self.dataset.num_classes)
    labels = property(lambda self: self.dataset.labels)
    normalisation = property(lambda self: self.dataset.normalisation)

    def prepare(self) -> None:
        self.dataset.prepare()

    def load(self) -> Samples:
        """The samples of the clients of this cut, with owners, splits and unseen clients."""
        return _cut(self)

    def clients(self) -> CutClients:
        """The clients, with digests of their sample ids."""
        return _clients_of(self)

    def persons(self, client: str) -> np.ndarray:
        """The person of each test sample of a client, [n]; without persons each sample is one."""
        samples = _cut(self)
        own = np.flatnonzero((samples.owner == (samples.names or []).index(client)) & (samples.split == TESTED))
        return own if samples.groups is None else samples.groups[own]


def samples_digest(digests: dict[str, list[str]]) -> str:
    """One digest of all clients of a cut."""
    lines = (f"{name} {' '.join(digests[name])}".encode() for name in sorted(digests))
    return _digest(lines)


def _digest(parts: Iterable[bytes]) -> str:
    return hashlib.sha256(b"\n".join(parts)).hexdigest()[:HEX]


# ---------------------------------------------------------------------- division
class CutRows(NamedTuple):
    """The samples of a cut, by their positions in the data."""

    names: list[str]  # of the clients
    rows: list[np.ndarray]  # of each client
    split: np.ndarray  # [n] of all samples of the data: 0 training, 1 validation, 2 test
    unseen: tuple[str, ...]


def rows_of(cut: Cut) -> CutRows:
    """Draw clients, unseen clients and splits."""
    samples = _pool(cut.dataset)
    rows, names = _clients(cut, samples)
    require(samples.groups is None or samples.order is None, "the data name persons and times; leave one of them out")
    numbers = np.flatnonzero([len(own) >= cut.min_samples for own in rows])
    require(len(numbers) > 1, f"{len(numbers)} clients have {cut.min_samples} samples; a cut needs at least two")
    if cut.most_clients is not None and cut.most_clients < len(numbers):
        rng = generator(OF_TASK, 0, 0, "benchmark clients")
        numbers = np.sort(rng.choice(numbers, cut.most_clients, replace=False))
    rows, names = [rows[one] for one in numbers], [names[one] for one in numbers]
    has_classes = samples.y.ndim == 1 and samples.y.dtype.kind in "iub" and samples.order is None
    kind: SplitKind = "random" if samples.order is None else "time"
    division = Division(VAL, TEST, cut.cut, OF_TASK, kind)
    labels = samples.y if has_classes else None
    split = np.zeros(len(samples.y), dtype=np.int64)
    for name, own in zip(names, divided_rows(rows, None, division, labels, samples.groups, samples.order), strict=True):
        lacks = next((part for part, held in zip(SPLITS, own, strict=True) if not len(held)), "")
        fix = "leave it out of the data, or give the task larger min_samples"
        require(not lacks, f"client {name!r} has no {lacks} samples, since persons and times stay together; {fix}")
        split[own.val], split[own.test] = VALIDATED, TESTED
    number = max(1, whole_part(UNSEEN, len(names)))
    drawn = generator(OF_TASK, 0, 0, "benchmark unseen").choice(len(names), number, replace=False)
    return CutRows(names, rows, split, tuple(names[one] for one in sorted(drawn.tolist())))


@lru_cache(maxsize=8)
def _cut(cut: Cut) -> Samples:
    """The samples of a cut; kept, since many runs of a process take the same."""
    samples, (names, rows, split, unseen) = _pool(cut.dataset), rows_of(cut)
    x, y = samples.x, samples.y
    if cut.partition is not None:
        x, y = cut.partition.altered(x, y, _clients(cut, samples)[0], OF_TASK)
    kept = np.concatenate(rows)
    owner, split, y = np.repeat(np.arange(len(rows)), list(map(len, rows))), split[kept], y[kept]
    if y.dtype.kind == "f":
        known = y[(split != TESTED) & ~np.isin(owner, [names.index(one) for one in unseen])].astype(np.float64)
        y = ((y - known.mean(0)) / known.std(0)).astype(np.float32)
    encode = samples.encode
    if isinstance(encode, TableEncoder):
        encode = replace(encode, label_scale=False)  # standardised above
    ids, groups = (None if each is None else each[kept] for each in (samples.ids, samples.groups))
    return samples._replace(
        x=x[kept], y=y, owner=owner, names=names, split=split, unseen=unseen, ids=ids, encode=encode, groups=groups,
        order=None,
    )  # fmt: skip


def _clients(cut: Cut, samples: Samples) -> tuple[list[np.ndarray], list[str]]:
    """Rows and name of each client."""
    if samples.owner is None:
        require(cut.partition is not None, "the data have no natural clients; give the task a partition")
        assert cut.partition is not None
        rows = cut.partition(samples.y, cut.num_clients or DEFAULT_NUM_CLIENTS, OF_TASK)
        return rows, [str(number) for number in range(len(rows))]
    require(cut.partition is None, "the data have natural clients; leave the task's partition out")
    rows = Natural()(samples.y, 0, 0, samples.owner)
    owners = [int(samples.owner[own[0]]) for own in rows]
    return rows, [str(owner) if samples.names is None else samples.names[owner] for owner in owners]


def forget_data() -> None:
    """Read the data anew the next time: files may have changed."""
    for kept in (_pool, _cut, _clients_of):
        kept.cache_clear()


@lru_cache(maxsize=4)
def _pool(dataset: DataSet) -> Samples:
    """All samples of the data, as a pool."""
    loaded = dataset.load()
    if isinstance(loaded, Samples):
        return loaded
    require(loaded[1] is None, f"{type(dataset).__name__} has unseen clients of its own; a cut draws them")
    seen: Population = loaded[0]
    parts = [split for split in seen.splits if split.num_samples]
    x, y = (np.concatenate([getattr(split, name).numpy() for split in parts]) for name in ("x", "y"))
    owner = np.concatenate([np.repeat(np.arange(len(seen.names)), split.sizes.numpy()) for split in parts])
    return Samples(x, y, owner, list(seen.names), seen.class_names)


@lru_cache(maxsize=64)
def _clients_of(cut: Cut) -> CutClients:
    """The clients of a cut; the ids of one client's samples at a time are in memory."""
    samples = _cut(cut)
    x, owner, split = _raw(samples), samples.owner, samples.split
    assert owner is not None
    assert split is not None
    digests, test_samples, test_persons = {}, {}, {}
    for number, name in enumerate(samples.names or ()):
        own = np.flatnonzero(owner == number)
        rows = [own[split[own] == one] for one in range(len(SPLITS))]
        digests[name] = [_digest(_ids(x[each], samples.y[each])) for each in rows]
        test_samples[name], test_persons[name] = len(rows[-1]), len(np.unique(cut.persons(name)))
    return CutClients(digests, test_samples, test_persons, list(samples.unseen))


def _ids(x: np.ndarray, y: np.ndarray) -> Iterator[bytes]:
    """Id of each sample: its inputs and its label, whatever its position in the data is."""
    inputs, labels = (_plain(one.reshape(len(one), math.prod(one.shape[1:]))) for one in (x, y))
    return (one.tobytes() + other.tobytes() for one, other in zip(inputs, labels, strict=True))


def _raw(samples: Samples) -> np.ndarray:
    """Inputs before constants of training samples change them: of a table its cells."""
    if samples.ids is not None:
        return samples.ids
    if not isinstance(samples.encode, TableEncoder):
        return samples.x
    frame = samples.encode.rows.frame.iloc[samples.x][[one.name for one in samples.encode.columns.features]]
    texts = [str(name) for name, column in frame.items() if column.dtype.kind not in "biuf"]
    numbers = {name: [zlib.crc32(str(one).encode()) for one in frame[name]] for name in texts}
    return frame.assign(**numbers).to_numpy(dtype=np.float64)


def _plain(values: np.ndarray) -> np.ndarray:
    """Values whose bytes are the same on every processor."""
    if values.dtype.kind in "iub":
        return values.astype("<i8" if values.dtype.itemsize > 1 else values.dtype)
    return (np.round(values.astype(np.float64), DECIMALS) + 0.0).astype("<f8")  # + 0.0: there is one zero
