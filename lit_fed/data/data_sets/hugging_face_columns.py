"""Columns of Hugging Face `datasets`: a frame for numbers, texts, labels and clients, and pixels of images."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from lit_fed.data.data_sets.base import picture_array, require, stacked_samples, with_words, without_ghostscript
from lit_fed.data.data_sets.rows import TableRows, is_numeric, joined, missing_values
from lit_fed.errors import ConfigError

__all__ = ["ColumnPart", "InputKind", "dense", "held_classes", "kind_of", "picture_column", "table_of"]

InputKind = Literal["image", "text", "numbers"]
"""Kind of an input column."""


NO_VALUE = "no value; fill it in, or leave the row out"


class ColumnPart(NamedTuple):
    """One split of a data set."""

    role: int  # 0 training, 1 validation, 2 test
    place: str  # name in messages
    rows: Any  # a `datasets.Dataset`


def kind_of(feature: Any) -> InputKind | None:
    """Kind of a column with this feature of `datasets` as inputs; None: cannot be an input."""
    if type(feature).__name__ == "Image":
        return "image"
    if getattr(feature, "dtype", None) in ("string", "large_string"):
        return "text"
    while hasattr(feature, "feature"):  # lists
        feature = feature.feature
    return "numbers" if str(getattr(feature, "dtype", "")).startswith(("int", "uint", "float", "bool")) else None


def table_of(parts: list[ColumnPart], columns: list[str]) -> TableRows:
    """Columns of all splits, one after another; rows are counted from 0, as in `datasets`."""
    import pandas as pd

    frames = [part.rows.select_columns(columns).to_pandas() for part in parts]
    for frame in frames:
        for name in columns:
            if str(frame[name].dtype) not in ("object", "category") and not is_numeric(frame[name]):
                frame[name] = pd.Series(list(frame[name]), dtype=object)  # arrays of `datasets` cannot be joined
    return joined([part.place for part in parts], frames, first=0)


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


def picture_column(parts: list[ColumnPart], name: str, size: tuple[int, int] | None) -> np.ndarray:
    """A column of images, [n, channels, height, width] uint8.

    Raises:
        ConfigError: naming the row of an image that is missing, cannot be decoded or has a different size.
    """
    without_ghostscript()
    arrays, places = [], []
    for part in parts:
        alone, total = part.rows.select_columns([name]).with_format(None), len(part.rows)
        for row in with_words(range(total), total, part.place):
            places.append(f"{part.place}: row {row}, column {name!r}")
            try:
                image = alone[row][name]
            except Exception as error:  # Pillow raises many types on damaged images
                raise ConfigError(
                    f"{places[-1]} cannot be decoded ({error}); replace it, or leave the row out"
                ) from error
            require(image is not None, f"{places[-1]}: {NO_VALUE}")
            arrays.append(picture_array(image, size, places[-1]))
    return stacked_samples(arrays, places, fix="set --data.dataset.image_size")
