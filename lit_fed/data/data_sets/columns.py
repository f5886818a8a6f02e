"""Columns of tables as inputs: one-hot categories, and numbers with their missing values and their constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from lit_fed.data.data_sets.base import CONSTANT, PLACE, Normalisation, require
from lit_fed.data.data_sets.fills import Imputation, learned_fills, summed
from lit_fed.data.data_sets.rows import (
    SHOWN,
    Reading,
    TableRows,
    as_numbers,
    as_text,
    is_numeric,
    missing_values,
    whole,
)
from lit_fed.system.names import few

__all__ = [
    "DatePart", "Feature", "TableColumns", "encode", "fill_in", "prepared", "standardisation", "typed",
]  # fmt: skip


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
    date_format: str = "ISO8601"
    encoding: str = Reading().encoding
    decimal: str = Reading().decimal
    skip_lines: int = 0
    group_column: str | None = None  # the person of each row
    time_column: str | None = None  # the time of each row

    @property
    def reading(self) -> Reading:
        """How the files are read."""
        categories = tuple(one.name for one in self.features if one.categories is not None)
        return Reading(
            self.separator, self.encoding, self.decimal, self.skip_lines, self.client_column, categories,
            self.label_column,
        )  # fmt: skip

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


def typed(rows: TableRows, columns: TableColumns, option: str) -> TableRows:
    """The rows with inputs as float64 numbers, NaN where one is missing, or as texts, empty where one is missing.

    Args:
        rows: the table, as of `prepared`.
        columns: the inputs; those with categories are texts.
        option: prefix of the table's options in error messages.

    Raises:
        ConfigError: naming row, column and value that is missing, not a number or infinite.
    """
    fix = (
        f"give {option}impute median, leave columns out by ignored_columns, or fill them in"
        if option.startswith("--data")
        else "fill them in, since the checkpoint was trained without --data.dataset.impute"
    )
    rows.require_all_values([one.name for one in columns.features if one.fill is None], fix)
    frame = rows.frame.copy(deep=False)
    for one in columns.features:
        read = rows.numbers if one.categories is None else rows.texts
        frame[one.name] = read(one.name, may_miss=True)
    return rows._replace(frame=frame)


def encode(rows: TableRows, columns: TableColumns, option: str = "--") -> np.ndarray:
    """Inputs of all rows, before missing numbers are filled in (NaN) and numbers standardised.

    Args:
        rows: the table, as of `typed`.
        columns: encoding.
        option: prefix of the table's options in error messages.

    Returns:
        Array [n, W] float64.

    Raises:
        ConfigError: naming row, column and value of an unknown category.
    """
    import pandas as pd

    inputs = np.zeros((len(rows.frame), len(columns.input_names)))
    end = 0
    for feature in columns.features:
        start, end, values = end, end + len(feature.input_names), rows.frame[feature.name].to_numpy()
        if feature.indicator:
            inputs[:, end - 1] = feature.missing(values)
        if feature.categories is None:
            inputs[:, start] = values
            continue
        known = pd.Index(np.where(values == "", str(feature.fill or ""), values))
        place = pd.Index(feature.categories, dtype=object).get_indexer(known)
        if columns.unknown_categories == "error":
            what = f"is in no training sample of a seen client; correct it, or give {option}unknown_categories zeros"
            rows.refuse(feature.name, (place < 0) & (values != ""), what, values)
        row = np.flatnonzero(place >= 0)
        inputs[row, start + place[row]] = 1
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
    rows = _dated(rows, columns, f", or set {PLACE}.date_format" if option == PLACE else "")
    rows.require_columns([*inputs, *more], option)
    return _marked(rows, columns, inputs)


def _marked(rows: TableRows, encoding: TableColumns, columns: Sequence[str]) -> TableRows:
    """The rows without the values that mark a missing one.

    Args:
        rows: the table.
        encoding: the marks, texts of all these columns or as column=text of one of them, and the categories.
        columns: columns that may have missing values.

    Raises:
        ConfigError: if a mark names another column.
    """
    frame = rows.frame.copy(deep=False)
    for mark in encoding.missing_values:
        column, of_one, text = mark.rpartition("=")
        require(
            not of_one or column in columns,
            f"--data.dataset.missing_values {mark!r}: {column!r} is no input column; choose from {few(columns, SHOWN)}",
        )
        for name in [column] if of_one else columns:
            found = frame[name].map(as_text, na_action="ignore") == text
            if found.any():
                left = frame[name].mask(found)
                if name in encoding.reading.categories:
                    frame[name] = whole(left.map(as_text, na_action="ignore").astype(object))
                    continue
                numbers = as_numbers(left)
                unread = numbers.isna().to_numpy() & ~missing_values(left)
                frame[name] = left if unread.any() else numbers
    return rows._replace(frame=frame)


DatePart = Literal["year", "month", "day", "weekday", "hour"]

OF_PANDAS = {"weekday": "day_of_week"}


def _dated(rows: TableRows, columns: TableColumns, or_set: str) -> TableRows:
    """The rows with dates as numbers, or with a column for each of their parts in place of theirs.

    Args:
        rows: the table.
        columns: columns of dates, in their format or stored as times, and their parts as of `DatePart`, the weekday
            from 0, Monday; (): days since 1970-01-01.
        or_set: another fix for a value that is no date.

    Raises:
        ConfigError: naming the first row whose value is no date, or a part that is a column already.
    """
    import pandas as pd

    frame = rows.frame.copy(deep=False)
    iso = columns.date_format == "ISO8601"
    fix = f"write 2024-01-31, or 2024-01-31 13:00{or_set}" if iso else f"write it as {columns.date_format}"
    for name in columns.dates:
        values, missing = frame[name], missing_values(frame[name])
        known = values.mask(missing | is_numeric(values)).astype(object)  # numbers would count as nanoseconds
        found = pd.to_datetime(known, format=columns.date_format, errors="coerce", utc=True)
        wrong = ~missing & found.isna().to_numpy()
        rows.refuse(name, wrong, f"is no date; {fix}", values.to_numpy())
        if not columns.date_parts:
            frame[name] = (found - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
            continue
        place = list(frame.columns).index(name)
        frame = frame.drop(columns=name)
        for offset, part in enumerate(columns.date_parts):
            require(
                f"{name} {part}" not in frame, f"{rows.source}: there is a column '{name} {part}' already; rename it"
            )
            frame.insert(place + offset, f"{name} {part}", getattr(found.dt, OF_PANDAS.get(part, part)))
    return rows._replace(frame=frame)
