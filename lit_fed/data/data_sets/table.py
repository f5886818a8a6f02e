"""Your own table: a CSV or Parquet file with a sample in each row, and in one column whose it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lit_fed.data.data_sets.base import MOST_CLASSES, Names, PooledDataSet, Samples, names_of, require
from lit_fed.data.data_sets.client_folder import SPLITS
from lit_fed.data.data_sets.columns import (
    Feature,
    TableColumns,
    TableEncoder,
    TableRows,
    as_text,
    is_numeric,
    numbers,
    read_rows,
    require_values,
    split_names,
    texts,
)

__all__ = ["Table"]

PREFIX = "--data.dataset"
SAY = f"say by task ({PREFIX}.task) whether they are classes (classification) or quantities (regression)"


@dataclass(frozen=True)
class Table(PooledDataSet):
    """Samples are the rows of a .csv, .csv.gz or .parquet file; a column says whose each is.

    Columns of numbers are inputs as they are, columns of text one input of 0 or 1 for each text that a training row
    holds. Labels of text, or of at most 20 whole numbers, are classes and keep their names; labels with fractions are
    regression targets; of more whole numbers, and of a few that are written as fractions (1.0), `task` has to say what
    they are. A value that is missing is an error that names its row, counted from 1 behind the line of column names.
    Several names are a list, or one text with commas: `age, sex`. Parquet takes `pip install "pyarrow>=15"`.

    Args:
        path: the file, with a line of column names.
        client_column: column with the client of each row; null: `--data.partition` divides the rows.
        label_column: column with the labels.
        feature_columns: columns that inputs are made from, in this order; null: all others.
        ignored_columns: columns that take no part.
        category_columns: columns whose values are categories although they look like numbers, or are many.
        split_column: column that says `train`, `val` or `test`; null: fractions say it. Without any `val` or `test` in
            it a fraction of the training rows is taken.
        unseen_clients: names of clients that take no part in the training.
        unseen_path: another file with the same columns, whose clients take no part in the training.
        task: `classification` or `regression`; null: the labels decide.
        standardize: shift and scale columns of numbers by mean and standard deviation over the training rows, from sums
            that clients could share; checkpoints keep them for clients that come later.
        unknown_categories: of a text that no training row holds: an `error`, or `zeros` in all inputs of its column.
        separator: what stands between the values of a CSV file.
        constants: a table of public rows with the same columns, from which classes, categories, means and standard
            deviations are learned; null: they are learned from the clients' rows, of which they tell what ε of
            `--model.privacy` does not cover.
    """

    path: str = ""
    client_column: str | None = None
    label_column: str = ""
    feature_columns: Names | None = None
    ignored_columns: Names = ()
    category_columns: Names = ()
    split_column: str | None = None
    unseen_clients: Names = ()
    unseen_path: str | None = None
    task: Literal["classification", "regression"] | None = None
    standardize: bool = True
    unknown_categories: Literal["error", "zeros"] = "error"
    separator: str = ","
    constants: str | None = None

    def __post_init__(self) -> None:
        for name in ("feature_columns", "ignored_columns", "category_columns", "unseen_clients"):
            given = getattr(self, name)
            object.__setattr__(self, name, None if given is None else names_of(given))
        require(len(self.separator) == 1, f"{PREFIX}.separator is {self.separator!r}; give one character")
        for name, given in (("unseen_clients", self.unseen_clients), ("unseen_path", self.unseen_path)):
            require(
                not given or self.client_column is not None,
                f"{PREFIX}.{name} is {given}, and without a client_column a partition makes the clients; set "
                "client_column, or take --data.unseen_fraction",
            )
        roles = {
            "client_column": self.client_column,
            "label_column": self.label_column,
            "split_column": self.split_column,
        }
        given_roles = [(name, column) for name, column in roles.items() if column]
        for position, (name, column) in enumerate(given_roles):
            for other, its_column in (
                *given_roles[:position],
                *(("feature_columns", one) for one in self.feature_columns or ()),
            ):
                require(
                    column != its_column, f"{PREFIX}.{name} is {column!r}, and so is one of {other}; choose another"
                )

    @property
    def natural(self) -> bool:  # type: ignore[override]  # the base promises one answer for the whole class
        """Whether a column says who the clients are, so that a partition is refused."""
        return self.client_column is not None

    def load(self) -> Samples:
        """Row numbers as inputs, which `encode` turns into numbers, with labels, clients and splits."""
        rows, num_own = self._read()
        self._check_columns(rows)
        columns = TableColumns(
            self._features(rows), self.label_column, self.client_column, self.split_column, self.separator,
            self.unknown_categories,
        )  # fmt: skip
        public = self._public(rows, columns)
        labels, class_names = self._labels(rows, public)
        owner, names = self._owners(rows)
        categories = names_of(self.category_columns)
        encoder = TableEncoder(rows, columns, categories, self.standardize, public)
        return Samples(
            np.arange(len(rows.frame)), labels, owner, names, class_names, self._split(rows),
            self._unseen(rows, owner, names, num_own), encoder,
        )  # fmt: skip

    def _read(self) -> tuple[TableRows, int]:
        """The rows of both files, and how many stand in the first."""
        require(bool(self.path), f"Table: path is not set; pass {PREFIX}.path FILE")
        files = [(self.path, f"{PREFIX}.path")]
        own = read_rows(files, self.separator)
        if self.unseen_path is None:
            return own, len(own.frame)
        return read_rows([*files, (self.unseen_path, f"{PREFIX}.unseen_path")], self.separator), len(own.frame)

    def _public(self, rows: TableRows, columns: TableColumns) -> TableRows | None:
        """The rows that constants are learned from, if there are some."""
        if self.constants is None:
            return None
        option = f"{PREFIX}.constants"
        public = read_rows([(self.constants, option)], self.separator)
        names = [*(one.name for one in columns.features), self.label_column]
        public.require_columns(names, f"{option} must have the column")
        for name in names:
            require_values(public, name)
        return public

    def _check_columns(self, rows: TableRows) -> None:
        require(
            bool(self.label_column),
            f"label_column is not set; give one of the columns {', '.join(map(str, rows.frame.columns[:20]))}",
        )
        for name in ("client_column", "label_column", "split_column"):
            column = getattr(self, name)
            rows.require_columns([column] if column else [], name)
        for name in ("feature_columns", "ignored_columns", "category_columns"):
            rows.require_columns(getattr(self, name) or (), name)

    def _features(self, rows: TableRows) -> tuple[Feature, ...]:
        """The columns that inputs are made from; those with categories do not know them yet."""
        taken = {self.client_column, self.label_column, self.split_column, *self.ignored_columns}
        names = self.feature_columns or tuple(one for one in map(str, rows.frame.columns) if one not in taken)
        require(bool(names), f"{rows.source}: no column is left to make inputs from; add some, or set feature_columns")
        for name in names:
            require(
                self.feature_columns is not None or not (name.startswith("Unnamed: ") or not name.strip()),
                f"{rows.source}: a column has no name, such as the row numbers that pandas writes without index=False; "
                f"name it, or leave it out by ignored_columns {name!r}",
            )
            require_values(rows, name)
        return tuple(Feature(name, () if self._is_category(rows, name) else None) for name in names)

    def _is_category(self, rows: TableRows, name: str) -> bool:
        if name in self.category_columns:
            return True
        if is_numeric(rows.frame[name]):
            numbers(rows, name)  # an infinite one is an error now
            return False
        texts(rows, name)
        return True

    def _labels(self, rows: TableRows, public: TableRows | None) -> tuple[np.ndarray, tuple[str, ...] | None]:
        """Labels [n], float32 without names of classes, or int64 with them; if rows are public, with theirs."""
        require_values(rows, self.label_column)
        values = rows.frame[self.label_column]
        floating = is_numeric(values) and values.dtype.kind == "f"
        if floating and self.task is None:
            self._check_floating(rows, values.to_numpy(dtype=np.float64))
        if (self.task or ("regression" if floating else "classification")) == "regression":
            return numbers(rows, self.label_column).astype(np.float32), None
        found = texts(rows, self.label_column, mixed=self.task is not None)
        names = _sorted_names(found, numeric=is_numeric(values) and values.dtype.kind != "b")
        require(
            self.task is not None or not is_numeric(values) or len(names) <= MOST_CLASSES,
            f"{rows.source}: column {self.label_column!r} holds {len(names)} different whole numbers; {SAY}",
        )
        require(
            len(names) > 1,
            f"{rows.source}: all labels in column {self.label_column!r} are {names[0]!r}; give two classes",
        )
        if public is not None:
            there = texts(public, self.label_column, mixed=True)
            names = _sorted_names(there, numeric=is_numeric(public.frame[self.label_column]))
            unknown = np.flatnonzero(~np.isin(found, names))
            if len(unknown):
                row = int(unknown[0])
                raise rows.error(row, self.label_column, f"{found[row]!r} is no label in {public.source}; add a row")
        number = {name: position for position, name in enumerate(names)}
        return np.array([number[one] for one in found]), names

    def _check_floating(self, rows: TableRows, values: np.ndarray) -> None:
        """Refuse a few whole numbers that are written as fractions, 1.0, since classes often are."""
        few = np.unique(values)
        require(
            len(few) > MOST_CLASSES or bool((few != few.round()).any()),
            f"{rows.source}: column {self.label_column!r} holds {len(few)} whole numbers as fractions, such as "
            f"{few[0]:.1f}; {SAY}",
        )

    def _owners(self, rows: TableRows) -> tuple[np.ndarray | None, list[str] | None]:
        """The client of each row [n], and the clients' names in order."""
        if self.client_column is None:
            return None, None
        found = texts(rows, self.client_column, mixed=True)
        names = _sorted_names(found, numeric=is_numeric(rows.frame[self.client_column]))
        number = {name: position for position, name in enumerate(names)}
        return np.array([number[one] for one in found]), list(names)

    def _split(self, rows: TableRows) -> np.ndarray | None:
        """The split of each row [n], where a column says it."""
        if self.split_column is None:
            return None
        found = split_names(rows, self.split_column)
        return np.array([SPLITS.index(one) for one in found])

    def _unseen(
        self, rows: TableRows, owner: np.ndarray | None, names: list[str] | None, num_own: int
    ) -> tuple[str, ...]:
        """Names of the clients that take no part in the training."""
        if owner is None or names is None:
            return ()
        for name in self.unseen_clients:
            require(
                name in names,
                f"unseen_clients: no row of {rows.source} is of a client {name!r}; there are {', '.join(names[:20])}",
            )
        second = {names[number] for number in owner[num_own:]}
        both = sorted(second & {names[number] for number in owner[:num_own]})
        require(
            not both,
            f"{PREFIX}.unseen_path {self.unseen_path}: client {both[0] if both else ''!r} has rows in {self.path} too; "
            "a client is in one of the files",
        )
        return tuple(one for one in names if one in second or one in self.unseen_clients)


def _sorted_names(found: np.ndarray, *, numeric: bool) -> tuple[str, ...]:
    """Each text once: in the order of the numbers that they are, or of the alphabet."""
    names: Sequence[str] = {as_text(one) for one in found}  # type: ignore[assignment]
    return tuple(sorted(names, key=float) if numeric else sorted(names))
