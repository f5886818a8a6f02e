"""Columns of Hugging Face `datasets` as arrays; errors name split, column and row."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from lit_fed.core.targets import IGNORED
from lit_fed.data.data_sets.base import picture_array, require, stacked_samples, with_words
from lit_fed.errors import ConfigError

__all__ = [
    "ColumnPart", "InputKind", "class_labels", "label_vectors", "number_columns", "picture_column", "text_column",
    "whose_rows",
]  # fmt: skip


InputKind = Literal["image", "text", "numbers"]
"""Kind of an input column."""


class ColumnPart(NamedTuple):
    """One split of a data set."""

    role: int  # 0 training, 1 validation, 2 test
    place: str  # name in messages
    rows: Any  # a `datasets.Dataset`

    def at(self, column: str, row: int) -> str:
        """Name of a cell in messages."""
        return f"{self.place}: column {column!r}, row {row}"

    def kind(self, column: str) -> InputKind | None:
        """Kind of a column as inputs; None: cannot be an input."""
        feature, stored = self.rows.features[column], _innermost(self._arrow_type(column))
        if type(feature).__name__ == "Image":
            return "image"
        if _is_text(self._arrow_type(column)):
            return "text"
        return "numbers" if _is_number(stored) else None

    def cells(self, column: str) -> Any:
        """Read a column as one Arrow array and refuse empty cells.

        Raises:
            ConfigError: naming the first empty cell.
        """
        table = self.rows.select_columns([column]).with_format("arrow")[:]
        cells = table[column].combine_chunks()
        _check_filled(cells, lambda row: self.at(column, row))
        return cells

    def _arrow_type(self, column: str) -> Any:
        return self.rows.features.arrow_schema.field(column).type


def _check_filled(cells: Any, at: Any) -> None:
    if cells.null_count:
        row = int(np.flatnonzero(np.asarray(cells.is_null()))[0])
        raise ConfigError(f"{at(row)} is empty; fill it, or leave the row out")


def _is_text(stored: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(stored) or types.is_large_string(stored))


def _is_number(stored: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(stored) or types.is_floating(stored) or types.is_boolean(stored))


def _is_list(stored: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(stored) or types.is_large_list(stored) or types.is_fixed_size_list(stored))


def _innermost(stored: Any) -> Any:
    """Element type of nested lists; other types are returned unchanged."""
    if hasattr(stored, "storage_type"):  # arrays of datasets
        return _innermost(stored.storage_type)
    return _innermost(stored.value_type) if _is_list(stored) else stored


# ---------------------------------------------------------------------- inputs
def number_columns(parts: list[ColumnPart], names: tuple[str, ...]) -> np.ndarray:
    """Columns of numbers side by side, [n, features] float32; a single column of lists as [n, ...] in its own type.

    A single column of integer lists holds token ids, or pixels if uint8.
    """
    each = [np.concatenate([_dense(part, name) for part in parts]) for name in names]
    if len(each) == 1 and each[0].ndim > 1:
        return each[0]
    return np.concatenate([one.reshape(len(one), -1).astype(np.float32) for one in each], axis=1)


def picture_column(parts: list[ColumnPart], name: str, size: tuple[int, int] | None) -> np.ndarray:
    """A column of images, [n, channels, height, width] uint8.

    Raises:
        ConfigError: naming the row of an image that cannot be decoded or has a different size.
    """
    arrays, places = [], []
    for part in parts:
        part.cells(name)
        alone, total = part.rows.select_columns([name]).with_format(None), len(part.rows)
        for row in with_words(range(total), total, part.place):
            places.append(part.at(name, row))
            try:
                arrays.append(picture_array(alone[row][name], size))
            except ConfigError as error:
                raise ConfigError(f"{places[-1]} {error}") from error
            except Exception as error:  # Pillow raises many types on damaged images
                raise ConfigError(
                    f"{places[-1]} cannot be decoded ({error}); replace it, or leave the row out"
                ) from error
    return stacked_samples(arrays, places, fix="set --data.dataset.image_size")


def text_column(parts: list[ColumnPart], name: str) -> list[str]:
    """A column of texts."""
    return [text for part in parts for text in part.cells(name).to_pylist()]


def _lengths(cells: Any) -> np.ndarray:
    from pyarrow import compute

    return np.asarray(compute.list_value_length(cells))


def _dense(part: ColumnPart, name: str) -> np.ndarray:
    """A column of numbers, or of lists of one length, as an array [n, ...]."""
    cells, num_rows = part.cells(name), len(part.rows)
    shape: list[int] = []
    while not _is_number(cells.type):
        if hasattr(cells.type, "storage_type"):
            cells = cells.storage
            continue
        require(
            _is_list(cells.type), f"{part.place}: column {name!r} holds {cells.type}, not numbers; choose other columns"
        )
        lengths = _lengths(cells)
        if len(lengths) and (lengths != lengths[0]).any():
            row = int(np.flatnonzero(lengths != lengths[0])[0])
            raise ConfigError(
                f"{part.at(name, row * num_rows // len(lengths))} holds a list of {lengths[row]} numbers, the "
                f"first row one of {lengths[0]}; make the lengths equal"
            )
        shape.append(int(lengths[0]) if len(lengths) else 0)
        cells = cells.flatten()
    size = max(int(np.prod(shape)), 1)
    _check_filled(cells, lambda entry: part.at(name, entry // size))
    values = cells.to_numpy(zero_copy_only=False)
    if values.dtype.kind == "f":
        _refuse_cell(~np.isfinite(values), values, part, name, size, "correct it, or leave the row out")
    return np.asarray(values.reshape(num_rows, *shape))


def _refuse_cell(wrong: np.ndarray, values: np.ndarray, part: ColumnPart, name: str, size: int, fix: str) -> None:
    """Refuse the first wrong entry, with `size` entries in each row; arrays [n · size]."""
    if wrong.any():
        entry = int(wrong.argmax())
        raise ConfigError(f"{part.at(name, entry // size)} is {values[entry]}; {fix}")


# ---------------------------------------------------------------------- labels and clients
def class_labels(parts: list[ColumnPart], name: str) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Labels of a column, one per row or a list: classes and their names, or floating targets.

    Raises:
        ConfigError: naming the row of a missing or unusable label.
    """
    feature = parts[0].rows.features[name]
    inner = getattr(feature, "feature", None)
    if type(inner).__name__ == "ClassLabel":
        raise ConfigError(
            f"{parts[0].place}: column {name!r} holds a list of classes for each row; for several labels per row "
            "set --data.dataset.labels multilabel"
        )
    if parts[0].kind(name) == "text":
        texts = np.array(text_column(parts, name), dtype=object)
        classes, y = np.unique(texts.astype(str), return_inverse=True)
        return y.astype(np.int64), tuple(classes.tolist())
    y = np.concatenate([_classes(part, name) for part in parts])
    names = getattr(feature, "names", None)
    return y, None if names is None else tuple(names)


def _classes(part: ColumnPart, name: str) -> np.ndarray:
    """Labels of one split; negative ones are refused."""
    values = _dense(part, name)
    if values.dtype.kind in "iu":
        fix = "-1 marks a hidden label: choose other splits by --data.dataset.split, or number the classes from 0"
        flat = values.reshape(-1)
        wrong = (flat < 0) & (flat != IGNORED) if values.ndim > 1 else flat < 0
        _refuse_cell(wrong, flat, part, name, max(values[:1].size, 1), fix)
    return values


def label_vectors(
    parts: list[ColumnPart], names: tuple[str, ...], *, multilabel: bool
) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Several labels per row, [n, L], and their names if known.

    Args:
        parts: the splits.
        names: a column of lists, or several columns of numbers.
        multilabel: labels are 0 or 1; otherwise regression targets.

    Raises:
        ConfigError: naming the row of a label other than 0 and 1, or columns of different kinds.
    """
    inner: Any = getattr(parts[0].rows.features[names[0]], "feature", None)
    if multilabel and len(names) == 1 and type(inner).__name__ == "ClassLabel":
        return np.concatenate([_held(part, names[0], len(inner.names)) for part in parts]), tuple(inner.names)
    each = [np.concatenate([_dense(part, name) for part in parts]) for name in names]
    y = each[0] if len(names) == 1 else np.stack(each, axis=1)
    if not multilabel:
        require(
            y.dtype.kind == "f",
            f"--data.dataset.label_column {', '.join(names)}: {parts[0].place} has integers there; for several "
            "labels 0 or 1 set --data.dataset.labels multilabel, for regression store floats",
        )
        return y, names
    require(
        y.ndim == 2,
        f"--data.dataset.labels multilabel: column {names[0]!r} of {parts[0].place} holds one number per row; give "
        "lists, or several columns",
    )
    start = 0
    for part in parts:
        rows = y[start : start + len(part.rows)].reshape(-1)
        start += len(part.rows)
        fix = "multilabel labels are 0 or 1; correct it"
        _refuse_cell((rows != 0) & (rows != 1), rows, part, ", ".join(names), y.shape[1], fix)
    return y.astype(np.int64), names if len(names) > 1 else None


def _held(part: ColumnPart, name: str, num_classes: int) -> np.ndarray:
    """Classes listed in each row as 0 or 1, [n, C] int64."""
    cells = part.cells(name)
    rows = np.repeat(np.arange(len(cells)), _lengths(cells))
    values = cells.flatten().to_numpy(zero_copy_only=False)
    wrong = (values < 0) | (values >= num_classes)
    if wrong.any():
        entry = int(wrong.argmax())
        raise ConfigError(
            f"{part.at(name, int(rows[entry]))} names class {values[entry]}, there are {num_classes}; correct it"
        )
    held = np.zeros((len(cells), num_classes), dtype=np.int64)
    held[rows, values] = 1
    return held


def whose_rows(parts: list[ColumnPart], name: str) -> tuple[np.ndarray, list[str]]:
    """The client of each row [n], and the sorted names of the clients."""
    values = np.concatenate([np.array(part.cells(name).to_pylist(), dtype=object) for part in parts])
    classes = getattr(parts[0].rows.features[name], "names", None)
    kinds = {type(one) for one in values}
    require(
        len(kinds) == 1 and kinds <= {int, str, bool},
        f"--data.dataset.client_column {name}: {parts[0].place} has {parts[0].rows.features[name]} there; store a "
        "text or a whole number",
    )
    unique, owner = np.unique(values.astype(str) if kinds == {str} else values.astype(np.int64), return_inverse=True)
    return owner, [str(one) if classes is None else classes[int(one)] for one in unique]
