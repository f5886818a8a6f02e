"""Rows of tables as one pandas frame: reading them, and what their cells are: numbers, texts, names."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lit_fed.data.data_sets.base import PLACE, require, say
from lit_fed.errors import ConfigError
from lit_fed.system.files import given_path, require_file
from lit_fed.system.foreign_files import MOST_TIMES, check_unpacked
from lit_fed.system.machine import memory_limited
from lit_fed.system.names import few

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "SHOWN", "Reading", "TableRows", "as_numbers", "as_text", "is_numeric", "is_table_file", "joined",
    "missing_values", "read_rows", "rows_of_frame", "table_name", "whole",
]  # fmt: skip

ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".feather", ".xlsx")

MOST_ROWS, FEW_CELLS = 2**20, 2**24
"""Rows of a sheet, by its format; cells of a sheet that may be empty, whatever the others are."""

SHOWN = 20
"""Number of columns listed in errors."""

MISSING = "an empty cell counts as missing, in inputs also NA, nan, null and None"

SIGN, UNIT = r"[-+\u2212]?\s*", r"(?:[€$£¥₹%‰]|EUR|USD|GBP|CHF|JPY)?"
MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"

NOTATIONS = (
    (
        r"(?i)(\d{4}([-./])\d\d?\2\d\d?|\d\d?([-./])\d\d?\3(\d\d){1,2})([T ].*)?|\d\d?:\d\d(:\d\d.*)?"
        rf"|\d\d?[-. ]+{MONTH}[-., ]+\d+|{MONTH}[. ]+\d\d?,? +\d+",
        "dates or times",
        "name dates in --data.dataset.date_columns, with --data.dataset.date_format %d.%m.%Y if the day is first",
    ),
    (
        rf"(?i){SIGN}{UNIT}\s*{SIGN}\d+([.,'\u2019\s]\d{{3}})*([.,]\d+)?\s*{UNIT}",
        "numbers in another notation",
        "write 1234.5, or set --data.dataset.decimal , for decimal commas of CSV and .xlsx files",
    ),
)
"""Texts that stand for quantities: pattern, name, and how they are read as such."""


class Reading(NamedTuple):
    """How the files of a table are read."""

    separator: str = ","  # of CSV values
    encoding: str = "utf-8-sig"  # of CSV files; with or without a byte order mark
    decimal: str = "."
    skip_lines: int = 0  # ahead of the header
    client: str | None = None  # column of names, which stay as they are written: 01 is not 1, NA is a name
    categories: Collection[str] = ()  # columns whose values stay as they are written
    label: str | None = None
    classes: Collection[str] | None = None  # known classes; None: NA is one if labels are texts


class TableRows(NamedTuple):
    """Rows of one or more tables, concatenated."""

    frame: pd.DataFrame  # rows numbered from 0
    source: str  # name of the tables in errors
    place: Callable[[int], str]  # row number -> name of the row in errors
    files: tuple[tuple[str, int], ...] = ()  # path of each file, and its number of rows
    origin: np.ndarray | None = None  # [n] each row's position among those that were read; None: all are there

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

    def taken(self, kept: np.ndarray) -> TableRows:
        """The rows of these sorted numbers [m]; errors name them as before."""
        ends = np.searchsorted(kept, np.cumsum([0, *(size for _, size in self.files)])).tolist()
        files = tuple((path, end - start) for (path, _), (start, end) in zip(self.files, pairwise(ends), strict=True))
        frame = self.frame.iloc[kept].reset_index(drop=True)
        origin = kept if self.origin is None else self.origin[kept]
        return self._replace(frame=frame, place=lambda row: self.place(int(kept[row])), files=files, origin=origin)

    # ------------------------------------------------------------------ what cells are
    def texts(self, column: str, *, may_miss: bool = False) -> np.ndarray:
        """The values of a column as texts, [n] of objects; "" where one is missing and `may_miss`.

        Raises:
            ConfigError: naming the first row with a missing value.
        """
        values, missing = self._cells(column, may_miss)
        cells = zip(values.astype(object), missing, strict=True)
        return np.array(["" if no else as_text(one) for one, no in cells], dtype=object)

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
        import pandas as pd

        if is_numeric(self.frame[column]):
            return True
        values, missing = self._cells(column, may_miss=True)
        known = as_numbers(values).notna().to_numpy()
        if known.any() and not isinstance(values.dtype, pd.CategoricalDtype):
            fix = "or name the column in category_columns (labels: set task classification)"
            wrong = ~known & ~missing
            what = f"is not a number, but other values are; correct it, {fix}{_hint(values[wrong])}"
            self.refuse(column, wrong, what, values.to_numpy())
            self.refuse(column, known, f"is a number stored as text; store numbers, {fix}", values.to_numpy())
        return False

    def other_notation(self, column: str) -> str | None:
        """A sentence about a column of texts if most of them stand for dates or numbers, else None."""
        import pandas as pd

        values = self.frame[column]
        if is_numeric(values) or isinstance(values.dtype, pd.CategoricalDtype):
            return None
        counts = values.dropna().astype(str).str.strip().value_counts()
        others = counts[as_numbers(counts.index.to_series()).isna()]
        for pattern, what, fix in NOTATIONS:
            found = others[others.index.str.fullmatch(pattern)]
            share = found.sum() / max(counts.sum(), 1)
            if share >= 0.5:
                return f"column {column!r}: {share:.0%} of its texts are {what}, such as {found.index[0]!r}; {fix}"
        return None

    def named(
        self, column: str, names: Sequence[str] | None = None, wrong: str = "", *, may_miss: bool = False
    ) -> tuple[np.ndarray, tuple[str, ...]]:
        """A column of clients or classes: the number of each row's name, [n] int64, and the names.

        Args:
            column: one of the columns.
            names: the names; None: those of the column, by number if all are numbers, else in alphabetical order.
            wrong: what another name is not, and the fix.
            may_miss: a missing name is number 0.

        Raises:
            ConfigError: naming the first row whose name is missing, or none of the names.
        """
        import pandas as pd

        found = self.texts(column, may_miss=may_miss)
        if names is None:
            names = sorted(set(found))
            if self.frame[column].nunique() > len(names):
                say(f"{self.source}: column {column!r}: values of different types are one name, such as 1 and '1'")
            numbers = as_numbers(pd.Series(names, dtype=object))
            names = [names[one] for one in np.argsort(numbers, kind="stable")] if numbers.notna().all() else names
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


def whole(cells: pd.Series[Any]) -> pd.Series[Any]:
    """Texts without .0, as in `as_text`, if all are numbers; NaN where one is missing."""
    plain = cells.str.strip()
    numbers = plain[plain.fillna("") != ""].str.fullmatch(r"-?\d+(\.\d+)?").all()
    return plain.str.replace(r"\.0+$", "", regex=True) if numbers else cells


def as_numbers(values: pd.Series[Any]) -> pd.Series[Any]:
    """The values that are numbers, or texts of numbers; the others are missing."""
    import pandas as pd

    return pd.to_numeric(values if is_numeric(values) else values.astype(object), errors="coerce")


def missing_values(values: pd.Series[Any]) -> np.ndarray:
    """Mask of missing values, [n] bool: None, NaN, or an empty text."""
    missing = values.isna().to_numpy(dtype=bool)
    if values.dtype.kind in "OU":
        cells = values.astype(object)  # refers to each category, and copies none
        missing = missing | np.array([isinstance(one, str) and not one.strip() for one in cells], dtype=bool)
    return missing


def is_numeric(values: pd.Series[Any]) -> bool:
    """Whether a column's type is numeric or boolean."""
    import pandas as pd

    return pd.api.types.is_numeric_dtype(values.dtype) or values.dtype.kind == "b"  # pandas leaves out Arrow's booleans


def _hint(texts: pd.Series[Any]) -> str:
    """The fix for the first of some texts if it is a number or date in another notation."""
    first = str(next(iter(texts), "")).strip()
    return next((f" ({fix})" for pattern, _, fix in NOTATIONS if re.fullmatch(pattern, first)), "")


# ------------------------------------------------------------------ reading
def is_table_file(path: Path) -> bool:
    """Whether a path has a table's file extension."""
    return path.name.lower().endswith(ENDINGS)


def table_name(path: Path) -> str:
    """File name of a table without extension."""
    return next(path.name[: -len(one)] for one in ENDINGS if path.name.lower().endswith(one))


def read_rows(files: Sequence[tuple[str, str]], reading: Reading = Reading()) -> TableRows:  # noqa: B008
    """Read and concatenate tables.

    Args:
        files: path of each, and the option that named it.
        reading: how they are read.

    Raises:
        ConfigError: naming a file that cannot be read, has no rows or has different columns than the first.
    """
    frames = [_read_file(given_path(path, option), option, reading) for path, option in files]
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


def rows_of_frame(frame: pd.DataFrame, source: str = "the frame") -> TableRows:
    """The rows of a data frame, named in errors by its index.

    Raises:
        ConfigError: if it is not a frame, has no rows, or has duplicate column names.
    """
    import pandas as pd

    require(isinstance(frame, pd.DataFrame), f"the frame is a {type(frame).__name__}; give a pandas DataFrame")
    index = frame.index
    return TableRows(_checked(frame, source), source, lambda row: f"{source}: row {index[row]!r}")


AS_WRITTEN: dict[str, Any] = {"dtype": str, "na_filter": False}
"""Options of pandas' readers for cells as texts."""


def _read_file(path: Path, option: str, reading: Reading) -> pd.DataFrame:
    """Read one file."""
    place = f"{option} {path}"
    require(is_table_file(path), f"{place}: not a table; give a file that ends in {', '.join(ENDINGS)}")
    require_file(path, f"correct {option}")
    try:
        check_unpacked(path, "if it is right, save it as .csv, without compression")
        with memory_limited():
            if path.suffix.lower() in (".parquet", ".feather"):
                return _read_typed(path, place, reading)
            source = _workbook if path.suffix.lower() == ".xlsx" else _csv
            return _read_cells(source(path, place, reading), place, reading)
    except ConfigError:
        raise
    except Exception as error:  # parsers raise many types on damaged files
        raise ConfigError(f"{place}: {_reason(error, path, option, reading)}") from error


def _reason(error: Exception, path: Path, option: str, reading: Reading) -> str:
    """Why a file cannot be read, and the fix."""
    import pandas as pd

    training = option in (f"{PLACE}.path", f"{PLACE}.unseen_path", f"{PLACE}.constants")
    if isinstance(error, MemoryError) or "out of memory" in str(error):
        return "what it unpacks to does not fit into the free memory; save fewer rows"
    if isinstance(error, pd.errors.EmptyDataError):
        return "the file is empty; it needs a line of column names, and rows"
    if isinstance(error, UnicodeError):
        with path.open("rb") as file:
            other = "utf-16" if file.read(2) in (b"\xff\xfe", b"\xfe\xff") else "latin-1"
        fix = f", or set --data.dataset.encoding {other}" if training else ""
        return f"its text is not {reading.encoding.removesuffix('-sig')}; save it as UTF-8{fix}"
    if isinstance(error, pd.errors.ParserError | pd.errors.ParserWarning):
        line = re.search(r"in line (\d+)", str(error))
        fix = ", or set --data.dataset.skip_lines 1 if a line is ahead of the header" if training else ""
        where = f"line {line[1]}" if line else "the first row"
        return f"cannot be read: {where} has more cells than the header; correct it, quote cells with separators{fix}"
    said = str(error).strip().partition("\n")[0] or type(error).__name__
    fix = f"pip install {'openpyxl' if path.suffix.lower() == '.xlsx' else 'pyarrow'}"
    return f"cannot be read ({said}); {fix if isinstance(error, ImportError) else 'correct the file'}"


def _read_typed(path: Path, place: str, reading: Reading) -> pd.DataFrame:
    """Read a file whose columns have types; names are texts, since several files may differ in type."""
    import pandas as pd

    frame = _checked(pd.read_parquet(path) if path.suffix.lower() == ".parquet" else pd.read_feather(path), place)
    for name in {reading.client, *reading.categories}.intersection(frame.columns):
        if is_numeric(frame[name]):
            frame[name] = frame[name].astype(object).map(as_text, na_action="ignore")
    return frame


def _csv(path: Path, place: str, reading: Reading) -> Callable[..., pd.DataFrame]:
    """The reader of a CSV file, with its separator."""
    import pandas as pd

    separator = "\t" if table_name(path) + ".tsv" in (path.name, path.stem) else reading.separator
    reader: Callable[..., Any] = pd.read_csv
    read = partial(
        reader, path, sep=separator, encoding=reading.encoding, decimal=reading.decimal,
        skiprows=reading.skip_lines, index_col=False, low_memory=False,
    )  # fmt: skip
    first, *more = read(header=None, nrows=1, **AS_WRITTEN).iloc[0].tolist()
    other = max(";\t|,", key=first.count)
    if more or other not in first:
        return read
    say(f"{place}: its values are separated by {other!r}")
    return partial(read, sep=other)


def _workbook(path: Path, place: str, reading: Reading) -> Callable[..., pd.DataFrame]:
    """The reader of a workbook's only sheet."""
    import pandas as pd

    sheets = _sheets(path, place)
    require(
        len(sheets) < 2,
        f"{place}: has {len(sheets)} sheets, {few(sheets, SHOWN)}; save the one to read, or each of them, as a file",
    )
    reader: Callable[..., Any] = pd.read_excel
    return partial(reader, path, sheet_name=next(iter(sheets), 0), decimal=reading.decimal, skiprows=reading.skip_lines)


def _sheets(path: Path, place: str) -> list[str]:
    """Names of the sheets with cells.

    Raises:
        ConfigError: if a sheet's cells are so far apart that the table would fill memory.
    """
    import openpyxl

    sheets = []
    with closing(openpyxl.load_workbook(path, read_only=True)) as book:
        for sheet in book.worksheets:
            sheet.reset_dimensions()  # what the file says of them
            held = widest = 0
            for number, row in enumerate(sheet.iter_rows(values_only=True), 1):
                held, widest = held + sum(one is not None for one in row), max(widest, len(row))
                require(
                    number <= MOST_ROWS and number * widest <= max(FEW_CELLS, MOST_TIMES * held),
                    f"{place}: sheet {sheet.title!r} reaches to row {number:,} and column {widest:,}, and few of its "
                    "cells have a value; delete those that are far away",
                )
            sheets += [sheet.title] if held else []
    return sheets


def _read_cells(read: Callable[..., pd.DataFrame], place: str, reading: Reading) -> pd.DataFrame:
    """Columns in pandas' types, but names as they are written: to pandas 01 and 1 are the same, and NA is missing."""
    import pandas as pd

    header = read(header=None, nrows=1, **AS_WRITTEN)
    cells = [] if header.empty else [one for one in header.iloc[0].str.strip() if one]
    _refuse_equal(pd.Index(cells), place)  # pandas would call the second one y.1
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header
        frame = _checked(read(), place)
    names = {reading.client, reading.label, *reading.categories}
    kept = [position for position, one in enumerate(frame.columns) if one in names]
    if not kept:
        return frame
    written = read(usecols=kept, **AS_WRITTEN).set_axis(frame.columns[kept], axis=1)
    for name in map(str, written):
        _keep_names(frame, name, written[name], place, reading)
    return frame


def _keep_names(frame: pd.DataFrame, name: str, cells: pd.Series[Any], place: str, reading: Reading) -> None:
    """Put the names of one column into the frame as they are written, and say which cells are taken for one."""
    import pandas as pd

    given, plain, exact = frame[name], cells.str.strip(), False
    if name != reading.label:
        found = whole(cells)
    elif reading.classes is not None:
        found = given.astype(object).mask(cells.isin(reading.classes), cells)
    else:
        found = given if is_numeric(given) else cells
        exact = given.dtype.kind == "f" and bool((given % 1).any())  # quantities
    pairs = pd.DataFrame({"cell": plain, "name": found}).dropna().drop_duplicates()
    again = pairs["name"][pairs["name"].duplicated()]
    if len(again) and not exact:
        same = pairs["cell"][pairs["name"] == again.iloc[0]]
        say(f"{place}: column {name!r}: {few(map(repr, same))} are one name")
    if name in reading.categories:
        found = found.where(given.notna())
    words = cells[(given.isna() & found.notna() & (plain != "")).to_numpy()]
    if len(words) and reading.classes is None:
        say(f"{place}: column {name!r}: {words.iloc[0]!r} is a name in {len(words)} rows; only empty cells are missing")
    frame[name] = found


def _checked(frame: pd.DataFrame, source: str) -> pd.DataFrame:
    """A frame with rows, whose columns have different texts as names; numbers that are stored as objects are numbers.

    An index with a name is a column.
    """
    import pandas as pd

    named = [one for one in frame.index.names if one is not None]
    frame = (frame.reset_index(level=named, allow_duplicates=True) if named else frame).reset_index(drop=True)
    frame = frame.set_axis([str(one).strip() for one in frame.columns], axis=1)
    require(len(frame) > 0, f"{source}: has no rows; add some")
    _refuse_equal(frame.columns, source)
    for name in frame.columns[[kind.kind == "O" for kind in frame.dtypes]]:
        kind = pd.api.types.infer_dtype(frame[name], skipna=True)
        if kind == "boolean":
            frame[name] = frame[name].astype("boolean")
        elif kind in ("integer", "floating", "mixed-integer-float", "decimal"):
            frame[name] = as_numbers(frame[name].astype(object))
    return frame


def _refuse_equal(names: pd.Index, source: str) -> None:
    twice = names[names.duplicated()]
    require(not len(twice), f"{source}: two columns are called {twice[0] if len(twice) else ''!r}; rename one")
