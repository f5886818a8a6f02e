"""Convergence of FedEM and others: Figures 3 to 8 of https://arxiv.org/abs/2108.10252."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reproduction.fedem import TABLE2
from reproduction.fedem_more import settings_of
from reproduction.pictures import DASHES, MARKERS, panels, save
from reproduction.runs import Kept, Record, Run
from reproduction.settings import LABELS
from reproduction.tables import Scale, Table, grid, wrap

__all__ = ["TABLES"]

QUANTITIES = {
    "training loss": ("train/seen/loss@served",) * 2,
    "training accuracy": ("train/seen/accuracy",) * 2,
    "test loss": ("test/seen/loss", "val/seen/loss"),
    "test accuracy": ("test/seen/accuracy", "val/seen/accuracy"),
}
"""Keys of a run's curve; the second where it measured the rounds on validation samples."""


def convergence_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """The runs of Table 2."""
    return [run for setting in settings_of(scale) for run in setting.runs(seeds, TABLE2)]


def convergence_body(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """How far each method is at half of the rounds."""
    lines = wrap(
        "Loss and accuracy over the rounds, of the clients that were trained, on the samples that they train on and on "
        "their test samples (validation samples in runs that have some); mean over the seeds with a band of one "
        "standard deviation. Where no training curves are drawn, the runs did not measure them. The paper's figures "
        "give no numbers. The tables say how much of its last accuracy a method has at about half of the rounds."
    )
    for setting in settings_of(scale):
        rows = []
        for name in TABLE2:
            runs = setting.runs(seeds, [name])
            if not runs:
                continue
            records = kept.all(runs)
            rows.append([LABELS[name], *(_on_the_way(records) if records else ("not run", "", ""))])
        lines += ["", f"## {setting.label}", "", *grid(["algorithm", "round", "accuracy there", "at the end"], rows)]
    return lines


def _on_the_way(records: Sequence[Record]) -> tuple[str, str, str]:
    rounds, values = evaluated(records, "test accuracy")
    if not rounds:
        return "not kept", "", ""
    middle = int(np.abs(np.array(rounds) - rounds[-1] / 2).argmin())
    accuracy = 100 * np.mean(values, axis=0)
    return str(rounds[middle]), f"{accuracy[middle]:.2f}", f"{accuracy[-1]:.2f}"


def evaluated(records: Sequence[Record], quantity: str) -> tuple[list[int], list[list[float]]]:
    """Rounds up to the last, and values [seeds][rounds], of the records that have the quantity."""
    found = [series for record in records if (series := _series(record, quantity))]
    same = [one for one in found if list(one) == list(found[0])]
    return (list(found[0]), [list(one.values()) for one in same]) if found else ([], [])


def _series(record: Record, quantity: str) -> dict[int, float]:
    """A quantity by rounds; {} where the run has none."""
    validated = "validation_curve" in record
    curve, key = record["validation_curve" if validated else "curve"], QUANTITIES[quantity][validated]
    last = record["summary"]["rounds"]
    pairs = zip(curve.get("rounds", ()), curve.get(key, ()), strict=False)
    return {number: value for number, value in pairs if number <= last}


def convergence_picture(kept: Kept, scale: Scale, seeds: Sequence[int], path: Path) -> None:
    """A row of four panels for each data set; a method looks the same in all of them."""
    settings = settings_of(scale)
    figure, axes = panels([f"{one.label}: {quantity}" for one in settings for quantity in QUANTITIES], columns=4)
    for setting in settings:
        for quantity in QUANTITIES:
            axis = axes[f"{setting.label}: {quantity}"]
            axis.set(xlabel="round", ylabel="nats" if "loss" in quantity else "percent")
            for position, name in enumerate(TABLE2):
                rounds, values = evaluated(kept.all(setting.runs(seeds, [name])), quantity)
                if rounds:
                    _draw(axis, rounds, np.array(values) * (1 if "loss" in quantity else 100), position)
            if not axis.lines:
                axis.set_axis_off()
                axis.text(0.5, 0.5, "not measured", ha="center", transform=axis.transAxes)
    handles = [figure.axes[0].plot([], [], label=LABELS[name], **_look(one))[0] for one, name in enumerate(TABLE2)]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(TABLE2))
    save(figure, path)


def _look(position: int) -> dict[str, Any]:
    return {"color": f"C{position}", "linestyle": DASHES[position], "marker": MARKERS[position], "markersize": 4}


def _draw(axis: Any, rounds: Sequence[int], values: np.ndarray, position: int) -> None:
    """The mean over seeds, and a band of one standard deviation."""
    middle, deviation = values.mean(axis=0), values.std(axis=0)
    axis.plot(rounds, middle, markevery=max(1, len(rounds) // 8), **_look(position))
    if len(values) > 1:
        axis.fill_between(rounds, middle - deviation, middle + deviation, color=f"C{position}", alpha=0.15)


TABLES = [
    Table("fedem-convergence", convergence_runs, convergence_body, convergence_picture),
]
