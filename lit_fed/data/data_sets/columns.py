"""Tables: reading rows, and encoding columns as inputs, one-hot categories and standardised numbers."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch

from lit_fed.core.types import Population, Split
from lit_fed.data.data_sets.base import Normalisation, require
from lit_fed.errors import ConfigError
from lit_fed.system.files import given_path, require_file

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Feature", "TableColumns", "TableEncoder", "TableRows", "as_text", "encode", "is_numeric", "is_table_file",
    "missing_values", "numbers", "read_rows", "require_values", "rows_of_frame", "split_names", "standardisation",
    "table_name", "texts",
]  # fmt: skip

MOST_CATEGORIES = 100
"""Maximum number of categories inferred for a text column."""

CONSTANT = 1e-7
"""A column counts as constant below this ratio of standard deviation and mean, near float32 resolution."""


class Feature(NamedTuple):
    """An input column."""

    name: str
    categories: tuple[str, ...] | None = None  # one-hot encoded; None: one numeric input

    @property
    def input_names(self) -> list[str]:
        """Names of its inputs."""
        return [self.name] if self.categories is None else [f"{self.name}={one}" for one in self.categories]


class TableColumns(NamedTuple):
    """How the columns of a table are encoded, so that further tables can be read alike."""

    features: tuple[Feature, ...]
    label_column: str
    client_column: str | None
    split_column: str | None
    separator: str
    unknown_categories: Literal["error", "zeros"]

    @property
    def input_names(self) -> list[str]:
        """Name of each input, [W]: the column, or column=category."""
        return [name for feature in self.features for name in feature.input_names]

    def plain(self) -> dict[str, Any]:
        """Strings and tuples for a checkpoint."""
        return self._asdict() | {"features": tuple(tuple(one) for one in self.features)}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> TableColumns:
        """The inverse of `plain`."""
        return cls(**plain | {"features": tuple(Feature(*one) for one in plain["features"])})


@dataclass(frozen=True)
class TableEncoder:
    """Encodes the rows of a table after the split.

    Categories, means and standard deviations are learned from the seen clients' training samples, or from public rows.

    Args:
        rows: the table.
        columns: encoding; categories of features are still empty, ().
        category_columns: columns that the user declared as categories.
        standardize: standardise numeric columns.
        public: rows to learn from in place of the training samples; None: none.
    """

    rows: TableRows
    columns: TableColumns
    category_columns: tuple[str, ...]
    standardize: bool
    public: TableRows | None = None

    def __call__(self, seen: Population, unseen: Population | None) -> tuple[Population, Population | None]:
        """Replace row numbers [n] by inputs [n, W]."""
        train_rows, ends = seen.train.x.numpy(), seen.train.offsets[1:-1].numpy()
        features = tuple(self._learned(one, train_rows) for one in self.columns.features)
        columns = self.columns._replace(features=features)
        inputs = encode(self.rows, columns, self.category_columns, "--data.dataset.")
        normalisation = None
        if self.standardize and any(one.categories is None for one in features):
            known = None if self.public is None else [encode(self.public, columns, self.category_columns)]
            normalisation = standardisation(known or np.split(inputs[train_rows], ends), features)
            inputs = normalisation.apply(inputs)
        learned = () if self.public is not None else _learned(features, normalisation)

        def encoded(population: Population) -> Population:
            splits = [
                Split(torch.from_numpy(inputs[split.x.numpy()]), split.y, split.offsets)
                for split in (population.train, population.val, population.test)
            ]
            train, val, test = splits
            return population._replace(
                train=train, val=val, test=test, columns=columns, normalisation=normalisation, learned=learned
            )

        return encoded(seen), None if unseen is None else encoded(unseen)

    def _learned(self, feature: Feature, train_rows: np.ndarray) -> Feature:
        """The feature with the categories of the training rows, in alphabetical order."""
        if feature.categories is None:
            return feature
        found = texts(self.public or self.rows, feature.name, mixed=feature.name in self.category_columns)
        categories = tuple(sorted(set(found if self.public is not None else found[train_rows])))
        require(
            len(categories) <= MOST_CATEGORIES or feature.name in self.category_columns,
            f"{self.rows.source}: column {feature.name!r} holds {len(categories)} different texts, each of which would "
            "become an input; leave the column out by ignored_columns, or name it in category_columns",
        )
        return feature._replace(categories=categories)


def _learned(features: Sequence[Feature], normalisation: Normalisation | None) -> tuple[str, ...]:
    """Names of the constants learned from training rows."""
    names = [one.name for one in features if one.categories is not None]
    said = (f"the categories of {', '.join(names)}",) if names else ()
    return said if normalisation is None else (*said, "means and standard deviations of inputs")


def encode(
    rows: TableRows, columns: TableColumns, mixed: Sequence[str] | None = None, option: str = "--"
) -> np.ndarray:
    """Inputs of all rows, before they are standardised.

    Args:
        rows: the table.
        columns: encoding.
        mixed: columns whose categories may mix numbers and texts; None: any.
        option: prefix of the table's options in error messages.

    Returns:
        Array [n, W] float32.

    Raises:
        ConfigError: naming row, column and value that is missing, not a number or an unknown category.
    """
    inputs = np.zeros((len(rows.frame), len(columns.input_names)), dtype=np.float32)
    start = 0
    for feature in columns.features:
        if feature.categories is None:
            inputs[:, start] = numbers(rows, feature.name)
            start += 1
            continue
        position = {name: start + index for index, name in enumerate(feature.categories)}
        found = texts(rows, feature.name, mixed=mixed is None or feature.name in mixed)
        for row, value in enumerate(found):
            if value in position:
                inputs[row, position[value]] = 1
            elif columns.unknown_categories == "error":
                raise rows.error(
                    row, feature.name, f"{value!r} is in no training sample of a seen client; correct it, or give "
                    f"{option}unknown_categories zeros",
                )  # fmt: skip
        start += len(position)
    return inputs


def standardisation(clients: Sequence[np.ndarray], features: Sequence[Feature]) -> Normalisation:
    """Means and standard deviations from sums over clients: no row leaves its client.

    Clients send n and Σ x, then, knowing the mean, Σ (x − mean)²; Σ x² would lose precision if the mean is large.

    Args:
        clients: inputs of each client, [n_t, W].
        features: the columns; one-hot inputs stay unchanged.

    Returns:
        Constants of each input; the standard deviation of constant columns is 1.
    """
    count = sum(len(x) for x in clients)
    mean = _summed([x.sum(0, dtype=np.float64) for x in clients]) / count
    std = np.sqrt(_summed([np.square(x - mean).sum(0) for x in clients]) / count)
    std[std <= CONSTANT * np.abs(mean)] = 1
    kept = np.array([one.categories is not None for one in features for _ in one.input_names])
    mean[kept], std[kept] = 0, 1
    return Normalisation(tuple(mean.tolist()), tuple(std.tolist()))


def _summed(messages: list[np.ndarray]) -> np.ndarray:
    """The server's sum of one array from each client."""
    return np.sum(messages, axis=0)  # type: ignore[no-any-return]


ENDINGS = (".csv", ".csv.gz", ".parquet")
SHOWN = 20
"""Number of columns listed in errors."""


class TableRows(NamedTuple):
    """Rows of one or more tables, concatenated."""

    frame: pd.DataFrame  # rows numbered from 0
    source: str  # name of the tables in errors
    place: Callable[[int], str]  # row number -> name of the row in errors

    def error(self, row: int, column: str, what: str) -> ConfigError:
        """An error about one value; `what` says what is wrong and the fix."""
        return ConfigError(f"{self.place(row)}, column {column!r}: {what}")

    def require_columns(self, names: Sequence[str], option: str) -> None:
        """Raise a `ConfigError` naming option, missing column and existing columns."""
        there = [str(one) for one in self.frame.columns]
        for name in names:
            more = f" and {len(there) - SHOWN} more" if len(there) > SHOWN else ""
            require(
                name in there,
                f"{option} {name!r}: {self.source} has no such column; it has {', '.join(there[:SHOWN])}{more}",
            )


def is_table_file(path: Path) -> bool:
    """Whether a path has a table's file extension."""
    return path.name.lower().endswith(ENDINGS)


def table_name(path: Path) -> str:
    """File name of a table without extension."""
    return next(path.name[: -len(one)] for one in ENDINGS if path.name.lower().endswith(one))


def read_rows(files: Sequence[tuple[str, str]], separator: str = ",") -> TableRows:
    """Read and concatenate tables.

    Args:
        files: path of each, and the option that named it.
        separator: separator of CSV values.

    Raises:
        ConfigError: naming a file that cannot be read, has no rows or has different columns than the first.
    """
    import pandas as pd

    frames = [_read_file(given_path(path, option), option, separator) for path, option in files]
    for (path, option), frame in zip(files, frames, strict=True):
        other = sorted(set(frames[0].columns) ^ set(frame.columns))
        require(
            not other,
            f"{option} {path}: its columns differ from those of {files[0][0]}: only one file has "
            f"{', '.join(map(repr, other[:SHOWN]))}; make them equal",
        )
    names, sizes = [path for path, _ in files], [len(frame) for frame in frames]
    starts = np.cumsum([0, *sizes])

    def place(row: int) -> str:
        file = int(np.searchsorted(starts, row, side="right")) - 1
        return f"{names[file]}: row {row - int(starts[file]) + 1}"

    return TableRows(pd.concat(frames, ignore_index=True), " and ".join(names), place)


def rows_of_frame(frame: pd.DataFrame, source: str = "the frame") -> TableRows:
    """The rows of a data frame, named in errors by its index.

    Raises:
        ConfigError: if it is not a frame, has no rows, or has duplicate column names.
    """
    import pandas as pd

    require(isinstance(frame, pd.DataFrame), f"{source} is a {type(frame).__name__}; give a pandas DataFrame")
    index = frame.index
    frame = frame.reset_index(drop=True)
    frame.columns = pd.Index([str(one) for one in frame.columns])
    _check_frame(frame, source)
    return TableRows(frame, source, lambda row: f"{source}: row {index[row]!r}")


def _read_file(path: Path, option: str, separator: str) -> pd.DataFrame:
    """Read one file; CSV as UTF-8, with or without a byte order mark."""
    import pandas as pd

    require(is_table_file(path), f"{option} {path}: not a table; give a file that ends in {', '.join(ENDINGS)}")
    require_file(path, f"correct {option}")
    try:
        if path.suffix.lower() == ".parquet":
            _require_pyarrow(path)
            frame = pd.read_parquet(path, engine="pyarrow").reset_index(drop=True)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header
                frame = pd.read_csv(path, sep=separator, encoding="utf-8-sig", low_memory=False, index_col=False)
    except ConfigError:
        raise
    except pd.errors.EmptyDataError as error:
        raise ConfigError(f"{option} {path}: the file is empty; it needs a line of column names, and rows") from error
    except Exception as error:  # parsers raise many types on damaged files
        said = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ConfigError(f"{option} {path}: cannot be read ({said}); correct the file") from error
    frame.columns = pd.Index([str(one) for one in frame.columns])
    only = frame.columns[0] if len(frame.columns) == 1 else ""
    other = next((one for one in (";", "\t", ",", "|") if one in only), None)
    require(
        other is None,
        f"{option} {path}: its only column is {only!r}; values seem to be separated by {other!r}, so set "
        "--data.dataset.separator",
    )
    _check_frame(frame, f"{option} {path}")
    return frame


def _check_frame(frame: pd.DataFrame, source: str) -> None:
    require(len(frame) > 0, f"{source}: has no rows; add some")
    twice = frame.columns[frame.columns.duplicated()]
    require(not len(twice), f"{source}: two columns are called {twice[0] if len(twice) else ''!r}; rename one")


def _require_pyarrow(path: Path) -> None:
    try:
        importlib.import_module("pyarrow")
    except ImportError as error:
        raise ConfigError(f'{path}: parquet files need the package pyarrow; pip install "pyarrow>=15"') from error


# ------------------------------------------------------------------ columns
def as_text(value: Any) -> str:
    """A value as text; 3.0 and 3 are the same, since missing values turn integers into floats."""
    whole = isinstance(value, float | np.floating) and float(value).is_integer()
    return str(int(value)) if whole else str(value)


def require_values(rows: TableRows, column: str) -> None:
    """Raise a `ConfigError` naming the first missing value of a column."""
    missing = missing_values(rows.frame[column])
    if missing.any():
        fix = "fill it in, or leave the row out (an empty cell, NA, nan, null and None count as missing)"
        raise rows.error(int(missing.argmax()), column, f"no value; {fix}")


def missing_values(values: pd.Series[Any]) -> np.ndarray:
    """Mask of missing values, [n] bool: None, NaN, or an empty text."""
    missing = values.isna().to_numpy(dtype=bool)
    if values.dtype.kind == "O":
        missing = missing | np.array([isinstance(one, str) and not one.strip() for one in values], dtype=bool)
    return missing


def is_numeric(values: pd.Series[Any]) -> bool:
    """Whether a column's type is numeric or boolean."""
    import pandas as pd

    return pd.api.types.is_numeric_dtype(values.dtype)


def texts(rows: TableRows, column: str, *, mixed: bool = False) -> np.ndarray:
    """The values of a column as texts, [n] of objects.

    Args:
        rows: the table.
        column: one of its columns.
        mixed: the user declared names, so that numbers and texts may be mixed.

    Raises:
        ConfigError: naming the first row with a missing value, or with a text among numbers.
    """
    require_values(rows, column)
    values = rows.frame[column]
    _check_kind(rows, column)
    found = np.array([as_text(one) for one in values], dtype=object)
    if not mixed and not is_numeric(values):
        wrong = np.array([not _is_number(one) for one in found])
        if not wrong.all():
            row = int(wrong.argmax()) if wrong.any() else 0
            raise rows.error(
                row, column, f"{found[row]!r} is not a number, but other values are; correct it, or name the column in "
                "category_columns (labels: set task classification)" if wrong.any() else
                f"{found[row]!r} is a number stored as text; store numbers, or name the column in "
                "category_columns (labels: set task classification)",
            )  # fmt: skip
    return found


def split_names(rows: TableRows, column: str) -> np.ndarray:
    """The values of a split column, [n] of objects: train, val or test, else a `ConfigError` names the row."""
    found = texts(rows, column, mixed=True)
    for row, value in enumerate(found):
        if value not in ("train", "val", "test"):
            raise rows.error(row, column, f"{value!r} is not a split; write train, val or test")
    return found


def numbers(rows: TableRows, column: str) -> np.ndarray:
    """The values of a column as numbers, [n] float64.

    Raises:
        ConfigError: naming the first row whose value is missing, not a number or infinite.
    """
    require_values(rows, column)
    _check_kind(rows, column)
    values = rows.frame[column]
    if not is_numeric(values):
        wrong = [not _is_number(one) for one in values]
        row = wrong.index(True) if any(wrong) else 0
        raise rows.error(row, column, f"{values.iloc[row]!r} is not a number; correct it")
    found: np.ndarray = values.to_numpy(dtype=np.float64)
    with np.errstate(over="ignore"):
        infinite = ~np.isfinite(found.astype(np.float32))
    if infinite.any():
        row = int(infinite.argmax())
        raise rows.error(row, column, f"{found[row]:g} is too large for float32; correct or scale it")
    return found


def _check_kind(rows: TableRows, column: str) -> None:
    """Refuse times, complex numbers and lists."""
    import pandas as pd

    values = rows.frame[column]
    kind = values.dtype
    fix = "convert them to numbers or texts, or leave the column out by ignored_columns"
    text = pd.api.types.is_string_dtype(kind) or pd.api.types.is_object_dtype(kind)
    known = text or isinstance(kind, pd.CategoricalDtype) or is_numeric(values)
    if not known or pd.api.types.is_complex_dtype(kind):
        raise ConfigError(f"{rows.source}: column {column!r} holds {kind}; {fix}")
    if pd.api.types.is_object_dtype(kind):
        for row, one in enumerate(values):
            if not isinstance(one, str | bool | int | float | np.generic):
                raise rows.error(row, column, f"a {type(one).__name__} is neither number nor text; {fix}")


def _is_number(text: Any) -> bool:
    try:
        float(text)
    except (TypeError, ValueError):
        return False
    return True
