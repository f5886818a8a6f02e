"""Data sets from memory: arrays of each client, or a data frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    default_collate,
)

from lit_fed.core.named_inputs import WHOLE, Given, Input, NamedInputs
from lit_fed.data.data_sets.base import Labels, PooledDataSet, Samples, given_array, names_of, require
from lit_fed.data.data_sets.client_folder import SPLITS, ClientArrays, check_alike, checked, packed
from lit_fed.data.data_sets.rows import TableRows, rows_of_frame
from lit_fed.data.data_sets.table import Table
from lit_fed.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["data_set_of_arrays", "data_set_of_frame", "data_set_of_loaders", "is_loader"]

GIVE = "give a dict of (x, y), or of data sets, by name"


@dataclass(frozen=True)
class _Arrays(PooledDataSet):
    """Samples in memory."""

    samples: Samples = field(repr=False, compare=False)
    labels: Labels = "auto"  # type: ignore[misc]  # the base promises one for the whole class
    num_classes: int | None = None  # type: ignore[misc]

    natural = True

    def load(self) -> Samples:
        return self.samples


@dataclass(frozen=True)
class _FrameTable(Table):
    """A table in memory."""

    frame: Any = field(default=None, repr=False, compare=False)

    def _read(self) -> TableRows:
        return rows_of_frame(self.frame)


def data_set_of_arrays(
    clients: Mapping[str, Any],
    unseen: Mapping[str, Any] | None = None,
    labels: Labels = "auto",
    num_classes: int | None = None,
) -> PooledDataSet:
    """A data set from the arrays of clients.

    Args:
        clients: name -> (inputs [n, ...], labels [n] or [n, L]), as NumPy arrays, tensors or lists. uint8 is scaled to
            0..1; text labels are class names. Several inputs are a dict of them by the names of the parameters of the
            network's `forward`, or a tuple in their order; of these, sequences may have different lengths, and labels
            of their positions, too.
        unseen: likewise, clients held out of training.
        labels: as in `ClientFolder`.
        num_classes: as in `ClientFolder`.

    Raises:
        ConfigError: naming the client with unusable arrays.
    """
    unseen = unseen or {}
    for one in (clients, unseen):
        require(isinstance(one, Mapping), f"clients are a {type(one).__name__}; {GIVE}")
    require(bool(clients), f"there are no clients; {GIVE}")
    pairs: dict[str, tuple[Any, Any]] = {}
    for name, one in (*clients.items(), *unseen.items()):
        fix = "is among clients and among unseen, or named by a text and a number; leave one of them out"
        require(str(name) not in pairs, f"client {str(name)!r} {fix}")
        pairs[str(name)] = _pair(str(name), one)
    class_names = _class_names(pairs)
    if class_names is not None:
        number = {name: position for position, name in enumerate(class_names)}
        pairs = {name: (x, np.array([number[one] for one in y.tolist()])) for name, (x, y) in pairs.items()}
    given = [
        ClientArrays(name, {"x_train": x, "y_train": y}, dict.fromkeys(SPLITS, f"client {name!r}"))
        for name, (x, y) in pairs.items()
    ]
    arrays = [checked(one) for one in packed(given)]
    check_alike(arrays)
    x, y = (np.concatenate([one.arrays[key] for one in arrays]) for key in ("x_train", "y_train"))
    owner = np.repeat(np.arange(len(arrays)), [len(one.arrays["y_train"]) for one in arrays])
    stored = arrays[0].stored["x_train"]
    names, kept_out = list(pairs), tuple(map(str, unseen))
    samples = Samples(x, y, owner, names, class_names, unseen=kept_out, stored_type=stored, inputs=arrays[0].inputs)
    return _Arrays(samples, labels, num_classes)


def is_loader(given: Any) -> bool:
    """Whether it is a data set or a loader of PyTorch."""
    return isinstance(given, Dataset | DataLoader)


def data_set_of_loaders(
    clients: Mapping[str, Any], unseen: Mapping[str, Any] | None = None, **options: Any
) -> PooledDataSet:
    """A data set from the data sets or loaders of PyTorch of clients.

    The samples of all clients are collated at once, so that sequences are padded to one length by the user's function.
    Of a loader, data set, `collate_fn` and the subset of a `SubsetRandomSampler` are taken, not its batches.

    Args:
        clients: name -> data set or loader.
        unseen: likewise, clients held out of training.
        options: as for `data_set_of_arrays`, for samples (x, y).

    Raises:
        ConfigError: naming the client whose samples are no dict or tuple of tensors.
    """
    given = {**clients, **(unseen or {})}
    for name, one in given.items():
        require(is_loader(one), f"client {name!r} is a {type(one).__name__}, and others are loaders; give a DataLoader")
    each = {str(name): _listed(f"client {name!r}", one) for name, one in given.items()}
    collates = [getattr(one, "collate_fn", None) or default_collate for one in given.values()]
    require(
        all(one == collates[0] for one in collates),
        "the loaders of clients have different collate_fn; give all of them the same function",
    )
    try:
        batch = collates[0]([sample for samples in each.values() for sample in samples])
    except Exception as error:  # user code raises any type
        raise ConfigError(
            f"the samples of all clients cannot be collated ({type(error).__name__}: {error}); give DataLoaders with a "
            "collate_fn that pads them to one length"
        ) from error
    sizes = [len(samples) for samples in each.values()]
    if isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[1], torch.Tensor):
        x, y = batch
        if isinstance(x, torch.Tensor | Mapping | tuple | list):
            cut = {name: (_rows(x, rows), y[rows]) for name, rows in zip(each, _spans(sizes), strict=True)}
            known = {name: cut[name] for name in map(str, clients)}
            return data_set_of_arrays(known, {name: cut[name] for name in map(str, unseen or {})}, **options)
    if isinstance(batch, torch.Tensor):
        batch = {WHOLE: batch}
    parts = batch if isinstance(batch, Mapping) else {str(place): one for place, one in enumerate(batch)}
    for name, one in parts.items():
        held = isinstance(one, torch.Tensor) and one.ndim > 0 and len(one) == sum(sizes)
        require(
            held,
            f"a batch holds {name!r}, a {type(one).__name__}, which is no tensor with a row for each sample; leave it "
            "out by a collate_fn",
        )
    arrays = {str(name): _in_full(one) for name, one in parts.items()}
    inputs = NamedInputs(
        tuple(
            Input(name, one.shape[1:], "bool" if one.dtype == bool else str(one.dtype)) for name, one in arrays.items()
        ),
        hold_labels=True,
    )
    rows = inputs.pack("a batch", arrays, signed=True)
    owner = np.repeat(np.arange(len(each)), sizes)
    samples = Samples(
        rows, np.zeros(len(rows), dtype=np.float32), owner, list(each), unseen=tuple(map(str, unseen or {})),
        stored_type=str(rows.dtype), inputs=inputs,
    )  # fmt: skip
    return _Arrays(samples)


def _listed(place: str, given: Any) -> list[Any]:
    """The samples of a data set or loader."""
    dataset: Any
    sampler: Any
    dataset, sampler = (given.dataset, given.sampler) if isinstance(given, DataLoader) else (given, None)
    if isinstance(dataset, IterableDataset):
        return list(dataset)
    batches = getattr(given, "batch_sampler", None)
    usual = batches is None or type(batches) is BatchSampler
    require(usual, f"{place} has a {type(batches).__name__}; give torch.utils.data.Subset in place of a batch_sampler")
    known = sampler is None or isinstance(sampler, SequentialSampler | RandomSampler | SubsetRandomSampler)
    require(known, f"{place} has a {type(sampler).__name__}; give torch.utils.data.Subset in place of a sampler")
    rows = sorted(sampler.indices) if isinstance(sampler, SubsetRandomSampler) else range(len(dataset))
    require(len(rows) > 0, f"{place} has no samples; leave it out")
    return [dataset[row] for row in rows]


def _spans(sizes: list[int]) -> list[slice]:
    ends = np.cumsum(sizes).tolist()
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _rows(given: Any, rows: slice) -> Any:
    if isinstance(given, Mapping):
        return {name: one[rows] for name, one in given.items()}
    return tuple(one[rows] for one in given) if isinstance(given, tuple | list) else given[rows]


def _in_full(given: torch.Tensor) -> np.ndarray:
    """Numbers as float32 or int64, truth values as they are."""
    if given.dtype == torch.bool:
        return given.numpy()
    return given.to(torch.float32 if given.is_floating_point() else torch.int64).numpy()


def data_set_of_frame(
    frame: pd.DataFrame,
    client: str | None,
    label: str,
    features: Sequence[str] | None = None,
    unseen: Sequence[str] = (),
    **table: Any,
) -> PooledDataSet:
    """A data set from the rows of a data frame.

    Args:
        frame: one row per sample.
        client: column with the client's name; None: a partition divides the rows.
        label: column with the labels.
        features: input columns; None: all others.
        unseen: names of clients held out of training.
        table: other fields of `Table`.

    Raises:
        ConfigError: if a field does not exist.
    """
    of_files = ("path", "unseen_path", "separator", "encoding", "decimal", "skip_lines")
    given = {name for name in Table.__dataclass_fields__ if name not in of_files}
    for name in table:
        require(name in given, f"a table from a frame has no field {name}; choose from {', '.join(sorted(given))}")
    unseen = unseen if isinstance(unseen, str) else tuple(map(str, unseen))
    chosen = None if features is None else names_of(features)
    return _FrameTable(
        client_column=client, label_column=label, feature_columns=chosen, unseen_clients=unseen, frame=frame, **table
    )


def _pair(name: str, given: Any) -> tuple[Any, Any]:
    require(
        isinstance(given, tuple | list) and len(given) == 2,
        f"client {name!r} is a {type(given).__name__}; give a pair of inputs and labels, (x, y)",
    )
    x, y = given
    place = f"client {name!r}: its samples"
    if not isinstance(x, Mapping | tuple):
        return given_array(x, place), given_array(y, place)
    parts = {str(key): one for key, one in (x.items() if isinstance(x, Mapping) else enumerate(x))}
    require(bool(parts), f"client {name!r} has an empty {type(x).__name__} of inputs; give its arrays by name")
    return {key: _samples(one, place) for key, one in parts.items()}, _samples(y, place)


def _samples(given: Any, place: str) -> Given:
    """One input, or the labels, of a client's samples: an array, or a list of arrays of different lengths."""
    is_list = isinstance(given, Iterable) and getattr(given, "ndim", 1) > 0
    if not is_list or isinstance(given, torch.Tensor) or (isinstance(given, np.ndarray) and not given.dtype.hasobject):
        return given_array(given, place)
    each = [given_array(one, place) for one in given]
    return np.stack(each) if len({one.shape for one in each}) == 1 else each


def _class_names(pairs: dict[str, tuple[Any, Any]]) -> tuple[str, ...] | None:
    """The classes in alphabetical order if labels are texts, else None."""
    text = {
        name: isinstance(y, np.ndarray) and all(isinstance(one, str) for one in y.flat)
        for name, (_, y) in pairs.items()
    }
    if not any(text.values()):
        return None
    other = next((name for name, is_text in text.items() if not is_text), None)
    require(other is None, f"client {other!r}: its labels are not texts, but those of others are; use one kind")
    return tuple(sorted({str(one) for _, y in pairs.values() for one in y.tolist()}))
