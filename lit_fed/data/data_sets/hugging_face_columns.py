"""Columns of Hugging Face `datasets`: a frame for numbers, texts, classes and clients, and pixels of images."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from lit_fed.data.data_sets.base import (
    matched_classes,
    picture_array,
    require,
    say_resized,
    stacked_samples,
    with_words,
    without_ghostscript,
)
from lit_fed.data.data_sets.rows import TableRows, is_numeric, joined, missing_values
from lit_fed.data.data_sets.texts import is_chat
from lit_fed.errors import ConfigError
from lit_fed.system.files import is_below

__all__ = [
    "ColumnPart", "InputKind", "declared_classes", "dense", "held_classes", "kind_of", "numbered", "picture_column",
    "table_of",
]  # fmt: skip

InputKind = Literal["image", "text", "classes", "numbers"]
"""Kind of an input column."""


NO_VALUE = "no value; fill it in, or leave the row out"

NUMBERS = ("int", "uint", "float", "bool", "decimal")
"""What the types of numbers begin with, by their names in Arrow."""


class ColumnPart(NamedTuple):
    """One split of a data set."""

    role: int  # 0 training, 1 validation, 2 test
    place: str  # name in messages
    rows: Any  # a `datasets.Dataset`


def kind_of(feature: Any) -> InputKind | None:
    """Kind of a column with this feature of `datasets` as inputs; None: cannot be an input."""
    if type(feature).__name__ in ("Image", "ClassLabel"):
        return "image" if type(feature).__name__ == "Image" else "classes"
    if getattr(feature, "dtype", None) in ("string", "large_string") or is_chat(feature):
        return "text"
    if declared_classes(feature) is not None:  # in lists: a set, or a class at each position?
        return None
    return "numbers" if str(getattr(_inner(feature), "dtype", "")).startswith(NUMBERS) else None


def _inner(feature: Any) -> Any:
    """The feature of the entries of a list, or of lists of lists."""
    while hasattr(feature, "feature"):
        feature = feature.feature
    return feature


def declared_classes(feature: Any) -> list[str] | None:
    """Names of the classes in a column; None: it holds none."""
    return getattr(_inner(feature), "names", None)


def table_of(parts: list[ColumnPart], columns: list[str]) -> tuple[TableRows, dict[str, tuple[str, ...]]]:
    """Columns of all splits, one after another, and the names of the classes in each column that declares some.

    Rows are counted from 0, as in `datasets`; classes are numbered alike in all splits.
    """
    import pandas as pd

    frames = [part.rows.select_columns(columns).to_pandas() for part in parts]
    for frame, part in zip(frames, parts, strict=True):
        for name in columns:
            if str(getattr(part.rows.features[name], "dtype", "")).startswith("decimal"):
                frame[name] = frame[name].astype(float)
            elif str(frame[name].dtype) not in ("object", "category") and not is_numeric(frame[name]):
                frame[name] = pd.Series(list(frame[name]), dtype=object)  # arrays of `datasets` cannot be joined
    classes = {}
    for name in columns:
        given = [declared_classes(part.rows.features[name]) for part in parts]
        lists = [one for one in given if one is not None]
        if lists:
            classes[name], numbers = matched_classes(lists, f"{parts[0].place}: column {name!r}")
            for frame, own in zip(frames, numbers, strict=True):
                if own is not None:
                    frame[name] = frame[name].map(lambda cell, own=own: own[np.asarray(cell, int)], na_action="ignore")
    return joined([part.place for part in parts], frames, first=0), classes


def numbered(rows: TableRows, column: str) -> np.ndarray:
    """A column of classes as their numbers, [n] int64.

    Raises:
        ConfigError: naming the row without a class.
    """
    numbers = dense(rows, column)
    rows.refuse(column, numbers < 0, "hides the class; choose other splits by --data.dataset.split", numbers)
    return numbers


def dense(rows: TableRows, column: str) -> np.ndarray:
    """A column of numbers, or of lists of one shape, [n, ...] in the type in which it is stored.

    Raises:
        ConfigError: naming the row that is empty, not finite, or of another shape than the first.
    """
    values, fix = rows.frame[column], "correct it, or leave the row out"
    rows.refuse(column, missing_values(values), NO_VALUE)
    if is_numeric(values):
        array = values.to_numpy()
    else:
        each = [_stacked(one) for one in values]
        shapes = np.array([one.shape != each[0].shape for one in each])
        rows.refuse(column, shapes, f"its shape differs from that of the first row, {list(each[0].shape)}; {fix}")
        array = np.stack(each)
    held = f"{rows.source}: column {column!r} holds {array.dtype}, not numbers of one shape; choose other columns"
    require(array.dtype.kind in "iufb", held)
    if array.dtype.kind == "f":
        rows.refuse(column, ~np.isfinite(array), f"is no number; {fix}", array)
    return array


def _stacked(given: Any) -> np.ndarray:
    """A list, or lists of lists, of one cell as an array; of objects if it holds no numbers of one shape."""
    array = np.asarray(given)
    if array.dtype != object or not array.ndim or not len(array):
        return array
    each = [_stacked(one) for one in array]
    return np.stack(each) if len({one.shape for one in each}) == 1 else array


def held_classes(rows: TableRows, column: str, num_classes: int) -> np.ndarray:
    """Classes listed in each row as 0 or 1, [n, C] int64."""
    given, known = rows.frame[column].to_numpy(), set(range(num_classes))
    rows.refuse(column, missing_values(rows.frame[column]), NO_VALUE)
    wrong = np.array([not set(classes) <= known for classes in given])
    rows.refuse(column, wrong, f"names a class outside 0 … {num_classes - 1}; correct it", given)
    held = np.zeros((len(given), num_classes), dtype=np.int64)
    for own, classes in zip(held, given, strict=True):
        own[classes] = 1
    return held


def picture_column(parts: list[ColumnPart], name: str, size: tuple[int, int] | None, folder: Path) -> np.ndarray:
    """A column of images, [n, channels, height, width] uint8.

    Args:
        parts: the splits.
        name: the column.
        size: height and width; None: that of the images.
        folder: of the data set, or its name on the hub; images that the table names by their paths lie below it, or in
            the caches of Hugging Face's libraries.

    Raises:
        ConfigError: naming the row of an image that is missing, cannot be decoded, lies elsewhere or has a different
            size.
    """
    without_ghostscript()
    datasets, hub = (importlib.import_module(one) for one in ("datasets", "huggingface_hub.constants"))
    caches = datasets.config.HF_DATASETS_CACHE, datasets.config.DOWNLOADED_DATASETS_PATH, hub.HF_HUB_CACHE
    arrays, places, sizes = [], [], []
    for part in parts:
        feature, total = part.rows.features[name], len(part.rows)
        alone = part.rows.select_columns([name]).with_format(None).cast_column(name, datasets.Image(decode=False))
        for row in with_words(range(total), total, part.place):
            places.append(f"{part.place}: row {row}, column {name!r}")
            stored = alone[row][name]
            require(stored is not None, f"{places[-1]}: {NO_VALUE}")
            file = str(stored["path"])
            is_here = "://" not in file and any(is_below(file, one) for one in (folder, *caches))
            require(
                stored["bytes"] is not None or is_here,
                f"{places[-1]}: names the file {file}, which is not in the data set's folder; store the image itself",
            )
            try:
                image = feature.decode_example(stored)
            except Exception as error:  # Pillow raises many types on damaged images
                raise ConfigError(
                    f"{places[-1]} cannot be decoded ({error}); replace it, or leave the row out"
                ) from error
            arrays.append(picture_array(image, size, places[-1]))
            sizes.append(image.size)
    if size is not None:
        say_resized(sizes, (size[1], size[0]))
    return stacked_samples(arrays, places, fix='to scale all images give --data.dataset.image_size "[32, 32]"')
