"""Parts of a report that read a run's `predictions.csv`: groups of samples, calibration, thresholds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torchmetrics.functional.classification import binary_auroc

from lit_fed.errors import ConfigError
from lit_fed.pictures import style
from lit_fed.system.files import quote
from lit_fed.system.packages import mpl, pd
from lit_fed.system.spreadsheets import unquoted_table

__all__ = ["Predictions", "calibration_figure"]

OWN = ("client", "client_id", "sample", "row", "label", "prediction")
"""Columns of `predictions.csv` beside probabilities, responsibilities and those of `--keep`."""

CHANCES = "p_"
"""Beginning of the columns with the probability of a class."""

OF_TOKENS = ["label", "prediction"]
"""What stands in the place of classes if there are many: the probability of the label, and of the prediction."""

BINS = 10

THRESHOLDS = tuple(round(0.1 * step, 1) for step in range(1, 10))

MOST_VALUES = 10
"""A column of more different numbers is divided into quarters of the samples."""

Table = tuple[list[str], list[list[str]]]
"""Headings and rows."""


class Predictions(NamedTuple):
    """The labelled samples of `predictions.csv`."""

    frame: pd.DataFrame
    with_sets: bool = False  # whether columns `set`, `lower` and `upper` are of prediction sets, and not of `--keep`

    @classmethod
    def of(cls, folder: Path, *, with_sets: bool = False) -> Predictions | None:
        """Those in the folder of a run; None if there are none, or no sample has one class or number as label."""
        path = folder / "predictions.csv"
        if not path.is_file():
            return None
        columns = pd.read_csv(path, nrows=0).columns
        texts = ["client", *(["label", "prediction", "set"] if any(one.startswith(CHANCES) for one in columns) else [])]
        frame = pd.read_csv(
            path, dtype=dict.fromkeys(texts, str), keep_default_na=False, na_values=[""], low_memory=False
        )  # NA may be a label
        if not {"label", "prediction"} <= set(frame.columns):
            return None
        frame = unquoted_table(frame[frame["label"].notna()])
        return cls(frame, with_sets) if len(frame) else None

    @property
    def classes(self) -> list[str]:
        """Names of the classes; [] of quantities."""
        return [one.removeprefix(CHANCES) for one in self.frame.columns if one.startswith(CHANCES)]

    @property
    def positive(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Whether each label is the second of two classes, and its probability; None for other labels."""
        if len(self.classes) != 2 or self.classes == OF_TOKENS:
            return None
        name = self.classes[1]
        return (self.frame["label"].astype(str) == name).to_numpy(), self.frame[CHANCES + name].to_numpy(float)

    # ------------------------------------------------------------------ groups
    def groups(self, by: str) -> Table:
        """Results by the values of a column that `predict --keep` copied; of numbers by quarters.

        Raises:
            ConfigError: if there is no such column.
        """
        kept = [one for one in self.frame.columns if one not in OWN and not one.startswith(CHANCES)]
        if by not in self.frame:
            known = ", ".join(["client", *kept])
            raise ConfigError(f"--by {by}: predictions.csv has no such column; choose from {known}, or keep it by "
                              f"`predict --keep {quote(by)}`")  # fmt: skip
        values = self.frame[by]
        if values.dtype.kind in "iuf" and values.nunique() > MOST_VALUES:
            values = pd.qcut(values, 4, duplicates="drop")
        else:
            values = values.astype(str)
        headings, rows = [by, "samples", *self._names], []
        for name, own in self.frame.groupby(values, observed=True):
            rows.append([str(name), f"{len(own):,}", *self._replace(frame=own)._results])
        return headings, [*rows, ["all", f"{len(self.frame):,}", *self._results]]

    @property
    def _covered(self) -> pd.Series | None:
        """Whether the set or interval of each sample holds its label; None without any."""
        if not self.with_sets or not {"set"} | {"lower", "upper"} & set(self.frame.columns):
            return None
        if not self.classes:
            return self.frame["label"].between(self.frame["lower"], self.frame["upper"])
        pairs = zip(self.frame["label"], self.frame["set"].fillna(""), strict=True)
        return pd.Series([label in held.split("|") for label, held in pairs])

    @property
    def _names(self) -> list[str]:
        last = [] if self._covered is None else ["coverage (%)"]
        if not self.classes:
            return ["mse", "mean error", *last]
        of_two = ["AUROC (%)", f"{self.classes[1]!r} (%)"] if self.positive is not None else []
        return ["accuracy (%)", *of_two, *last]

    @property
    def _results(self) -> list[str]:
        last = [] if self._covered is None else [f"{100 * self._covered.mean():.1f}"]
        if not self.classes:
            error = self.frame["prediction"] - self.frame["label"]
            return [f"{(error**2).mean():.4g}", f"{error.mean():+.4g}", *last]
        hits = self.frame["prediction"].astype(str) == self.frame["label"].astype(str)
        found = [f"{100 * hits.mean():.1f}"]
        if self.positive is not None:
            is_positive, chance = self.positive
            both = 0 < is_positive.sum() < len(is_positive)
            area = binary_auroc(torch.tensor(chance), torch.tensor(is_positive).long()) if both else None
            found += ["" if area is None else f"{100 * float(area):.1f}", f"{100 * is_positive.mean():.1f}"]
        return [*found, *last]

    # ------------------------------------------------------------------ two classes
    def calibration(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean probability of the second class, its share and number of samples, of tenths of the probability."""
        assert self.positive is not None
        is_positive, chance = self.positive
        place = np.minimum((chance * BINS).astype(int), BINS - 1)
        number = np.bincount(place, minlength=BINS)
        sums = [np.bincount(place, weights=one, minlength=BINS) for one in (chance, is_positive)]
        held = number > 0
        return sums[0][held] / number[held], sums[1][held] / number[held], number[held]

    def calibration_table(self) -> Table:
        """The same as a table."""
        rows = [
            [f"{100 * p:.1f}", f"{100 * share:.1f}", f"{n:,}"] for p, share, n in zip(*self.calibration(), strict=True)
        ]
        return [f"predicted {self.classes[1]!r} (%)", "observed (%)", "samples"], rows

    def thresholds(self) -> Table:
        """What each threshold of the probability does."""
        assert self.positive is not None
        is_positive, chance = self.positive
        rows = []
        for limit in THRESHOLDS:
            said = chance >= limit
            shares = (
                (said & is_positive, is_positive), (~said & ~is_positive, ~is_positive), (said & is_positive, said),
                (~said & ~is_positive, ~said), (said == is_positive, np.ones(len(said), bool)),
            )  # fmt: skip
            cells = [f"{100 * one.sum() / of.sum():.1f}" if of.any() else "" for one, of in shares]
            rows.append([f"{limit:.1f}", *cells])
        usual = max(is_positive.mean(), 1 - is_positive.mean())
        none = self.classes[int(is_positive.mean() > 0.5)]
        rows.append([f"always {none!r}", "", "", "", "", f"{100 * usual:.1f}"])
        return ["from", "sensitivity (%)", "specificity (%)", "PPV (%)", "NPV (%)", "accuracy (%)"], rows


def calibration_figure(found: Predictions) -> Any:
    """Observed shares of the second class against its probabilities."""
    chance, share, number = found.calibration()
    with mpl.rc_context(style.COLUMN):
        figure = style.new_figure(*mpl.rcParams["figure.figsize"])
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], linestyle=":", color="grey")
        axes.plot(chance, share, color="black", linewidth=0.8)
        axes.scatter(chance, share, s=4 + 60 * number / number.max(), color="black")
        axes.set(
            xlabel=f"predicted probability of {found.classes[1]}", ylabel="observed share", xlim=(0, 1), ylim=(0, 1)
        )
        return figure
