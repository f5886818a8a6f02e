"""Medical data with natural clients from UCI's archive: patients with Parkinson's disease, and hospitals.

Tsanas, Little, McSharry, Ramig. Accurate Telemonitoring of Parkinson's Disease Progression by Noninvasive Speech Tests.
IEEE Transactions on Biomedical Engineering, 2010. Janosi, Steinbrunn, Pfisterer, Detrano. Heart Disease. UCI, 1988.
"""

from __future__ import annotations

import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from lit_fed.data.data_sets.base import PooledDataSet, Samples
from lit_fed.data.data_sets.in_memory import data_set_of_frame
from lit_fed.system.files import given_path, require_file, write_atomically

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["HeartDisease", "Parkinsons"]

ARCHIVE = "https://archive.ics.uci.edu/ml/machine-learning-databases"

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")

HEART_COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal",
    "num",
)  # fmt: skip

CODES = ("cp", "restecg", "slope", "thal")
"""Columns of heart disease whose numbers stand for categories."""

ZERO_IS_MISSING = ("trestbps=0", "chol=0")
"""Impossible values, which some hospitals write for missing ones."""


class _Archived(PooledDataSet):
    """Files of UCI's archive."""

    natural = True
    folder: ClassVar[str]
    files: ClassVar[tuple[str, ...]]

    root: str
    download: bool

    def prepare(self) -> None:
        """Download missing files."""
        place = given_path(self.root, "--data.dataset.root")
        for name in self.files if self.download else ():
            if not (place / name).is_file() and not (place / f"{name}.gz").is_file():
                place.mkdir(parents=True, exist_ok=True)
                with urllib.request.urlopen(f"{ARCHIVE}/{self.folder}/{name}") as source:
                    write_atomically(place / name, source.read())

    def _path(self, name: str) -> Path:
        """A file, perhaps compressed."""
        path = given_path(self.root, "--data.dataset.root") / name
        packed = path.with_name(f"{name}.gz")
        if packed.is_file():
            return packed
        require_file(path, f"give --data.dataset.download true, or save {ARCHIVE}/{self.folder}/{name} there")
        return path


@dataclass(frozen=True)
class Parkinsons(_Archived):
    """Voice recordings of 42 patients: x [5875, 16] voice measures, standardised; y a score of their disease.

    Args:
        root: folder with `parkinsons_updrs.data`.
        download: download it if it is missing.
        label: `motor_UPDRS` or `total_UPDRS`.
    """

    root: str = "data/parkinsons"
    download: bool = False
    label: str = "motor_UPDRS"

    folder = "parkinsons/telemonitoring"
    files = ("parkinsons_updrs.data",)

    def load(self) -> Samples:
        """The recordings; age, sex and time say who and when, and are left out."""
        import pandas as pd

        frame = pd.read_csv(self._path(self.files[0]))
        beside = [one for one in ("age", "sex", "test_time", "motor_UPDRS", "total_UPDRS") if one != self.label]
        return data_set_of_frame(frame, "subject#", self.label, task="regression", ignored_columns=beside).load()


@dataclass(frozen=True)
class HeartDisease(_Archived):
    """920 patients of four hospitals: x [920, 23], y 1 for narrowed vessels.

    Three hospitals lack whole columns. Missing values are medians, or most frequent categories, of the training rows of
    all clients.

    Args:
        root: folder with `processed.HOSPITAL.data` of Cleveland, Hungarian, Switzerland and VA.
        download: download missing files.
    """

    root: str = "data/heart"
    download: bool = False

    num_classes = 2
    folder = "heart-disease"
    files = tuple(f"processed.{name}.data" for name in HOSPITALS)

    def load(self) -> Samples:
        """The patients, by hospital."""
        import pandas as pd

        parts = [self._hospital(name) for name in HOSPITALS]
        frame = pd.concat(parts, ignore_index=True)
        frame["num"] = (frame["num"] > 0).astype(int)
        return data_set_of_frame(
            frame, "hospital", "num", category_columns=CODES, missing_values=ZERO_IS_MISSING, impute="median",
            unknown_categories="zeros",
        ).load()  # fmt: skip

    def _hospital(self, name: str) -> pd.DataFrame:
        import pandas as pd

        frame = pd.read_csv(self._path(f"processed.{name}.data"), names=list(HEART_COLUMNS), na_values=["?", "-9"])
        return frame.assign(hospital=name)
