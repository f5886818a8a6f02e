"""A user's table: a CSV or Parquet file, one row per sample, one column naming its client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from lit_fed.data.data_sets.base import ANY_SEED, Names, PooledDataSet, Samples, label_array, names_of, require, say
from lit_fed.data.data_sets.client_folder import SPLITS
from lit_fed.data.data_sets.columns import DatePart, Feature, TableColumns, encode, fill_in, prepared, typed
from lit_fed.data.data_sets.drawn_rows import drawn_rows
from lit_fed.data.data_sets.fills import Imputation
from lit_fed.data.data_sets.rows import (
    TableRows,
    is_numeric,
    is_table_file,
    missing_values,
    read_rows,
    table_name,
)
from lit_fed.data.data_sets.table_encoder import TableEncoder
from lit_fed.errors import ConfigError, check_settings
from lit_fed.system.files import given_path
from lit_fed.system.names import few
from lit_fed.system.packages import DataFrame

__all__ = ["Table", "read_later"]

PREFIX, OPTION = "--data.dataset", "--clients"
LISTS = (
    "feature_columns", "ignored_columns", "category_columns", "unseen_clients", "missing_values", "date_columns",
    "date_parts",
)  # fmt: skip


@dataclass(frozen=True)
class Table(PooledDataSet):
    """Rows of a table, one per sample, with a column naming the client, or of several tables, one per client.

    Numeric columns are inputs, text columns are one-hot encoded over the texts of the training rows. Labels of text, or
    at most 20 integers, are classes and keep their names; labels with fractions are regression targets; for more
    integers, or a few floats without fractions (1.0), set `task`. Missing values are refused, naming columns, counts
    and the first row (from 1, after the header), unless `impute` fills them in. Several names are a list, or one text
    with commas: `age, sex`. Clients of CSV files and workbooks are called as they are written: 01 is not 1, and NA is a
    name. Parquet needs `pip install "pyarrow>=15"`.

    Args:
        path: file with a header, .csv, .tsv (both also with .gz), .parquet, .feather or .xlsx; several with commas, or
            a folder of them.
        client_column: column with the client of each row; null: the files' names, and with one file `--data.partition`
            divides the rows.
        label_column: column with the labels.
        feature_columns: input columns, in this order; null: all others.
        ignored_columns: columns to leave out.
        category_columns: columns with categories that look like numbers, or with many categories.
        date_columns: columns with dates, as 2024-01-31 or 2024-01-31 13:00: days since 1970-01-01.
        date_format: format of dates that are texts, as of `strptime`, such as `%d.%m.%Y` if the day is first.
        date_parts: some of `year`, `month`, `day`, `weekday`, `hour`, each an input in place of the days.
        query_column: column with the number of the query (a user, a search) of each row, for `--model.target Ranking`;
            labels are then pairs of relevance and query.
        split_column: column with `train`, `val` or `test`; null: split by fractions. If it has no `val` or no `test`,
            a fraction of the training rows is taken.
        unseen_clients: names of clients held out of training.
        unseen_path: another file with the same columns, whose clients are held out of training.
        task: `classification` or `regression`; null: inferred from the labels.
        standardize_labels: standardise labels of a `Regression` by mean and standard deviation of the training rows:
            losses are those of standardised labels, predictions and `mse` in the units of the column.
        standardize: standardise numeric columns by mean and standard deviation of the training rows, from sums over
            clients; checkpoints keep them for later clients.
        unknown_categories: for a text in no training row: `error`, or `zeros` in all inputs of the column.
        separator: separator of CSV values; another of `,`, `;`, `|` and tab is recognised, with a line that says so.
        encoding: encoding of CSV files: UTF-8, `latin-1`, `utf-16`, …
        decimal: decimal point in CSV and .xlsx files, `,` for 1,5.
        skip_lines: lines ahead of the header in CSV and .xlsx files.
        missing_values: texts that mark a missing value beside empty cells, as `?`, or `chol=0` in one column.
        impute: replacement of missing inputs: the `mean`, `median` or `most_frequent` value of the training rows, from
            sums over clients, or `constant`; null: missing values are refused. For texts `most_frequent` takes the most
            frequent one, and the others no category at all.
        impute_by: values of `all` clients, or of each `client` if it has some.
        impute_value: the `constant`.
        indicators: one more input, 0 or 1, for each column with missing training values.
        constants: table of public rows with the same columns, from which classes, categories, means and standard
            deviations are learned; null: from the clients' rows, which ε of `--model.privacy` does not cover.
        group_column: column with the person (a pupil, an animal) of each row, whose rows are in one split.
        time_column: column with the time of each row, numbers or dates; an input only if `feature_columns` names it.
        min_rows: clients with fewer rows are left out.
        min_groups: clients with fewer persons are left out; 3 for a training, a validation and a test split.
        max_clients: number of clients to draw; null: all.
        max_rows: number of rows to draw, all of a person or none; null: all.
        draw_seed: seed of these draws.
    """

    path: Names = ""
    client_column: str | None = None
    label_column: str = ""
    feature_columns: Names | None = None
    ignored_columns: Names = ()
    category_columns: Names = ()
    date_columns: Names = ()
    date_format: str = "ISO8601"
    date_parts: Names = ()
    query_column: str | None = None
    split_column: str | None = None
    unseen_clients: Names = ()
    unseen_path: str | None = None
    task: Literal["classification", "regression"] | None = None
    standardize_labels: bool = True
    standardize: bool = True
    unknown_categories: Literal["error", "zeros"] = "error"
    separator: str = ","
    encoding: str = "utf-8-sig"
    decimal: str = "."
    skip_lines: int = 0
    missing_values: Names = ()
    impute: Imputation | None = None
    impute_by: Literal["all", "client"] = "all"
    impute_value: float = 0.0
    indicators: bool = False
    constants: str | None = None
    group_column: str | None = None
    time_column: str | None = None
    min_rows: int = 1
    min_groups: int = 1
    max_clients: int | None = None
    max_rows: int | None = None
    draw_seed: int = 0

    def __post_init__(self) -> None:
        for name in LISTS:
            given = getattr(self, name)
            object.__setattr__(self, name, None if given is None else names_of(given))
        for name, needs in (("indicators", self.impute), ("impute_by", self.impute not in (None, "constant"))):
            require(
                bool(needs) or getattr(self, name) in (False, "all"),
                f"{PREFIX}.{name} is {getattr(self, name)}, but impute is {self.impute or 'null'}; give "
                f"{PREFIX}.impute median",
            )
        for name in ("separator", "decimal"):
            given = getattr(self, name)
            require(len(given) == 1, f"{PREFIX}.{name} is {given!r}; give one character")
        check_settings(self, prefix=PREFIX, skip_lines=">= 0", min_rows=">= 1", min_groups=">= 1", draw_seed=ANY_SEED)
        require(
            self.min_groups == 1 or self.group_column is not None,
            f"{PREFIX}.min_groups is {self.min_groups}, which needs a group_column; give min_rows",
        )
        for name in ("max_clients", "max_rows"):
            most = getattr(self, name)
            require(most is None or most >= 1, f"{PREFIX}.{name} is {most}; give a whole number >= 1, or null for all")
        require(
            not self._draws or self.natural,
            f"{PREFIX}.min_rows, min_groups, max_clients and max_rows are about clients; set client_column",
        )
        for name, given in (("unseen_clients", self.unseen_clients), ("unseen_path", self.unseen_path)):
            require(
                not given or self.client_column is not None or (name == "unseen_clients" and self.natural),
                f"{PREFIX}.{name} is {given}, which needs a client_column; set client_column, or use "
                "--data.unseen_fraction",
            )
        for part in self.date_parts:
            require(
                part in get_args(DatePart) and bool(self.date_columns),
                f"{PREFIX}.date_parts is {part!r}; give some of {', '.join(get_args(DatePart))}, and date_columns",
            )
        roles = list(self.roles.items())
        features = [("feature_columns", one) for one in self.feature_columns or ()]
        for position, (name, column) in enumerate(roles):
            for other, its in roles[:position] + features:
                require(column != its, f"{PREFIX}.{name} is {column!r}, and so is one of {other}; choose another")

    @property
    def _draws(self) -> bool:
        return (self.min_rows, self.min_groups, self.max_clients, self.max_rows) != (1, 1, None, None)

    @property
    def roles(self) -> dict[str, str]:
        """The columns that are no inputs, by their options."""
        names = ("client_column", "label_column", "split_column", "query_column", "group_column")
        return {name: column for name in names if (column := getattr(self, name))}

    @property
    def natural(self) -> bool:  # type: ignore[override]  # the base promises one answer for the whole class
        """Whether a column or files name the clients, so that a partition is refused."""
        return self.client_column is not None or len(self._files()) > 1

    @property
    def unsaid(self) -> Literal["labels", "task"] | None:
        """The setting that would say what labels are, if it is not given."""
        return "task" if self.task is None else None

    def load(self) -> Samples:
        """Row numbers as inputs, which `encode` replaces, with labels, clients and splits."""
        rows = self._read()
        self._check_columns(rows)
        if self._draws:
            rows = self._drawn(rows)
        columns = self._columns(self._inputs(rows))
        groups, order = _groups(rows, columns.group_column), _order(rows, columns)
        rows = prepared(rows, columns, PREFIX)
        columns = columns._replace(features=tuple(self._with_kind(rows, one.name) for one in columns.features))
        public = self._public(rows, columns)
        labels, class_names = self._labels(rows, public)
        owner, names = self._owners(rows)
        has_scale = self.standardize_labels and class_names is None and self.query_column is None
        encoder = TableEncoder(self, rows, columns, public, has_scale)
        split = None if self.split_column is None else rows.split_roles(self.split_column)
        unseen = self._unseen(rows, owner, names)
        return Samples(
            np.arange(len(rows.frame)), labels, owner, names, class_names, split, unseen, encoder,
            groups=groups, order=order,
        )  # fmt: skip

    def cells(self, names: Sequence[str]) -> DataFrame:
        """Columns of all rows of the table, as they are read.

        Raises:
            ConfigError: naming a column that is not there.
        """
        rows = self._read()
        rows.require_columns(names, "--keep")
        return rows.frame[list(names)]

    def _columns(self, names: Sequence[str] = ()) -> TableColumns:
        """Encoding of these input columns before anything is learned; without names: how files are read."""
        categories = names_of(self.category_columns)
        return TableColumns(
            tuple(Feature(name, () if name in categories else None) for name in names or categories),
            self.label_column, self.client_column, self.split_column, self.separator, self.unknown_categories,
            names_of(self.missing_values), self.impute if self.impute_by == "client" else None, self.query_column,
            names_of(self.date_columns), names_of(self.date_parts), self.date_format, self.encoding, self.decimal,
            self.skip_lines, self.group_column, self.time_column,
        )  # fmt: skip

    def _read(self) -> TableRows:
        """The rows of all files, those of `unseen_path` last."""
        require(bool(self.path), f"Table: path is not set; pass {PREFIX}.path FILE")
        later = [] if self.unseen_path is None else [(self.unseen_path, f"{PREFIX}.unseen_path")]
        files = self._files()
        if isinstance(self.path, str) and (folder := given_path(self.path, f"{PREFIX}.path")).is_dir():
            names = sorted(one.name for one in folder.iterdir() if str(one) not in files and one.name[0] != ".")
            if names:
                say(f"{folder}: {few(names)}: no table, and left out")
        return read_rows([*((path, f"{PREFIX}.path") for path in files), *later], self._columns().reading)

    def _files(self) -> list[str]:
        """The paths in `path`: one, several with commas, or those of the tables in a folder."""
        given = [self.path] if isinstance(self.path, str) and self.path else []
        for place in (given_path(one, f"{PREFIX}.path") for one in given):
            if place.is_dir():
                found = sorted(str(one) for one in place.iterdir() if is_table_file(one))
                require(bool(found), f"{PREFIX}.path {place}: the folder has no table; give a file or another folder")
                return found
            if place.is_file():
                return given
        return list(names_of(self.path))

    def _public(self, rows: TableRows, columns: TableColumns) -> TableRows | None:
        if self.constants is None:
            return None
        option = f"{PREFIX}.constants"
        public = read_rows([(self.constants, option)], columns.reading)
        public = prepared(public, columns, f"{option} must have the column", self.label_column)
        public.require_values(self.label_column)
        return public

    def _check_columns(self, rows: TableRows) -> None:
        require(
            bool(self.label_column),
            f"label_column is not set; give one of the columns {', '.join(map(str, rows.frame.columns[:20]))}",
        )
        for name, column in (*self.roles.items(), ("time_column", self.time_column)):
            rows.require_columns([column] if column else [], name)
        for name in ("feature_columns", "ignored_columns", "category_columns", "date_columns"):
            rows.require_columns(getattr(self, name) or (), name)

    def _inputs(self, rows: TableRows) -> tuple[str, ...]:
        """Names of the input columns."""
        taken = {*self.roles.values(), self.time_column, *self.ignored_columns}
        given = names_of(self.feature_columns or ())
        parts = {name: [f"{name} {part}" for part in self.date_parts] or [name] for name in self.date_columns}
        given = given or tuple(one for one in map(str, rows.frame.columns) if one not in taken)
        names = tuple(each for one in given for each in parts.get(one, [one]))
        require(bool(names), f"{rows.source}: no input column is left; add some, or set feature_columns")
        for name in names:
            require(
                self.feature_columns is not None or not (name.startswith("Unnamed: ") or not name.strip()),
                f"{rows.source}: a column has no name, such as the row numbers that pandas writes without index=False; "
                f"name it, or leave it out by {PREFIX}.ignored_columns {name!r}",
            )
        return names

    def _drawn(self, rows: TableRows) -> TableRows:
        """The rows of clients with enough of them, of the drawn clients and persons."""
        owner, groups = self._owners(rows)[0], _groups(rows, self.group_column)
        assert owner is not None
        groups = np.arange(len(owner)) if groups is None else groups
        limits = self.min_rows, self.min_groups, self.max_clients, self.max_rows
        kept = drawn_rows(owner, groups, *limits, self.draw_seed)
        of = f"{self.min_rows} rows" + (f" of {self.min_groups} persons" if self.min_groups > 1 else "")
        require(len(kept) > 0, f"{rows.source}: no client has {of}; lower {PREFIX}.min_rows or min_groups")
        return rows.taken(kept)

    def _with_kind(self, rows: TableRows, name: str) -> Feature:
        """An input column; categories, and what takes the place of missing values, are learned later."""
        category = name in self.category_columns or not rows.holds_numbers(name)
        if category and name not in self.category_columns and (found := rows.other_notation(name)):
            say(f"{rows.source}: {found}, or categories in {PREFIX}.category_columns; here each text is an input")
        empty = "" if category else float("nan")
        return Feature(name, () if category else None, None if self.impute is None else empty)

    def _labels(self, rows: TableRows, public: TableRows | None) -> tuple[np.ndarray, tuple[str, ...] | None]:
        """Labels [n], float32, or int64 with class names, those of the public rows if given."""
        rows.require_values(self.label_column)
        other = None if self.task == "classification" else rows.other_notation(self.label_column)
        require(other is None, f"{rows.source}: {other}, or for classes give {PREFIX}.task classification")
        floating = rows.frame[self.label_column].dtype.kind == "f"
        if (self.task or ("regression" if floating else "classification")) == "regression":
            y = rows.numbers(self.label_column)
            y = y.astype(np.float32) if self.standardize_labels else label_array(y)
            if self.query_column is None:
                return y, None
            query = rows.numbers(self.query_column)
            rows.refuse(
                self.query_column, query != query.astype(np.float32), "is inexact in float32; count from 0", query
            )
            return np.stack([y, query.astype(np.float32)], 1), None
        require(
            self.query_column is None,
            f"{PREFIX}.query_column is {self.query_column!r}, and labels are classes; give --model.target Ranking",
        )
        if self.task is None:
            rows.holds_numbers(self.label_column)  # refuses a mixture
        y, names = rows.named(self.label_column)
        require(
            len(names) > 1,
            f"{rows.source}: all labels in column {self.label_column!r} are {names[0]!r}; give two classes",
        )
        if public is None:
            return y, names
        _, names = public.named(self.label_column)
        return rows.named(self.label_column, names, f"is no label in {self.constants}; add a row")

    def _owners(self, rows: TableRows) -> tuple[np.ndarray | None, list[str] | None]:
        """The client of each row [n], and the clients' names in order."""
        if self.client_column is None:
            sizes = [size for _, size in rows.files]
            own = [table_name(Path(path)) for path, _ in rows.files]
            twice = next((one for one in own if own.count(one) > 1), None)
            require(twice is None, f"{PREFIX}.path: two files are called {twice!r}, and name their clients; rename one")
            return (np.repeat(np.arange(len(sizes)), sizes), own) if len(sizes) > 1 else (None, None)
        owner, names = rows.named(self.client_column)
        return owner, list(names)

    def _unseen(self, rows: TableRows, owner: np.ndarray | None, names: list[str] | None) -> tuple[str, ...]:
        if owner is None or names is None:
            return ()
        for name in self.unseen_clients:
            require(
                name in names,
                f"unseen_clients: no row of {rows.source} is of a client {name!r}; there are {', '.join(names[:20])}",
            )
        num_own = len(owner) - (rows.files[-1][1] if self.unseen_path is not None else 0)
        second = {names[number] for number in owner[num_own:]}
        both = sorted(second & {names[number] for number in owner[:num_own]})
        require(
            not both,
            f"{PREFIX}.unseen_path {self.unseen_path}: client {both[0] if both else ''!r} has rows in {self.path} too; "
            "a client is in one of the files",
        )
        return tuple(one for one in names if one in second or one in self.unseen_clients)


SPLIT_COLUMN = "split"
"""Name of the split column in a table of clients that come later, if the training had none."""


def read_later(path: Path, columns: TableColumns, class_names: tuple[str, ...] | None) -> Samples:
    """The rows of clients that come later, encoded as those of the training; inputs are not standardised yet.

    Rows with a label are training samples and rows without are test samples, unless the training's `split_column`, or
    a column `split` of this table, assigns the rows.

    Args:
        path: the file.
        columns: encoding of the training's table.
        class_names: class names of the training; None: labels are numbers.

    Returns:
        Samples of the clients, by name; without a client column all rows belong to one client, named after the file.
        `split` is None if no column and no missing label assigns the rows.

    Raises:
        ConfigError: naming file, row, column and value of what is wrong.
    """
    rows = read_rows([(str(path), OPTION)], columns.reading._replace(classes=class_names))
    known = {str(one) for one in rows.frame} | {
        f"{date} {part}" for date in columns.dates for part in columns.date_parts
    }
    if lacking := [one.name for one in columns.features if one.name not in known]:
        raise ConfigError(
            f"{OPTION} {path}, column {few(map(repr, lacking))}: {rows.source} has no such column; it has "
            f"{few(map(str, rows.frame))}. The training read it: add it, with the value of each row"
        )
    if columns.label_column not in rows.frame:
        say(f"{rows.source} has no column {columns.label_column!r}: its rows have no label, and are predicted")
        rows = rows._replace(frame=rows.frame.assign(**{columns.label_column: np.nan}))
    columns = _without_missing(rows, columns)
    columns = columns._replace(split_column=columns.split_column or _own_split(rows, columns))
    label, client = columns.label_column, columns.client_column
    roles = (label, client, columns.split_column, columns.query_column)
    rows = typed(prepared(rows, columns, f"{OPTION} {path}, column", *filter(None, roles)), columns, "--")
    x, labelled = encode(rows, columns), ~missing_values(rows.frame[label])
    if class_names is None:
        y = np.where(labelled, rows.numbers(label, may_miss=True), 0)
    else:
        wrong = f"is not a class of the training ({', '.join(class_names)}); correct it"
        y, _ = rows.named(label, class_names, wrong, may_miss=True)
    if columns.query_column is not None:
        y = np.stack([y, rows.numbers(columns.query_column).astype(np.float32)], 1)
    owner, names = np.zeros(len(x), dtype=np.int64), [table_name(path)]
    if client is not None:
        names = sorted(rows.named(client)[1])
        owner, _ = rows.named(client, names)
    groups, order = _groups(rows, columns.group_column), _order(rows, columns)
    split = None if labelled.all() else np.where(labelled, 0, 2)
    if columns.split_column is not None:
        split = rows.split_roles(columns.split_column)
        bare = (split == 0) & ~labelled
        row = int(bare.argmax())
        require(not bare.any(), f"{rows.place(row)}: a training row without a label; label it, or mark it as test")
    for own in (owner == number for number in range(len(names))):
        x[own] = fill_in(x[own], columns, x[own if split is None else own & (split == 0)])
    return Samples(x, y, owner, names, class_names, split, labelled=labelled, groups=groups, order=order)


def _without_missing(rows: TableRows, columns: TableColumns) -> TableColumns:
    """The columns without those that a table can lack, and a line about each that this one does."""
    without = {
        "client_column": f"all rows belong to one client, {table_name(Path(rows.source))!r}",
        "group_column": "its rows are taken for one person each",
        "time_column": "its rows are taken in no order of time",
    }
    found = columns._asdict()
    for role, said in without.items():
        if found[role] not in (None, *rows.frame):
            say(f"{rows.source} has no column {found[role]!r}: {said}")
            found[role] = None
    return TableColumns(**found)


def _groups(rows: TableRows, column: str | None) -> np.ndarray | None:
    """Number of each row's person [n], over all clients; a row without one is a person."""
    if column is None:
        return None
    names = rows.texts(column, may_miss=True)
    _, number = np.unique(names.astype(str), return_inverse=True)
    return np.where(names == "", -1 - np.arange(len(names)), number)


def _order(rows: TableRows, columns: TableColumns) -> np.ndarray | None:
    """Time of each row [n], days for dates."""
    if (name := columns.time_column) is None:
        return None
    if not is_numeric(rows.frame[name]):
        rows = prepared(rows, columns._replace(features=(), missing_values=(), dates=(name,), date_parts=()), PREFIX)
    return rows.numbers(name)


def _own_split(rows: TableRows, columns: TableColumns) -> str | None:
    """The column `split` of a table if the training did not use it otherwise and it holds split names."""
    used = (columns.label_column, columns.client_column, *(one.name for one in columns.features))
    if SPLIT_COLUMN in used or SPLIT_COLUMN not in rows.frame.columns:
        return None
    return SPLIT_COLUMN if rows.frame[SPLIT_COLUMN].isin(SPLITS).all() else None
