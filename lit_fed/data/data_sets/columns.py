"""Tables: reading rows, and encoding columns as inputs, one-hot categories and standardised numbers."""

from __future__ import annotations

import importlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch

from lit_fed.core.types import Population, Split
from lit_fed.data.data_sets.base import Normalisation, is_first_process, require
from lit_fed.data.data_sets.fills import Imputation, learned_fills, summed
from lit_fed.errors import ConfigError, notice
from lit_fed.system.files import given_path, require_file

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "OF_LABELS", "DatePart", "Feature", "TableColumns", "TableEncoder", "TableRows", "encode", "fill_in", "is_number",
    "is_numeric", "is_table_file", "joined", "missing_values", "named", "numbers", "prepared", "read_rows",
    "refuse_mixed", "require_values", "rows_of_frame", "split_roles", "standardisation", "table_name", "texts",
    "typed",
]  # fmt: skip


MOST_CATEGORIES = 100
"""Maximum number of categories inferred for a text column."""

OF_LABELS = "mean and standard deviation of labels"

CONSTANT = 1e-7
"""A column counts as constant below this ratio of standard deviation and mean, near float32 resolution."""


class Feature(NamedTuple):
    """An input column."""

    name: str
    categories: tuple[str, ...] | None = None  # one-hot encoded; None: one numeric input
    fill: float | str | None = None  # in place of a missing value; "": no category; None: missing values are refused
    indicator: bool = False  # one more input, 1 where the value is missing

    @property
    def input_names(self) -> list[str]:
        """Names of its inputs."""
        own = [self.name] if self.categories is None else [f"{self.name}={one}" for one in self.categories]
        return [*own, f"{self.name} is missing"] if self.indicator else own

    def missing(self, values: np.ndarray) -> np.ndarray:
        """Which of its numbers are NaN, or of its texts empty, [n] bool."""
        return np.asarray(np.isnan(values) if self.categories is None else values == "")


class TableColumns(NamedTuple):
    """Encoding of the columns of a table, so that later tables are read in the same way."""

    features: tuple[Feature, ...]
    label_column: str
    client_column: str | None
    split_column: str | None
    separator: str
    unknown_categories: Literal["error", "zeros"]
    missing_values: tuple[str, ...] = ()  # texts that mark a missing value, or column=text
    own_fills: Imputation | None = None  # each client's own fills where it has values; None: those of all clients
    query_column: str | None = None  # number of the query of each row, beside the label
    dates: tuple[str, ...] = ()  # columns of dates
    date_parts: tuple[str, ...] = ()  # inputs of each; (): days

    @property
    def numeric(self) -> list[int]:
        """Input of each numeric column."""
        ends = np.cumsum([len(one.input_names) for one in self.features])
        pairs = zip(self.features, ends, strict=True)
        return [int(end) - len(one.input_names) for one, end in pairs if one.categories is None]

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
        rows: the table, as of `prepared`.
        columns: encoding; categories of features are still empty, ().
        category_columns: columns that the user declared as categories.
        standardize: standardise numeric columns.
        public: rows to learn from in place of the training samples; None: none.
        impute: replacement of missing values; None: they are refused.
        impute_value: value of `constant`.
        indicators: one more input for each column with missing training values.
        label_scale: also find mean and standard deviation of the labels.
    """

    rows: TableRows
    columns: TableColumns
    category_columns: tuple[str, ...]
    standardize: bool
    public: TableRows | None = None
    impute: Imputation | None = None
    impute_value: float = 0.0
    indicators: bool = False
    label_scale: bool = False

    def __call__(self, seen: Population, unseen: Population | None) -> tuple[Population, Population | None]:
        """Replace row numbers [n] by inputs [n, W]."""
        train_rows, ends = seen.train.x.numpy(), seen.train.offsets[1:-1].numpy()
        option = "--data.dataset."
        rows = typed(self.rows, self.columns, option)
        public = None if self.public is None else typed(self.public, self.columns, option)
        learnt_from = rows.frame.iloc[train_rows] if public is None else public.frame
        columns = self.columns._replace(
            features=tuple(self._learned(one, learnt_from) for one in self.columns.features)
        )
        inputs = encode(rows, columns, option)
        clients = np.split(inputs[train_rows], ends)
        _say_constant_columns(clients, columns, seen.names, self.rows.source)
        known = clients if public is None else [encode(public, columns, option)]
        if self.impute is not None:
            columns = self._filled(columns, known)
            for population in (seen, unseen):
                for own, every in () if population is None else _rows_by_client(population):
                    inputs[every] = fill_in(inputs[every], columns, inputs[own])
            known = [fill_in(x, columns, x) for x in known]
        normalisation = None
        if self.standardize and columns.numeric:
            normalisation = standardisation(known, columns)
            inputs = normalisation.apply(inputs)
        scale = self._label_scale(seen) if self.label_scale else None
        learned = () if self.public is not None else _learned(columns.features, normalisation)
        if scale is not None and self.public is None:
            learned = (*learned, OF_LABELS)

        def encoded(population: Population) -> Population:
            splits = [
                Split(torch.from_numpy(inputs[split.x.numpy()]), split.y, split.offsets)
                for split in (population.train, population.val, population.test)
            ]
            train, val, test = splits
            return population._replace(
                train=train, val=val, test=test, columns=columns, normalisation=normalisation, learned=learned,
                label_scale=scale,
            )  # fmt: skip

        return encoded(seen), None if unseen is None else encoded(unseen)

    def _label_scale(self, seen: Population) -> tuple[float, float] | None:
        """Mean and standard deviation of the labels, from sums over clients; None if they are constant."""
        ends = seen.train.offsets[1:-1].numpy()
        clients = np.split(seen.train.y.numpy(), ends)
        if self.public is not None:
            clients = [numbers(self.public, self.columns.label_column)]
        count = sum(map(len, clients))
        mean = float(summed([y.sum(dtype=np.float64) for y in clients])) / count
        std = float(np.sqrt(summed([np.square(y.astype(np.float64) - mean).sum() for y in clients]) / count))
        return (mean, std) if std > CONSTANT * abs(mean) else None

    def _learned(self, feature: Feature, frame: pd.DataFrame) -> Feature:
        """The feature with its indicator, and the categories of the rows to learn from in alphabetical order."""
        values = frame[feature.name].to_numpy()
        missing = feature.missing(values)
        feature = feature._replace(indicator=self.indicators and bool(missing.any()))
        if feature.categories is None:
            return feature
        counts = Counter(values[~missing])
        categories = tuple(sorted(counts))
        require(
            len(categories) <= MOST_CATEGORIES or feature.name in self.category_columns,
            f"{self.rows.source}: column {feature.name!r} holds {len(categories)} different texts, each of which would "
            "become an input; leave the column out by ignored_columns, or name it in category_columns (dates: in "
            "date_columns)",
        )
        most = max(categories, key=lambda one: counts[one], default="")
        return feature._replace(categories=categories, fill=most if self.impute == "most_frequent" else feature.fill)

    def _filled(self, columns: TableColumns, clients: Sequence[np.ndarray]) -> TableColumns:
        """The columns with what takes the place of missing numbers, from sums over clients."""
        numeric = columns.numeric
        values = [x[:, numeric] for x in clients]
        if self.impute == "constant":
            fills = np.full(len(numeric), self.impute_value)
        else:
            assert self.impute is not None
            fills = learned_fills(self.impute, values)
            names = [one.name for one in columns.features if one.categories is None]
            empty = [name for name, fill in zip(names, fills, strict=True) if np.isnan(fill)]
            require(
                not empty,
                f"{self.rows.source}: no training row has a value of {', '.join(empty[:SHOWN])}; leave the column out "
                "by ignored_columns, or give impute constant",
            )
        given = iter(fills.tolist())
        features = (one._replace(fill=next(given)) if one.categories is None else one for one in columns.features)
        return columns._replace(features=tuple(features))


def _learned(features: Sequence[Feature], normalisation: Normalisation | None) -> tuple[str, ...]:
    """Names of the constants learned from training rows."""
    names = [one.name for one in features if one.categories is not None]
    said = (f"the categories of {', '.join(names)}",) if names else ()
    if any(one.fill is not None for one in features):
        said = (*said, "what fills in missing values")
    return said if normalisation is None else (*said, "means and standard deviations of inputs")


def _rows_by_client(population: Population) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Row numbers of each client's training samples, and of all its samples."""
    splits = [
        np.split(split.x.numpy(), split.offsets[1:-1].numpy())
        for split in (population.train, population.val, population.test)
    ]
    for own in zip(*splits, strict=True):
        yield own[0], np.concatenate(own)


FEW_ROWS = 10
"""A column that is constant in fewer rows of a client says nothing."""


def _say_constant_columns(
    clients: Sequence[np.ndarray], columns: TableColumns, names: Sequence[str], source: str
) -> None:
    """Name in one line the columns that are constant or empty at some clients alone."""
    import pandas as pd

    if not columns.numeric:
        return
    numeric = columns.numeric
    frame = pd.DataFrame(np.concatenate(clients)[:, numeric], columns=[columns.input_names[one] for one in numeric])
    grouped = frame.groupby(np.repeat(np.arange(len(clients)), [len(rows) for rows in clients]))
    alone = grouped.nunique(dropna=False).eq(1) & (grouped.size() >= FEW_ROWS).to_numpy()[:, None]
    said = []
    for name in frame.columns[frame.nunique() > 1]:
        own = grouped[name].nth(0)[alone[name].to_numpy()]
        some = [
            f"{names[number]} ({'empty' if np.isnan(value) else f'{value:g}'})"
            for number, value in zip(np.flatnonzero(alone[name]).tolist(), own, strict=True)
        ]
        said += [f"{name} at {', '.join(some[:3])}{' …' if len(some) > 3 else ''}"] if some else []
    if said and is_first_process():
        more = f" and {len(said) - 3} columns more" if len(said) > 3 else ""
        notice(f"{source}: columns with one value at a client: {'; '.join(said[:3])}{more}")


def typed(rows: TableRows, columns: TableColumns, option: str) -> TableRows:
    """The rows with inputs as float64 numbers, NaN where one is missing, or as texts, empty where one is missing.

    Args:
        rows: the table, as of `prepared`.
        columns: the inputs; those with categories are texts.
        option: prefix of the table's options in error messages.

    Raises:
        ConfigError: naming row, column and value that is missing, not a number or infinite.
    """
    _require_all_values(rows, [one.name for one in columns.features if one.fill is None], option)
    frame = rows.frame.copy(deep=False)
    for one in columns.features:
        frame[one.name] = (numbers if one.categories is None else texts)(rows, one.name, may_miss=True)
    return rows._replace(frame=frame)


def encode(rows: TableRows, columns: TableColumns, option: str = "--") -> np.ndarray:
    """Inputs of all rows, before missing numbers are filled in (NaN) and numbers standardised.

    Args:
        rows: the table, as of `typed`.
        columns: encoding.
        option: prefix of the table's options in error messages.

    Returns:
        Array [n, W] float32.

    Raises:
        ConfigError: naming row, column and value of an unknown category.
    """
    inputs = np.zeros((len(rows.frame), len(columns.input_names)), dtype=np.float32)
    end = 0
    for feature in columns.features:
        start, end, values = end, end + len(feature.input_names), rows.frame[feature.name].to_numpy()
        if feature.indicator:
            inputs[:, end - 1] = feature.missing(values)
        if feature.categories is None:
            inputs[:, start] = values
            continue
        position = {name: start + index for index, name in enumerate(feature.categories)}
        for row, value in enumerate(values):
            one = value or feature.fill
            if one in position:
                inputs[row, position[one]] = 1
            elif value and columns.unknown_categories == "error":
                raise rows.error(
                    row, feature.name, f"{value!r} is in no training sample of a seen client; correct it, or give "
                    f"{option}unknown_categories zeros",
                )  # fmt: skip
    return inputs


def fill_in(inputs: np.ndarray, columns: TableColumns, own: np.ndarray) -> np.ndarray:
    """Inputs [n, W] without NaN; `own` [n_t, W] are training inputs of their client, for `own_fills`."""
    numeric = columns.numeric
    fills = np.array([one.fill for one in columns.features if one.categories is None], dtype=np.float64)
    if columns.own_fills is not None and len(own):
        known = learned_fills(columns.own_fills, [own[:, numeric]])
        fills = np.where(np.isnan(known), fills, known)
    inputs = inputs.copy()
    values = inputs[:, numeric]
    inputs[:, numeric] = np.where(np.isnan(values), fills, values)
    return inputs


def standardisation(clients: Sequence[np.ndarray], columns: TableColumns) -> Normalisation:
    """Means and standard deviations from sums over clients: no row leaves its client.

    Clients send n and Σ x, then, knowing the mean, Σ (x − mean)²; Σ x² would lose precision if the mean is large.

    Args:
        clients: inputs of each client, [n_t, W].
        columns: what they were made from; inputs that are 0 or 1 stay unchanged.

    Returns:
        Constants of each input; the standard deviation of constant columns is 1.
    """
    count = sum(len(x) for x in clients)
    mean = summed([x.sum(0, dtype=np.float64) for x in clients]) / count
    std = np.sqrt(summed([np.square(x - mean).sum(0) for x in clients]) / count)
    std[std <= CONSTANT * np.abs(mean)] = 1
    kept = np.ones(len(mean), dtype=bool)
    kept[columns.numeric] = False
    mean[kept], std[kept] = 0, 1
    return Normalisation(tuple(mean.tolist()), tuple(std.tolist()))


ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".feather", ".xlsx")
PACKAGES = {".parquet": ("pyarrow", "pyarrow>=15"), ".feather": ("pyarrow", "pyarrow>=15"), ".xlsx": ("openpyxl",) * 2}
"""Modules with which pandas reads other files, and their requirements for pip."""

SHOWN = 20
"""Number of columns listed in errors."""


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
    frames = [_read_file(given_path(path, option), option, separator) for path, option in files]
    for (path, option), frame in zip(files, frames, strict=True):
        other = sorted(set(frames[0].columns) ^ set(frame.columns))
        require(
            not other,
            f"{option} {path}: its columns differ from those of {files[0][0]}: only one file has "
            f"{', '.join(map(repr, other[:SHOWN]))}; make them equal",
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
        ending = path.suffix.lower()
        if ending in PACKAGES:
            _require_package(path, *PACKAGES[ending])
            readers: dict[str, Callable[[Path], pd.DataFrame]]
            readers = {".parquet": pd.read_parquet, ".feather": pd.read_feather, ".xlsx": pd.read_excel}
            frame = readers[ending](path).reset_index(drop=True)
        else:
            separator = "\t" if table_name(path) + ".tsv" in (path.name, path.stem) else separator
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


def _require_package(path: Path, module: str, package: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f'{path}: {path.suffix} files need the package {module}; pip install "{package}"') from error


# ------------------------------------------------------------------ columns
def as_text(value: Any) -> str:
    """A value as text; 3.0 and 3 are the same, since missing values turn integers into floats."""
    whole = isinstance(value, float | np.floating) and float(value).is_integer()
    return str(int(value)) if whole else str(value)


def require_values(rows: TableRows, column: str) -> None:
    """Raise a `ConfigError` naming the first missing value of a column."""
    fix = "fill it in, or leave the row out (an empty cell, NA, nan, null and None count as missing)"
    rows.refuse(column, missing_values(rows.frame[column]), f"no value; {fix}")


def _require_all_values(rows: TableRows, columns: Sequence[str], option: str) -> None:
    """Raise a `ConfigError` naming all columns with missing values, and how many each lacks."""
    missing = {name: missing_values(rows.frame[name]) for name in columns}
    missing = {name: mask for name, mask in missing.items() if mask.any()}
    if missing:
        name = min(missing, key=lambda one: int(missing[one].argmax()))
        counts = [f"{one} in {mask.sum()}" for one, mask in missing.items()][:SHOWN]
        more = f" and {len(missing) - SHOWN} columns more" if len(missing) > SHOWN else ""
        fix = (
            f"give {option}impute median, leave columns out by ignored_columns, or fill them in"
            if option.startswith("--data")
            else "fill them in, since the checkpoint was trained without --data.dataset.impute"
        )
        raise rows.error(
            int(missing[name].argmax()), name, f"no value; of {len(rows.frame)} rows {', '.join(counts)}{more} have "
            f"none: {fix} (an empty cell, NA, nan, null and None count as missing)",
        )  # fmt: skip


def prepared(rows: TableRows, columns: TableColumns, option: str, *more: str) -> TableRows:
    """The rows as inputs are encoded from them: dates as numbers, and without marks of missing values.

    Args:
        rows: the table.
        columns: names of the inputs, dates and marks.
        option: what demands the columns, for messages.
        more: further columns that have to be there.

    Raises:
        ConfigError: naming a column that is not there, a value that is no date, or a mark of another column.
    """
    inputs = [one.name for one in columns.features]
    rows.require_columns(columns.dates, option)
    rows = _dated(rows, columns.dates, columns.date_parts)
    rows.require_columns([*inputs, *more], option)
    return _marked(rows, columns.missing_values, inputs)


def _marked(rows: TableRows, marks: Sequence[str], columns: Sequence[str]) -> TableRows:
    """The rows without the values that mark a missing one.

    Args:
        rows: the table.
        marks: texts, of all these columns or as column=text of one of them.
        columns: columns that may have missing values.

    Raises:
        ConfigError: if a mark names another column.
    """
    import pandas as pd

    frame = rows.frame.copy(deep=False)
    for mark in marks:
        column, of_one, text = mark.rpartition("=")
        require(
            not of_one or column in columns,
            f"--data.dataset.missing_values {mark!r}: {column!r} is no input column; choose from "
            f"{', '.join(columns[:SHOWN])}",
        )
        for name in [column] if of_one else columns:
            found = frame[name].map(as_text, na_action="ignore") == text
            if found.any():
                left = frame[name].mask(found)
                known = left[~missing_values(left)]
                frame[name] = pd.to_numeric(left) if all(map(is_number, known)) else left
    return rows._replace(frame=frame)


DatePart = Literal["year", "month", "day", "weekday", "hour"]

OF_PANDAS = {"weekday": "day_of_week"}


def _dated(rows: TableRows, dates: Sequence[str], parts: Sequence[str]) -> TableRows:
    """The rows with dates as numbers, or with a column for each of their parts in place of theirs.

    Args:
        rows: the table.
        dates: columns of dates, in ISO 8601 (2024-01-31, 2024-01-31 13:00) or stored as times.
        parts: as of `DatePart`, the weekday from 0, Monday; (): days since 1970-01-01.

    Raises:
        ConfigError: naming the first row whose value is no date.
    """
    import pandas as pd

    frame = rows.frame.copy(deep=False)
    for name in dates:
        values, missing = frame[name], missing_values(frame[name])
        known = values.mask(missing | is_numeric(values)).astype(object)  # numbers would count as nanoseconds
        found = pd.to_datetime(known, format="ISO8601", errors="coerce", utc=True)
        wrong = ~missing & found.isna().to_numpy()
        rows.refuse(name, wrong, "is no date; write 2024-01-31, or 2024-01-31 13:00", values.to_numpy())
        if not parts:
            frame[name] = (found - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
            continue
        place = list(frame.columns).index(name)
        frame = frame.drop(columns=name)
        for offset, part in enumerate(parts):
            frame.insert(place + offset, f"{name} {part}", getattr(found.dt, OF_PANDAS.get(part, part)))
    return rows._replace(frame=frame)


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


def texts(rows: TableRows, column: str, *, may_miss: bool = False) -> np.ndarray:
    """The values of a column as texts, [n] of objects; "" where one is missing and `may_miss`.

    Raises:
        ConfigError: naming the first row with a missing value.
    """
    if not may_miss:
        require_values(rows, column)
    _check_kind(rows, column)
    values, missing = rows.frame[column], missing_values(rows.frame[column])
    return np.array(["" if no else as_text(one) for one, no in zip(values, missing, strict=True)], dtype=object)


def refuse_mixed(rows: TableRows, column: str) -> None:
    """Refuse a text among numbers, and numbers stored as text, in a column of undeclared type."""
    found = texts(rows, column, may_miss=True)
    known = np.array([is_number(one) for one in found])
    if is_numeric(rows.frame[column]) or not known.any():
        return
    wrong = ~known & (found != "")
    fix = "or name the column in category_columns (labels: set task classification)"
    rows.refuse(column, wrong, f"is not a number, but other values are; correct it, {fix}", found)
    rows.refuse(column, known, f"is a number stored as text; store numbers, {fix}", found)


def named(
    rows: TableRows, column: str, names: Sequence[str] | None = None, wrong: str = "", *, may_miss: bool = False
) -> tuple[np.ndarray, tuple[str, ...]]:
    """A column of clients or classes: the number of each row's name, [n] int64, and the names.

    Args:
        rows: the table.
        column: one of its columns.
        names: the names; None: those of the column, in the order of the numbers that they are, or of the alphabet.
        wrong: what another name is not, and the fix.
        may_miss: a missing name is number 0.

    Raises:
        ConfigError: naming the first row whose name is missing, or none of the names.
    """
    found, values = texts(rows, column, may_miss=may_miss), rows.frame[column]
    if names is None:
        names = sorted(set(found), key=float if is_numeric(values) and values.dtype.kind != "b" else None)
    number = {name: position for position, name in enumerate(names)} | {"": 0}
    rows.refuse(column, np.array([one not in number for one in found]), wrong, found)
    return np.array([number[one] for one in found]), tuple(names)


def split_roles(rows: TableRows, column: str) -> np.ndarray:
    """0 for train, 1 for val and 2 for test in a split column, [n] int64, else a `ConfigError` names the row."""
    return named(rows, column, ("train", "val", "test"), "is not a split; write train, val or test")[0]


def numbers(rows: TableRows, column: str, *, may_miss: bool = False) -> np.ndarray:
    """The values of a column as numbers, [n] float64; NaN where one is missing and `may_miss`.

    Raises:
        ConfigError: naming the first row whose value is missing, not a number or infinite.
    """
    if not may_miss:
        require_values(rows, column)
    _check_kind(rows, column)
    values, missing = rows.frame[column], missing_values(rows.frame[column])
    if not is_numeric(values) and not missing.all():
        wrong = np.array([not is_number(one) for one in values]) & ~missing
        rows.refuse(column, wrong if wrong.any() else ~missing, "is not a number; correct it", values.to_numpy())
    found = np.full(len(values), np.nan)
    found[~missing] = values[~missing].to_numpy(dtype=np.float64)
    with np.errstate(over="ignore"):
        infinite = ~np.isfinite(found.astype(np.float32)) & ~missing
    rows.refuse(column, infinite, "is too large for float32; correct or scale it", found)
    return found


def _check_kind(rows: TableRows, column: str) -> None:
    """Refuse times, complex numbers and lists."""
    import pandas as pd

    values = rows.frame[column]
    kind = values.dtype
    fix = "name dates in date_columns, convert others to numbers or texts, or leave the column out by ignored_columns"
    text = pd.api.types.is_string_dtype(kind) or pd.api.types.is_object_dtype(kind)
    known = text or isinstance(kind, pd.CategoricalDtype) or is_numeric(values)
    if not known or pd.api.types.is_complex_dtype(kind):
        raise ConfigError(f"{rows.source}: column {column!r} holds {kind}; {fix}")
    if pd.api.types.is_object_dtype(kind):
        for row, one in enumerate(values):
            if one is not None and not isinstance(one, str | bool | int | float | np.generic):
                raise rows.error(row, column, f"a {type(one).__name__} is neither number nor text; {fix}")


def is_number(text: Any) -> bool:
    """Whether a text or another value can be read as a number."""
    try:
        float(text)
    except (TypeError, ValueError):
        return False
    return True
