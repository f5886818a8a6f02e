"""Columns of a table as inputs: numbers as they are, categories as zeros and a one, standardised by sums of clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from lit_fed.core.types import Population, Split
from lit_fed.data.data_sets.base import Normalisation, require
from lit_fed.data.data_sets.table_rows import TableRows, numbers, texts

__all__ = ["Feature", "TableColumns", "TableEncoder", "encode", "standardisation"]

MOST_CATEGORIES = 100
"""Texts that differ, in a column that nobody called one of categories."""

CONSTANT = 1e-7
"""A column whose standard deviation is a smaller part of its mean is constant: float32 tells no more apart."""


class Feature(NamedTuple):
    """A column that inputs are made from."""

    name: str
    categories: tuple[str, ...] | None = None  # an input of 0 or 1 for each; None: one input, the number itself

    @property
    def input_names(self) -> list[str]:
        """What its inputs are called."""
        return [self.name] if self.categories is None else [f"{self.name}={one}" for one in self.categories]


class TableColumns(NamedTuple):
    """How the columns of a table became inputs and labels, so that another table can be read alike."""

    features: tuple[Feature, ...]
    label_column: str
    client_column: str | None
    split_column: str | None
    separator: str
    unknown_categories: Literal["error", "zeros"]

    @property
    def input_names(self) -> list[str]:
        """What each input is called, [W]: the column, or column=category."""
        return [name for feature in self.features for name in feature.input_names]

    def plain(self) -> dict[str, Any]:
        """The same in strings and tuples, which a checkpoint may hold."""
        return self._asdict() | {"features": tuple(tuple(one) for one in self.features)}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> TableColumns:
        """The inverse of `plain`."""
        return cls(**plain | {"features": tuple(Feature(*one) for one in plain["features"])})


@dataclass(frozen=True)
class TableEncoder:
    """Makes inputs of the rows of a table, once it is known which of them are for training.

    Categories, means and standard deviations are those of the training samples of the seen clients, or of public rows.

    Args:
        rows: the table.
        columns: how it is read; of a feature with categories these are not known yet, ().
        category_columns: columns whose values are categories by the user's word, whatever they look like.
        standardize: shift and scale numbers.
        public: rows that they are learned from in place of the training samples; None: there are none.
    """

    rows: TableRows
    columns: TableColumns
    category_columns: tuple[str, ...]
    standardize: bool
    public: TableRows | None = None

    def __call__(self, seen: Population, unseen: Population | None) -> tuple[Population, Population | None]:
        """The same clients, with inputs [n, W] in the place of row numbers [n]."""
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
            """The clients with the rows of `inputs` that their row numbers name."""
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
            "become an input; leave it out by ignored_columns, or name it in category_columns",
        )
        return feature._replace(categories=categories)


def _learned(features: Sequence[Feature], normalisation: Normalisation | None) -> tuple[str, ...]:
    """What is learned from training rows, in words."""
    names = [one.name for one in features if one.categories is not None]
    said = (f"the categories of {', '.join(names)}",) if names else ()
    return said if normalisation is None else (*said, "means and standard deviations of inputs")


def encode(
    rows: TableRows, columns: TableColumns, mixed: Sequence[str] | None = None, option: str = "--"
) -> np.ndarray:
    """Inputs of all rows, before they are standardised.

    Args:
        rows: the table.
        columns: how it is read.
        mixed: columns of which some categories may look like numbers and others not; None: any.
        option: how the command line begins the options of the table, for error messages.

    Returns:
        Array [n, W] float32.

    Raises:
        ConfigError: naming row, column and value of what is missing, no number or no known category.
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
                    f"{option}unknown_categories zeros, which sets its inputs to 0",
                )  # fmt: skip
        start += len(position)
    return inputs


def standardisation(clients: Sequence[np.ndarray], features: Sequence[Feature]) -> Normalisation:
    """Means and standard deviations from sums that clients could share: no row leaves its client.

    Each client sends its number of samples and Σ x, learns the mean, and then sends Σ (x − mean)²; Σ x² itself would
    lose all digits of numbers that vary little about a large mean.

    Args:
        clients: inputs of each, [n_t, W].
        features: what they stand for; categories keep their zeros and ones.

    Returns:
        Constants of each input; where all are equal the standard deviation is 1.
    """
    count = sum(len(x) for x in clients)
    mean = _summed([x.sum(0, dtype=np.float64) for x in clients]) / count
    std = np.sqrt(_summed([np.square(x - mean).sum(0) for x in clients]) / count)
    std[std <= CONSTANT * np.abs(mean)] = 1
    kept = np.array([one.categories is not None for one in features for _ in one.input_names])
    mean[kept], std[kept] = 0, 1
    return Normalisation(tuple(mean.tolist()), tuple(std.tolist()))


def _summed(messages: list[np.ndarray]) -> np.ndarray:
    """What a server makes of one array from each client."""
    return np.sum(messages, axis=0)  # type: ignore[no-any-return]
