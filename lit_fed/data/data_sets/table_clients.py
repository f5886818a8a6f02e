"""Clients of another table, read as the table of a training was read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lit_fed.data.data_sets.base import require
from lit_fed.data.data_sets.client_folder import SPLITS, ClientArrays
from lit_fed.data.data_sets.columns import TableColumns, encode
from lit_fed.data.data_sets.table_rows import (
    TableRows,
    as_text,
    missing_values,
    numbers,
    read_rows,
    split_names,
    table_name,
    texts,
)

__all__ = ["read_table_clients"]

OPTION = "--clients"
SPLIT_COLUMN = "split"
"""Name of the column that says `train`, `val` or `test` in a table whose training had no such column."""


def read_table_clients(path: Path, columns: TableColumns, class_names: tuple[str, ...] | None) -> list[ClientArrays]:
    """The clients of a table, with inputs that are not standardised yet.

    Rows with a label are for training, rows without one are to be predicted. The `split_column` of the training, or a
    column `split` of this table, says it instead, and rows of `val` play no part.

    Args:
        path: a .csv, .csv.gz or .parquet file with the columns of the training's table.
        columns: how that was read.
        class_names: its classes; None: labels are numbers.

    Returns:
        `x_train` and `y_train` of each client and, if it has rows for that or a column says the split, `x_test` and
        `y_test`; by name. Without a client column all rows are those of one client, called as the file.

    Raises:
        ConfigError: naming file, row, column and value of what is wrong.
    """
    rows = read_rows([(str(path), OPTION)], columns.separator)
    columns = columns._replace(split_column=columns.split_column or _own_split(rows, columns))
    wanted = [one.name for one in columns.features]
    wanted += [one for one in (columns.label_column, columns.client_column, columns.split_column) if one]
    rows.require_columns(wanted, f"{OPTION} {path}, column")
    x, labelled = encode(rows, columns), ~missing_values(rows.frame[columns.label_column])
    y = _labels(rows, columns.label_column, labelled, class_names)
    if columns.client_column is None:
        clients = np.full(len(x), table_name(path), dtype=object)
    else:
        clients = texts(rows, columns.client_column, mixed=True)
    split = (
        np.where(labelled, "train", "test") if columns.split_column is None else split_names(rows, columns.split_column)
    )
    arrays = []
    for name in sorted(set(clients)):
        require("/" not in name, f"{path}: client {name!r} would be a file in a folder of results; call it without a /")
        own = clients == name
        client = _client(rows, name, own & (split == "train"), own & (split == "test"), x, y, labelled)
        if columns.split_column is not None and "x_test" not in client.arrays:  # it says that nothing is to be tested
            client.arrays.update(x_test=x[:0], y_test=y[:0])
        arrays.append(client)
    return arrays


def _own_split(rows: TableRows, columns: TableColumns) -> str | None:
    """The column `split` of a table, unless the training used it for something else or it holds other words."""
    used = (columns.label_column, columns.client_column, *(one.name for one in columns.features))
    if SPLIT_COLUMN in used or SPLIT_COLUMN not in rows.frame.columns:
        return None
    return SPLIT_COLUMN if rows.frame[SPLIT_COLUMN].isin(SPLITS).all() else None


def _client(
    rows: TableRows, name: str, train: np.ndarray, test: np.ndarray, x: np.ndarray, y: np.ndarray, labelled: np.ndarray
) -> ClientArrays:
    """One client, from what says which rows [n] are its own for training and testing."""
    source = f"{rows.source}: client {name!r}"
    bare = train & ~labelled
    require(
        not bare.any(),
        f"{rows.place(int(bare.argmax()))}: a training row without a label; label it, or call it test",
    )
    require(
        bool(train.any()), f"{source} has no row with a label to adapt on; label one at least, or leave the client out"
    )
    known = labelled[test]
    require(
        bool(known.all() or not known.any()),
        f"{source}: some of its test rows have a label, and others not; label all of them or none",
    )
    arrays = {"x_train": x[train], "y_train": y[train]}
    if test.any():
        arrays |= {"x_test": x[test]} | ({"y_test": y[test]} if known.all() else {})
    return ClientArrays(name, arrays, dict.fromkeys(SPLITS, source))


def _labels(rows: TableRows, column: str, labelled: np.ndarray, class_names: tuple[str, ...] | None) -> np.ndarray:
    """Labels [n], 0 where there is none."""
    if class_names is None:
        y = np.zeros(len(labelled), dtype=np.float32)
        places = np.flatnonzero(labelled)
        part = TableRows(rows.frame.iloc[places], rows.source, lambda row: rows.place(int(places[row])))
        y[places] = numbers(part, column)
        return y
    number = {name: position for position, name in enumerate(class_names)}
    y = np.zeros(len(labelled), dtype=np.int64)
    for row in np.flatnonzero(labelled).tolist():
        name = as_text(rows.frame[column].iloc[row])
        if name not in number:
            raise rows.error(
                row, column, f"{name!r} is no class of the training ({', '.join(class_names)}); correct it"
            )
        y[row] = number[name]
    return y
