"""A cut of a benchmark's task: clients, unseen clients and stratified splits of samples, and digests of them all."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
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

__all__ = ["Cut", "CutClients", "forget_data", "samples_digest", "systematic"]

VAL, TEST = 0.2, 0.2
"""Shares of each client's samples for validation and test."""

UNSEEN = 0.2
"""Share of the clients that are unseen."""

DECIMALS = 5
"""Fractions are rounded for a sample's id: drawn samples differ in their last bits between processors."""

HEX = 16
"""Digits that are kept of a client's digest."""

SPLITS = ("train", "val", "test")


class CutClients(NamedTuple):
    """The clients of a cut and their samples, as a task's file names them."""

    digests: dict[str, list[str]]  # of the ids of training, validation and test samples, by client
    test_samples: dict[str, int]  # number, by client
    unseen: list[str]

    def of(self, population: str) -> list[str]:
        """Sorted names of a population of a record: `seen`, or `unseen_...`."""
        return sorted(name for name in self.digests if (name in self.unseen) == (population != "seen"))


@dataclass(frozen=True)
class Cut(PooledDataSet):
    """The clients of one cut, as the protocol divides them; all samples are pooled first.

    Quantities are standardised by the training labels of the seen clients.

    Args:
        dataset: the data.
        partition: divides samples without natural clients.
        num_clients: clients of the partition.
        cut: number of the cut, the seed of all that is drawn here.
        most_clients: clients to keep, drawn from the cut; null: all.
        min_samples: clients with fewer samples are left out.
        leave_one_out: the unseen client of cut k is client k; else a fifth of the clients is drawn.
    """

    dataset: DataSet
    partition: Partition | None = None
    num_clients: int | None = None
    cut: int = 0
    most_clients: int | None = None
    min_samples: int = 10
    leave_one_out: bool = False

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


def samples_digest(digests: dict[str, list[str]]) -> str:
    """One digest of all clients of a cut."""
    lines = (f"{name} {' '.join(digests[name])}".encode() for name in sorted(digests))
    return _digest(lines)


def _digest(parts: Iterable[bytes]) -> str:
    return hashlib.sha256(b"\n".join(parts)).hexdigest()[:HEX]


# ---------------------------------------------------------------------- division
@lru_cache(maxsize=8)
def _cut(cut: Cut) -> Samples:
    """The samples of a cut; kept, since many runs of a process take the same."""
    samples = _pool(cut.dataset)
    rows, names = _clients(cut, samples)
    x, y = samples.x, samples.y
    if cut.partition is not None:
        x, y = cut.partition.altered(x, y, rows, cut.cut)
    numbers = np.flatnonzero([len(own) >= cut.min_samples for own in rows])
    require(len(numbers) > 1, f"{len(numbers)} clients have {cut.min_samples} samples; a cut needs at least two")
    if cut.most_clients is not None and cut.most_clients < len(numbers):
        rng = generator(cut.cut, 0, 0, "benchmark clients")
        numbers = np.sort(rng.choice(numbers, cut.most_clients, replace=False))
    rows, names = [rows[one] for one in numbers], [names[one] for one in numbers]
    kept = np.concatenate(rows)
    split = np.concatenate([_split(y[own], cut.cut, number) for number, own in enumerate(rows)])
    owner, unseen = np.repeat(np.arange(len(rows)), [len(own) for own in rows]), _unseen(cut, names)
    y = y[kept]
    if y.dtype.kind == "f":
        known = y[(split == 0) & ~np.isin(owner, [names.index(one) for one in unseen])].astype(np.float64)
        y = ((y - known.mean(0)) / known.std(0)).astype(np.float32)
    ids = None if samples.ids is None else samples.ids[kept]
    encode = samples.encode
    if isinstance(encode, TableEncoder):
        encode = replace(encode, label_scale=False)  # standardised above
    return samples._replace(
        x=x[kept], y=y, owner=owner, names=names, split=split, unseen=unseen, ids=ids, encode=encode
    )


def _clients(cut: Cut, samples: Samples) -> tuple[list[np.ndarray], list[str]]:
    """Rows and name of each client."""
    if samples.owner is None:
        require(cut.partition is not None, "the data have no natural clients; give the task a partition")
        assert cut.partition is not None
        rows = cut.partition(samples.y, cut.num_clients or 20, cut.cut)
        return rows, [str(number) for number in range(len(rows))]
    require(cut.partition is None, "the data have natural clients; leave the task's partition out")
    rows = Natural()(samples.y, 0, 0, samples.owner)
    owners = [int(samples.owner[own[0]]) for own in rows]
    return rows, [str(owner) if samples.names is None else samples.names[owner] for owner in owners]


def _unseen(cut: Cut, names: Sequence[str]) -> tuple[str, ...]:
    if cut.leave_one_out:
        require(cut.cut < len(names), f"cut {cut.cut} leaves out a client of its number, and there are {len(names)}")
        return (names[cut.cut],)
    number = max(1, whole_part(UNSEEN, len(names)))
    drawn = generator(cut.cut, 0, 0, "benchmark unseen").choice(len(names), number, replace=False)
    return tuple(names[one] for one in sorted(drawn.tolist()))


def _split(y: np.ndarray, seed: int, number: int) -> np.ndarray:
    """The split of each sample of a client, [n]: at random within each class, quantities at random."""
    rng = generator(seed, 0, number, "benchmark split")
    order = rng.permutation(len(y))
    if y.ndim == 1 and y.dtype.kind in "iub":
        order = order[np.argsort(y[order], kind="stable")]
    split = np.zeros(len(y), dtype=np.int64)
    test = systematic(len(y), TEST, rng.random())
    split[order[test]] = SPLITS.index("test")
    rest = order[~test]
    split[rest[systematic(len(rest), VAL / (1 - TEST), rng.random())]] = SPLITS.index("val")
    return split


def systematic(number: int, share: float, start: float) -> np.ndarray:
    """A systematic sample, [n] bool: each interval of the list has its share, up to one element.

    Example:
        >>> systematic(10, 0.2, 0.5).nonzero()[0]
        array([2, 7])
    """
    reached = np.floor(np.arange(number + 1) * share + start + 1e-9)
    sampled: np.ndarray = np.diff(reached) > 0
    return sampled


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
    digests, test_samples = {}, {}
    for number, name in enumerate(samples.names or ()):
        own = np.flatnonzero(owner == number)
        rows = [own[split[own] == one] for one in range(len(SPLITS))]
        digests[name] = [_digest(_ids(x[each], samples.y[each])) for each in rows]
        test_samples[name] = len(rows[-1])
    return CutClients(digests, test_samples, list(samples.unseen))


def _ids(x: np.ndarray, y: np.ndarray) -> Iterator[bytes]:
    """Id of each sample: its inputs and its label, whatever its position in the data is."""
    inputs, labels = (_plain(one.reshape(len(one), -1)) for one in (x, y))
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
