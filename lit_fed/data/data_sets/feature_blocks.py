"""Vertical federation: parties with different features of the same samples; one party has the labels.

ROOT/labels.npz              y_train, y_test
ROOT/parties/<party>.npz     x_train, x_test: features of the same rows in the same order
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from lit_fed.core.seeds import generator
from lit_fed.core.types import Population
from lit_fed.data.data_sets.base import PLACE, ClientDataSet, empty_split, make_split, require
from lit_fed.data.data_sets.client_folder import ClientArrays, checked, read_files
from lit_fed.data.data_sets.npz import read_npz
from lit_fed.errors import check_settings
from lit_fed.system.files import given_path

__all__ = ["FeatureBlocks"]

TEST_FRACTION = 0.2
"""Share of test rows of scikit-learn's tables."""


@dataclass(frozen=True)
class FeatureBlocks(ClientDataSet):
    """Parties with different features; each has all training rows, with zeros in place of the others' features.

    The first party holds the labels; the others get the same array, which algorithms must not read. Predictions need
    the features of all parties, so test rows have all features and are divided among the parties.

    Args:
        table: a table of scikit-learn, standardised by the training rows, its features divided among the parties in
            order: `diabetes` (442 rows, 10 features, regression) or `breast_cancer` (569 rows, 30 features, two
            classes).
        num_parties: number of parties of a table.
        root: folder with `labels.npz` and `parties/*.npz` in place of a table; the first party by name has the labels.
    """

    table: Literal["diabetes", "breast_cancer"] = "diabetes"
    num_parties: int = 3
    root: str = ""

    divided_by = "features"

    def __post_init__(self) -> None:
        check_settings(self, prefix=PLACE, num_parties=">= 1")

    def load(self) -> tuple[Population, None]:
        parties = _read_parties(given_path(self.root, "--data.dataset.root")) if self.root else self._from_table()
        first, width = parties[0].arrays, sum(party.arrays["x_train"].shape[1] for party in parties)
        num_train, num_test = len(first["y_train"]), len(first["y_test"])
        x_train = np.zeros((len(parties), num_train, width), dtype=np.float32)
        x_test = np.zeros((num_test, width), dtype=np.float32)
        start = 0
        for own, party in zip(x_train, parties, strict=True):
            columns = slice(start, start := start + party.arrays["x_train"].shape[1])
            own[:, columns], x_test[:, columns] = party.arrays["x_train"], party.arrays["x_test"]
        train = make_split(
            x_train.reshape(-1, width), np.tile(first["y_train"], len(parties)), np.full(len(parties), num_train)
        )
        dealt = [np.arange(number, num_test, len(parties)) for number in range(len(parties))]
        rows = np.concatenate(dealt)
        test = make_split(x_test[rows], first["y_test"][rows], np.array([len(part) for part in dealt]))
        return Population(train, empty_split(train), test, [party.name for party in parties]), None

    def _from_table(self) -> list[ClientArrays]:
        """Divide the columns of a scikit-learn table evenly among parties."""
        from sklearn import datasets

        table = getattr(datasets, f"load_{self.table}")()
        x, y = table.data, table.target.astype(np.float32 if self.table == "diabetes" else np.int64)
        require(
            self.num_parties <= x.shape[1],
            f"FeatureBlocks: num_parties = {self.num_parties}, but {self.table} has {x.shape[1]} features; choose less",
        )
        order = generator(0, 0, 0, "feature blocks").permutation(len(x))
        test, train = np.split(order, [round(TEST_FRACTION * len(x))])
        x = ((x - x[train].mean(0)) / x[train].std(0)).astype(np.float32)
        blocks = np.array_split(np.arange(x.shape[1]), self.num_parties)
        return [
            ClientArrays(
                str(party),
                {"x_train": x[train][:, own], "x_test": x[test][:, own], "y_train": y[train], "y_test": y[test]},
                {},
            )
            for party, own in enumerate(blocks)
        ]


def _read_parties(root: Path) -> list[ClientArrays]:
    """The parties of a folder, by name, each with the labels."""
    require(root.is_dir(), f"{root}: no such folder; correct --data.dataset.root")
    labels = root / "labels.npz"
    require(labels.is_file(), f"{labels}: no such file; save y_train and y_test in it")
    require((root / "parties").is_dir(), f"{root / 'parties'}: no such folder; save a .npz file per party in it")
    y = read_npz(labels, ("y_train", "y_test"), ())
    parties = read_files(root / "parties", ("x_train", "x_test"), ())
    require(bool(parties), f"{root / 'parties'}: no .npz file; save one per party")
    for party in parties:
        _check_rows(party, y, str(labels))
    return [checked(party._replace(arrays=party.arrays | y)) for party in parties]


def _check_rows(party: ClientArrays, y: dict[str, np.ndarray], labels: str) -> None:
    """Refuse features that are not a table, change in width, or do not match the number of labels."""
    for split in ("train", "test"):
        x, source = party.arrays[f"x_{split}"], party.sources[split]
        require(
            x.ndim == 2 and x.shape[1] == party.arrays["x_train"].shape[-1],
            f"{source}: x_{split} has shape {list(x.shape)}; store a table of rows and features, as wide in x_train as "
            "in x_test",
        )
        require(
            len(x) == len(y[f"y_{split}"]),
            f"{source}: x_{split} has {len(x)} rows, but y_{split} in {labels} has {len(y[f'y_{split}'])}; store the "
            "same rows in the same order for all parties",
        )
