"""Encodes the rows of a table once they are divided, by what the training rows alone tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from lit_fed.core.types import Population, Split
from lit_fed.data.data_sets.base import (
    CONSTANT,
    OF_LABELS,
    Normalisation,
    input_array,
    require,
    say,
    scaled_labels,
)
from lit_fed.data.data_sets.columns import Feature, TableColumns, encode, fill_in, standardisation, typed
from lit_fed.data.data_sets.fills import learned_fills, summed
from lit_fed.data.data_sets.rows import SHOWN, TableRows
from lit_fed.system.names import few

if TYPE_CHECKING:
    import pandas as pd

    from lit_fed.data.data_sets.table import Table

__all__ = ["TableEncoder"]

MOST_CATEGORIES = 100
"""Maximum number of categories inferred for a text column."""


@dataclass(frozen=True)
class TableEncoder:
    """Encodes the rows of a table after the split.

    Categories, means and standard deviations are learned from the seen clients' training samples, or from public rows.

    Args:
        settings: what the table is read by.
        rows: the table, as of `prepared`.
        columns: encoding; categories of features are still empty, ().
        public: rows to learn from in place of the training samples; None: none.
        label_scale: standardise labels by mean and standard deviation of the training labels.
    """

    settings: Table
    rows: TableRows
    columns: TableColumns
    public: TableRows | None
    label_scale: bool

    def __call__(self, seen: Population, unseen: Population | None) -> tuple[Population, Population | None]:
        """Replace row numbers [n] by inputs [n, W]; rows of excluded clients are not read."""
        populations = [one for one in (seen, unseen) if one is not None]
        kept = torch.cat([split.x for one in populations for split in one.splits]).unique()
        rows = self.rows if len(kept) == len(self.rows.frame) else self.rows.taken(kept.numpy())
        origin = kept if rows.origin is None else torch.from_numpy(rows.origin)

        def anew(population: Population) -> Population:
            population = population.with_splits(
                lambda split: Split(torch.searchsorted(kept, split.x), split.y, split.offsets)
            )
            return population._replace(rows=tuple(origin[split.x] for split in population.splits))

        return replace(self, rows=rows)._encoded(*map(anew, populations))

    def _encoded(self, seen: Population, unseen: Population | None = None) -> tuple[Population, Population | None]:
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
        given = rows.frame.iloc[train_rows][[one.name for one in columns.features]]
        _say_constant_columns(given, [len(one) for one in clients], seen.names, self.rows.source)
        known = clients if public is None else [encode(public, columns, option)]
        if self.settings.impute is not None:
            columns = self._filled(columns, known)
            for population in (seen, unseen):
                for own, every in () if population is None else _rows_by_client(population):
                    inputs[every] = fill_in(inputs[every], columns, inputs[own])
            known = [fill_in(x, columns, x) for x in known]
        normalisation = None
        if self.settings.standardize and columns.numeric:
            normalisation = standardisation(known, columns)
            inputs = normalisation.apply(inputs)
        inputs = input_array(inputs)
        scale, labels = None, np.zeros(0)
        if self.label_scale:
            labels = self.rows.numbers(columns.label_column)
            scale = self._label_scale(np.split(labels[train_rows], ends))
        if scale is not None:
            labels = scaled_labels(labels, scale)
        learned = () if self.public is not None else _learned(columns.features, normalisation)
        if scale is not None and self.public is None:
            learned = (*learned, OF_LABELS)

        def encoded(population: Population) -> Population:
            def of_rows(split: Split) -> Split:
                rows = split.x.numpy()
                y = split.y if scale is None else torch.from_numpy(labels[rows])
                return Split(torch.from_numpy(inputs[rows]), y, split.offsets)

            population = population.with_splits(of_rows)
            return population._replace(columns=columns, normalisation=normalisation, learned=learned, label_scale=scale)

        return encoded(seen), None if unseen is None else encoded(unseen)

    def _label_scale(self, clients: Sequence[np.ndarray]) -> tuple[float, float] | None:
        """Mean and standard deviation of training labels [n_t], from sums over clients; None if they are constant."""
        if self.public is not None:
            clients = [self.public.numbers(self.columns.label_column)]
        count = sum(map(len, clients))
        mean = float(summed([y.sum() for y in clients])) / count
        std = float(np.sqrt(summed([np.square(y - mean).sum() for y in clients]) / count))
        return (mean, std) if std > CONSTANT * abs(mean) else None

    def _learned(self, feature: Feature, frame: pd.DataFrame) -> Feature:
        """The feature with its indicator, and the categories of the rows to learn from in alphabetical order."""
        values = frame[feature.name].to_numpy()
        missing = feature.missing(values)
        feature = feature._replace(indicator=self.settings.indicators and bool(missing.any()))
        if feature.categories is None:
            return feature
        counts = Counter(values[~missing])
        categories = tuple(sorted(counts))
        require(
            bool(categories),
            f"{self.rows.source}: no training row has a value of {feature.name}; leave the column out "
            "by ignored_columns",
        )
        require(
            len(categories) <= MOST_CATEGORIES or feature.name in self.settings.category_columns,
            f"{self.rows.source}: column {feature.name!r} holds {len(categories)} different texts, each of which would "
            "become an input; leave the column out by ignored_columns, or name it in category_columns (dates: in "
            "date_columns)",
        )
        most = max(categories, key=lambda one: counts[one], default="")
        return feature._replace(
            categories=categories, fill=most if self.settings.impute == "most_frequent" else feature.fill
        )

    def _filled(self, columns: TableColumns, clients: Sequence[np.ndarray]) -> TableColumns:
        """The columns with what takes the place of missing numbers, from sums over clients."""
        numeric = columns.numeric
        values = [x[:, numeric] for x in clients]
        if self.settings.impute == "constant":
            fills = np.full(len(numeric), self.settings.impute_value)
        else:
            assert self.settings.impute is not None
            fills = learned_fills(self.settings.impute, values)
            names = [one.name for one in columns.features if one.categories is None]
            empty = [name for name, fill in zip(names, fills, strict=True) if np.isnan(fill)]
            require(
                not empty,
                f"{self.rows.source}: no training row has a value of {few(empty, SHOWN)}; leave the column out "
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
    splits = [np.split(split.x.numpy(), split.offsets[1:-1].numpy()) for split in population.splits]
    for own in zip(*splits, strict=True):
        yield own[0], np.concatenate(own)


FEW_ROWS = 10
"""A column that is constant in fewer rows of a client says nothing about this client alone."""


def _say_constant_columns(rows: pd.DataFrame, clients: Sequence[int], names: Sequence[str], source: str) -> None:
    """Name in one line each the columns that never vary within a client, and those that do not at some clients.

    Args:
        rows: inputs of the training samples, client by client.
        clients: the number of rows of each client.
        names: the clients' names.
        source: name of the table.
    """
    columns, starts = [name for name in rows if rows[name].nunique() > 1], np.cumsum([0, *clients])
    grouped = rows[columns].groupby(np.repeat(np.arange(len(clients)), clients))
    one_value = grouped.nunique(dropna=False).eq(1)
    never = [name for name in columns if one_value[name].all() and max(clients) > 1]
    if never:
        what = "varies" if len(never) == 1 else "vary"
        effect = "its effect" if len(never) == 1 else "their effects"
        say(f"{source}: {few(never, SHOWN)} never {what} within a client: {effect} cannot be told from the client's")
    said = []
    for name in columns:
        if name in never:
            continue
        alone = np.flatnonzero(one_value[name] & (grouped.size() >= FEW_ROWS)).tolist()
        some = [f"{names[one]} ({_shown(rows[name].iloc[starts[one]])})" for one in alone]
        said += [f"{name} at {few(some)}"] if some else []
    if said:
        say(f"{source}: columns with one value at a client: {few(said, between='; ')}")


def _shown(value: float | str) -> str:
    return value or "empty" if isinstance(value, str) else "empty" if np.isnan(value) else f"{value:g}"
