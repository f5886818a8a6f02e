"""Rows of tables as one pandas frame: reading them, and what their cells are: numbers, texts, names."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lit_fed.data.data_sets.base import require
from lit_fed.errors import ConfigError
from lit_fed.system.files import given_path, require_file
from lit_fed.system.names import few

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "SHOWN", "TableRows", "as_numbers", "as_text", "is_numeric", "is_table_file", "joined", "missing_values",
    "read_rows", "rows_of_frame", "table_name",
]  # fmt: skip

ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".feather", ".xlsx")

SHOWN = 20
"""Number of columns listed in errors."""

MISSING = "an empty cell, NA, nan, null and None count as missing"


class TableRows(NamedTuple):
    """Rows of one or more tables, concatenated."""

    frame: pd.DataFrame  # rows numbered from 0
    source: str  # name of the tables in errors
    place: Callable[[int], str]  # row number -> name of the row in errors
    files: tuple[tuple[str, int], ...] = ()  # path of each file, and its number of rows

    def error(self, row: int, column: str, what: str) -> ConfigError:
        """An error about one value; `what` says what is wrong and the fix."""
        return ConfigError(f"{self.place(row)}, column {column!r}: {what}")

    def refuse(self, column: str, wrong: np.ndarray, what: str, values: np.ndarray | None = None) -> None:
        """Raise an error about the first wrong row, [n, ...] bool, beginning with its value if there are values."""
        if wrong.any():
            row, *inside = np.argwhere(wrong)[0].tolist()
            value = None if values is None else values[(row, *inside)]
            shown = "" if values is None else f"{value!r} " if isinstance(value, str) else f"{value} "
            raise self.error(row, column, shown + what)

    def require_columns(self, names: Sequence[str], option: str) -> None:
        """Raise a `ConfigError` naming option, missing column and existing columns."""
        there = [str(one) for one in self.frame.columns]
        for name in names:
            known = few(there, SHOWN)
            require(name in there, f"{option} {name!r}: {self.source} has no such column; it has {known}")

    def require_values(self, column: str) -> None:
        """Raise a `ConfigError` naming the first missing value of a column."""
        fix = f"fill it in, or leave the row out ({MISSING})"
        self.refuse(column, missing_values(self.frame[column]), f"no value; {fix}")

    def require_all_values(self, columns: Sequence[str], fix: str) -> None:
        """Raise a `ConfigError` naming all columns with missing values, and how many each lacks."""
        missing = {name: missing_values(self.frame[name]) for name in columns}
        missing = {name: mask for name, mask in missing.items() if mask.any()}
        if missing:
            name = min(missing, key=lambda one: int(missing[one].argmax()))
            counts = few((f"{one} in {mask.sum()}" for one, mask in missing.items()), SHOWN)
            raise self.error(
                int(missing[name].argmax()), name,
                f"no value; of {len(self.frame)} rows {counts} have none: {fix} ({MISSING})",
            )  # fmt: skip

    # ------------------------------------------------------------------ what cells are
    def texts(self, column: str, *, may_miss: bool = False) -> np.ndarray:
        """The values of a column as texts, [n] of objects; "" where one is missing and `may_miss`.

        Raises:
            ConfigError: naming the first row with a missing value.
        """
        values, missing = self._cells(column, may_miss)
        return np.array(["" if no else as_text(one) for one, no in zip(values, missing, strict=True)], dtype=object)

    def numbers(self, column: str, *, may_miss: bool = False) -> np.ndarray:
        """The values of a column as numbers, [n] float64; NaN where one is missing and `may_miss`.

        Raises:
            ConfigError: naming the first row whose value is missing, not a number or infinite.
        """
        values, missing = self._cells(column, may_miss)
        found = as_numbers(values).to_numpy(dtype=np.float64, na_value=np.nan)
        self.refuse(column, np.isnan(found) & ~missing, "is not a number; correct it", values.to_numpy())
        with np.errstate(over="ignore"):
            infinite = ~np.isfinite(found.astype(np.float32)) & ~missing
        self.refuse(column, infinite, "is too large for float32; correct or scale it", found)
        return found

    def holds_numbers(self, column: str) -> bool:
        """Whether a column of undeclared type holds numbers, and not texts.

        Raises:
            ConfigError: naming a text among numbers, or a number that is stored as text.
        """
        if is_numeric(self.frame[column]):
            return True
        values, missing = self._cells(column, may_miss=True)
        known = as_numbers(values).notna().to_numpy()
        if known.any():
            fix = "or name the column in category_columns (labels: set task classification)"
            wrong = ~known & ~missing
            self.refuse(column, wrong, f"is not a number, but other values are; correct it, {fix}", values.to_numpy())
            self.refuse(column, known, f"is a number stored as text; store numbers, {fix}", values.to_numpy())
        return False

    def named(
        self, column: str, names: Sequence[str] | None = None, wrong: str = "", *, may_miss: bool = False
    ) -> tuple[np.ndarray, tuple[str, ...]]:
        """A column of clients or classes: the number of each row's name, [n] int64, and the names.

        Args:
            column: one of the columns.
            names: the names; None: those of the column, in the order of the numbers that they are, or of the alphabet.
            wrong: what another name is not, and the fix.
            may_miss: a missing name is number 0.

        Raises:
            ConfigError: naming the first row whose name is missing, or none of the names.
        """
        found, values = self.texts(column, may_miss=may_miss), self.frame[column]
        if names is None:
            names = sorted(set(found), key=float if is_numeric(values) and values.dtype.kind != "b" else None)
        number = {name: position for position, name in enumerate(names)} | {"": 0}
        self.refuse(column, np.array([one not in number for one in found]), wrong, found)
        return np.array([number[one] for one in found]), tuple(names)

    def split_roles(self, column: str) -> np.ndarray:
        """0 for train, 1 for val and 2 for test in a split column, [n] int64, else a `ConfigError` names the row."""
        return self.named(column, ("train", "val", "test"), "is not a split; write train, val or test")[0]

    def _cells(self, column: str, may_miss: bool) -> tuple[pd.Series[Any], np.ndarray]:
        """The values of a column and which are missing; times, complex numbers and lists are refused."""
        import pandas as pd

        if not may_miss:
            self.require_values(column)
        values = self.frame[column]
        kind = values.dtype
        fix = (
            "name dates in date_columns, convert others to numbers or texts, or leave the column out by ignored_columns"
        )
        text = pd.api.types.is_string_dtype(kind) or pd.api.types.is_object_dtype(kind)
        known = text or isinstance(kind, pd.CategoricalDtype) or is_numeric(values)
        if not known or pd.api.types.is_complex_dtype(kind):
            raise ConfigError(f"{self.source}: column {column!r} holds {kind}; {fix}")
        if pd.api.types.is_object_dtype(kind):
            for row, one in enumerate(values):
                if one is not None and not isinstance(one, str | bool | int | float | np.generic):
                    raise self.error(row, column, f"a {type(one).__name__} is neither number nor text; {fix}")
        return values, missing_values(values)


def as_text(value: Any) -> str:
    """A value as text; 3.0 and 3 are the same, since missing values turn integers into floats."""
    whole = isinstance(value, float | np.floating) and float(value).is_integer()
    return str(int(value)) if whole else str(value)


def as_numbers(values: pd.Series[Any]) -> pd.Series[Any]:
    """The values that are numbers, or texts of numbers; the others are missing."""
    import pandas as pd

    return pd.to_numeric(values if is_numeric(values) else values.astype(object), errors="coerce")


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


# ------------------------------------------------------------------ reading
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
    frames = [_read_file(given_path(path, option), option, separator) for path, option in files]
    for (path, option), frame in zip(files, frames, strict=True):
        other = sorted(set(frames[0].columns) ^ set(frame.columns))
        require(
            not other,
            f"{option} {path}: its columns differ from those of {files[0][0]}: only one file has "
            f"{few(map(repr, other), SHOWN)}; make them equal",
        )
    return joined([path for path, _ in files], frames)


def joined(names: Sequence[str], frames: Sequence[pd.DataFrame], first: int = 1) -> TableRows:
    """The rows of several frames one after another.

    Args:
        names: names of the frames in errors.
        frames: the frames, with the same columns.
        first: number of the first row of each in errors.
    """
    import pandas as pd

    sizes = [len(frame) for frame in frames]
    starts = np.cumsum([0, *sizes])

    def place(row: int) -> str:
        part = int(np.searchsorted(starts, row, side="right")) - 1
        return f"{names[part]}: row {row - int(starts[part]) + first}"

    source = " and ".join(names) if len(names) < 4 else f"{names[0]} and {len(names) - 1} more"
    each = tuple(zip(names, sizes, strict=True))
    return TableRows(pd.concat(frames, ignore_index=True), source, place, each)


def rows_of_frame(frame: pd.DataFrame) -> TableRows:
    """The rows of a data frame, named in errors by its index.

    Raises:
        ConfigError: if it is not a frame, has no rows, or has duplicate column names.
    """
    import pandas as pd

    require(isinstance(frame, pd.DataFrame), f"the frame is a {type(frame).__name__}; give a pandas DataFrame")
    index = frame.index
    frame = _checked(frame.reset_index(drop=True), "the frame")
    return TableRows(frame, "the frame", lambda row: f"the frame: row {index[row]!r}")


def _read_file(path: Path, option: str, separator: str) -> pd.DataFrame:
    """Read one file; CSV as UTF-8, with or without a byte order mark."""
    import pandas as pd

    place = f"{option} {path}"
    require(is_table_file(path), f"{place}: not a table; give a file that ends in {', '.join(ENDINGS)}")
    require_file(path, f"correct {option}")
    readers: dict[str, Callable[[Path], pd.DataFrame]]
    readers = {".parquet": pd.read_parquet, ".feather": pd.read_feather, ".xlsx": pd.read_excel}
    try:
        if path.suffix.lower() in readers:
            frame = readers[path.suffix.lower()](path).reset_index(drop=True)
        else:
            separator = "\t" if table_name(path) + ".tsv" in (path.name, path.stem) else separator
            with warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header
                frame = pd.read_csv(path, sep=separator, encoding="utf-8-sig", low_memory=False, index_col=False)
    except pd.errors.EmptyDataError as error:
        raise ConfigError(f"{place}: the file is empty; it needs a line of column names, and rows") from error
    except Exception as error:  # parsers raise many types on damaged files
        said = str(error).strip().partition("\n")[0] or type(error).__name__
        fix = "correct the file"
        if isinstance(error, ImportError):
            fix = f"pip install {'openpyxl' if path.suffix.lower() == '.xlsx' else 'pyarrow'}"
        raise ConfigError(f"{place}: cannot be read ({said}); {fix}") from error
    frame = _checked(frame, place)
    only = frame.columns[0] if len(frame.columns) == 1 else ""
    other = next((one for one in (";", "\t", ",", "|") if one in only), None)
    require(
        other is None,
        f"{place}: its only column is {only!r}; values seem to be separated by {other!r}, so set "
        "--data.dataset.separator",
    )
    return frame


def _checked(frame: pd.DataFrame, source: str) -> pd.DataFrame:
    """A frame whose columns have texts as names, each once, and that has rows."""
    frame = frame.set_axis([str(one) for one in frame.columns], axis=1)
    require(len(frame) > 0, f"{source}: has no rows; add some")
    twice = frame.columns[frame.columns.duplicated()]
    require(not len(twice), f"{source}: two columns are called {twice[0] if len(twice) else ''!r}; rename one")
    return frame
