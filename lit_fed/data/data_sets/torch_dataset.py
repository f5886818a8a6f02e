"""Map-style data sets of PyTorch, read once into arrays.

Annotations are not postponed, for the reason given in `base.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import Dataset, IterableDataset

from lit_fed.core.named_inputs import Given
from lit_fed.data.data_sets.base import (
    PLACE,
    Labels,
    PooledDataSet,
    Samples,
    given_array,
    matched_classes,
    picture_array,
    require,
    stacked_samples,
    with_words,
)
from lit_fed.data.data_sets.client_folder import ClientArrays, packed
from lit_fed.errors import ConfigError, check_settings
from lit_fed.system.machine import require_memory

__all__ = ["TorchDataset"]


@dataclass(frozen=True)
class TorchDataset(PooledDataSet):
    """Samples (x, y) of a `torch.utils.data.Dataset` with a length, given by class path or, in Python, an instance.

    Each sample is read once, so random augmentation in the data set is applied once. Inputs are tensors, arrays, Pillow
    images or numbers of one shape: uint8 is scaled to 0..1, other integer tensors and arrays are token ids. Labels are
    integers or vectors of integers (classes), or floats (regression). Class names come from the attribute `classes`, as
    in torchvision's data sets; the test source's classes are matched by name. Several inputs are a dict by the names of
    the parameters of the network's `forward`, or a tuple of tensors in their order; of these, token lists, and labels
    of their positions, may differ in length.

    Args:
        source: the data set; arguments of a class path follow `source.`.
        test_source: data set of the test samples; null: each client's samples are divided by the fractions of the data
            module.
        clients: attribute or method (without arguments) of the data set with the client of each sample, texts or
            integers; null: a partition divides the samples.
        labels: `auto`: integers are classes ([n, L]: of the positions of a sequence), floats quantities; `multilabel`:
            L labels 0 or 1 per sample; `regression`: quantities, also integers.
        num_classes: number of classes; null: that of `classes`, or one more than the largest training label.
    """

    source: Dataset  # without a parameter: jsonargparse takes no subclasses of Dataset[Any]
    test_source: Dataset | None = None
    clients: str | None = None
    labels: Labels = "auto"  # type: ignore[misc]  # the base promises one for the whole class
    num_classes: int | None = None  # type: ignore[misc]

    def __post_init__(self) -> None:
        check_settings(self, prefix=PLACE, num_classes=">= 2")
        for option, one in (("source", self.source), ("test_source", self.test_source)):
            sized = one is None or (hasattr(one, "__len__") and not isinstance(one, IterableDataset))
            require(
                sized,
                f"--data.dataset.{option} {type(one).__name__}: has no length; give a map-style data set, with __len__ "
                "and __getitem__",
            )

    def load(self) -> Samples:
        parts = [one for one in (self.source, self.test_source) if one is not None]
        each = []
        for option, one in zip(("source", "test_source"), parts, strict=False):
            x, y = _read(one)
            each.append(ClientArrays(option, {"x_train": x, "y_train": y}, {"train": f"{PLACE}.{option}"}))
        each = packed(each)
        x, y = (_alike([one.arrays[name] for one in each], parts) for name in ("x_train", "y_train"))
        owner, names = self._owners(parts)
        sizes: list[int] = [len(one) for one in parts]  # type: ignore[arg-type]
        roles = np.repeat([0, 2][: len(parts)], sizes)
        labels, class_names = self._named(parts, y)
        split = roles if roles.any() else None
        return Samples(np.concatenate(x), labels, owner, names, class_names, split=split, inputs=each[0].inputs)

    def _named(self, parts: list[Dataset[Any]], y: list[np.ndarray]) -> tuple[np.ndarray, tuple[str, ...] | None]:
        """The labels of all parts, numbered alike, and names of the classes or labels if the source has some."""
        lists = [_class_names(one, labels, self.labels) for one, labels in zip(parts, y, strict=True)]
        lists = lists[:1] * len(lists) if None in lists else lists  # without names, numbers are those of the source
        names, numbers = matched_classes([one or () for one in lists], f"{PLACE}.test_source")
        require(
            numbers[0] is None or self.labels != "multilabel",
            f"{PLACE}.test_source: lists the labels {', '.join(names)} otherwise than source; give both one order",
        )
        y = [
            one if own is None else np.where(one < 0, one, own[np.maximum(one, 0)])
            for one, own in zip(y, numbers, strict=True)
        ]
        return np.concatenate(y), names if len(names) > 1 else None

    def _owners(self, parts: list[Dataset[Any]]) -> tuple[np.ndarray | None, list[str] | None]:
        """The client of each sample [n], and the sorted names of the clients."""
        if self.clients is None:
            return None, None
        values = np.concatenate([_clients_of(one, self.clients) for one in parts])
        unique, owner = np.unique(values, return_inverse=True)
        return owner, [str(one) for one in unique]


def _read(dataset: Dataset[Any]) -> tuple[Any, Given]:
    """Read inputs [n, ...], or a dict of several, and labels [n] or [n, L].

    A `ConfigError` names an unreadable or different sample.
    """
    name, total = type(dataset).__name__, len(dataset)  # type: ignore[arg-type]
    require(total > 0, f"{name} has no samples; check where it reads them")
    x: list[Any] = []
    y: list[np.ndarray] = []
    for number in with_words(range(total), total, name):
        place = f"sample {number} of {name}"
        try:
            item = dataset[number]
        except ConfigError:
            raise
        except Exception as error:  # user code raises any type
            raise ConfigError(
                f"{place} cannot be read ({type(error).__name__}: {error}); correct the data set"
            ) from error
        if not isinstance(item, tuple | list) or len(item) != 2:
            size = f" of {len(item)}" if isinstance(item, tuple | list) else ""
            raise ConfigError(f"{place} is {type(item).__name__}{size}; give pairs (x, y)")
        x.append(_inputs(item[0], f"x of {place}"))
        y.append(_label(item[1], f"y of {place}"))
        if number == 0:
            first = x[0].values() if isinstance(x[0], dict) else x
            size = total * sum(one.nbytes for one in first)
            require_memory(size, f"{name}: {total} samples like the first", "give fewer, or smaller ones")
    places = [f"sample {number} of {name}" for number in range(total)]
    fix = "use one shape and type in the data set"
    if isinstance(x[0], dict):
        names = [tuple(one) if isinstance(one, dict) else ("x",) for one in x]
        other = next((number for number, one in enumerate(names) if {*one} != {*names[0]}), None)
        require(
            other is None,
            f"x of {places[other or 0]} has the inputs {', '.join(names[other or 0])}, the samples before it "
            f"{', '.join(names[0])}; give the same",
        )
        return {name: _together([one[name] for one in x]) for name in names[0]}, _together(y)
    return (
        stacked_samples(x, [f"x of {place}" for place in places], fix=fix),
        stacked_samples(y, [f"y of {place}" for place in places], fix=fix),
    )


def _together(arrays: list[np.ndarray]) -> Given:
    """The samples [n, ...] of one input; a list if their shapes differ."""
    return np.stack(arrays) if len({(one.shape, one.dtype) for one in arrays}) == 1 else arrays


def _inputs(value: Any, place: str) -> np.ndarray | dict[str, np.ndarray]:
    """The input of a sample, or its several inputs by name, of a tuple by position."""
    if isinstance(value, tuple) and any(np.ndim(one) for one in value):
        value = {str(position): one for position, one in enumerate(value)}
    if not isinstance(value, Mapping):
        return _array(value, place)
    return {
        str(name): _array(one, f"{name} in {place}") if _is_picture(one) else _numbers(one, f"{name} in {place}")
        for name, one in value.items()
    }


def _is_picture(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "PIL"


def _array(value: Any, place: str) -> np.ndarray:
    """Convert an input to a finite array with at least one axis."""
    if _is_picture(value):
        return picture_array(value, None, place)
    if isinstance(value, bool | int | float):
        value = float(value)
    array = _numbers(value, place)
    array = array.astype(np.float32) if array.dtype.kind in "fb" else array
    return array[None] if array.ndim == 0 else array


def _label(value: Any, place: str) -> np.ndarray:
    """A label as an array of any shape, int64 or float32."""
    array = _numbers(value, place)
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int64)


def _numbers(value: Any, place: str) -> np.ndarray:
    array = given_array(value, place)
    require(
        array.dtype.kind in "fiub",
        f"{place} is {type(value).__name__}; give a tensor, an array, a Pillow image or a number",
    )
    require(array.dtype.kind != "f" or bool(np.isfinite(array).all()), f"{place} contains NaN or infinity; correct it")
    return array


def _alike(arrays: list[np.ndarray], parts: list[Dataset[Any]]) -> list[np.ndarray]:
    kinds = [f"{array.dtype} of shape {list(array.shape[1:])}" for array in arrays]
    require(
        len(set(kinds)) == 1,
        f"samples of {type(parts[0]).__name__} are {kinds[0]}, those of test_source {kinds[-1]}; use one shape "
        "and type",
    )
    return arrays


def _clients_of(dataset: Dataset[Any], attribute: str) -> np.ndarray:
    """The client of each sample, [n] texts or integers."""
    name, option = type(dataset).__name__, f"--data.dataset.clients {attribute}"
    public = [one for one in dir(dataset) if not one.startswith("_")]
    is_public = hasattr(dataset, attribute) and not attribute.startswith("_")
    require(is_public, f"{option}: {name} has no such attribute; it has {', '.join(public)}")
    value = getattr(dataset, attribute)
    value = value() if callable(value) else value
    fix, total = "give a text or a whole number for each sample", len(dataset)  # type: ignore[arg-type]
    array = given_array(value, option)
    require(
        array.shape == (total,) and array.dtype.kind in "iuU",
        f"{option}: gives {array.dtype} of shape {list(array.shape)}, but {name} has {total} samples; {fix}",
    )
    return array


def _class_names(dataset: Dataset[Any], y: np.ndarray, labels: str) -> tuple[str, ...] | None:
    """Names of the classes or labels if the data set has enough of them, else None."""
    names = getattr(dataset, "classes", None)
    if not isinstance(names, tuple | list) or not all(isinstance(one, str) for one in names) or y.dtype.kind == "f":
        return None
    needed = y.shape[1] if labels == "multilabel" and y.ndim == 2 else int(y.max()) + 1
    return tuple(names) if len(names) >= needed else None
