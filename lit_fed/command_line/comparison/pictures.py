"""Pictures of several runs side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lit_fed.command_line.comparison.runs import FinishedRun, Group
from lit_fed.pictures.run import evaluated_split
from lit_fed.pictures.style import (
    COLOURS,
    COLUMN,
    COLUMN_WIDTH,
    byte_unit,
    draw_curve,
    few_ticks,
    legend_above,
    look,
    percent,
    save,
    scale_of,
)

__all__ = ["draw_comparison"]

UNSEEN_BELOW = 0.36
"""How far below the box of the seen clients the mark of the unseen ones stands, in rows."""

LONGEST_NAME = 44
"""Letters of a name in a legend; a longer one is cut."""


def draw_comparison(groups: Sequence[Group], metric: str, output: Path, formats: Sequence[str]) -> None:
    """Draw the metric against rounds and against bytes, and the clients of every run.

    Args:
        groups: runs with different seeds under one name.
        metric: `accuracy`, `mse` or `loss`.
        output: folder of the pictures.
        formats: of each picture, `png`, `pdf` or `svg`.
    """
    import matplotlib as mpl

    with mpl.rc_context(COLUMN):
        figures = {
            f"{metric}_vs_rounds": _curves(groups, metric, bytes_sent=False),
            f"{metric}_vs_bytes": _curves(groups, metric, bytes_sent=True),
            f"client_{metric}": _clients(groups, metric),
        }
        for name, figure in figures.items():
            for suffix in formats:
                save(figure, output / f"{name}.{suffix}")


class _Curve(NamedTuple):
    """A metric at the rounds that all runs of a group evaluated."""

    name: str
    rounds: np.ndarray  # [n]
    sent: np.ndarray  # [n] bytes until then, mean over runs
    values: np.ndarray  # [runs, n], as drawn


def _curve(group: Group, metric: str) -> _Curve:
    import pandas as pd

    key = f"{evaluated_split(group.runs[0].history)}/seen/{metric}"
    histories = [run.history.set_index("step") for run in group.runs]
    known = [one[key].dropna() if key in one else one["sent"][:0] for one in histories]
    table = pd.concat(known, axis=1, join="inner").sort_index()
    sent = pd.concat([one["sent"] for one in histories], axis=1).loc[table.index].mean(axis=1)
    values = percent(metric)[0] * table.to_numpy(dtype=float).T
    return _Curve(_cut(group.name), table.index.to_numpy() + 1, sent.to_numpy(), values)


def _curves(groups: Sequence[Group], metric: str, *, bytes_sent: bool) -> Any:
    from matplotlib.figure import Figure

    curves = [_curve(group, metric) for group in groups]
    columns = 2 if max(len(curve.name) for curve in curves) <= 20 else 1
    figure = Figure(figsize=(COLUMN_WIDTH, 2.1 + 0.17 * -(-len(groups) // columns)))
    axes = figure.subplots()
    size, unit = byte_unit(max(curve.sent.max(initial=0) for curve in curves))
    for position, curve in enumerate(curves):
        if len(curve.rounds):
            _draw(axes, position, curve, curve.sent / size if bytes_sent else curve.rounds)
    splits = "/".join(sorted({evaluated_split(run.history) for group in groups for run in group.runs}))
    axes.set_ylabel(f"{splits} {metric} of seen clients{percent(metric)[1]}")
    if metric != "accuracy":
        axes.set_yscale(scale_of(np.concatenate([curve.values.mean(0) for curve in curves])))
    _label_x(axes, curves, f"{unit} sent and received by all clients" if bytes_sent else "round")
    legend_above(figure, columns)
    return figure


def _draw(axes: Any, position: int, curve: _Curve, x: np.ndarray) -> None:
    """Mean and spread over seeds; of runs that send nothing a level line at their last value."""
    options = {"label": curve.name, "color": COLOURS[position % len(COLOURS)], **look(position)}
    middle = curve.values.mean(0)
    if x[-1] == 0:
        axes.axhline(middle[-1], **options | {"marker": "", "label": f"{curve.name} (sends nothing)"})
    else:
        deviation = curve.values.std(0, ddof=1) if len(curve.values) > 1 else None
        draw_curve(axes, x, middle, deviation, **options)


def _label_x(axes: Any, curves: Sequence[_Curve], label: str) -> None:
    """A logarithmic axis where one run sends far more than another."""
    totals = [curve.sent[-1] for curve in curves if curve.sent.any()]
    axes.set_xlabel(label)
    if label != "round" and totals and max(totals) > 10 * min(totals):
        axes.set_xscale("log")
    else:
        axes.xaxis.set_major_locator(few_ticks(whole=label == "round"))


def _clients(groups: Sequence[Group], metric: str) -> Any:
    """For each name the range of the seen clients, their middle half and the median, and marks for statistics."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(COLUMN_WIDTH, 1.1 + 0.42 * len(groups)))
    axes = figure.subplots()
    factor, unit = percent(metric)
    explained: set[str] = set()
    for height, group in enumerate(reversed(groups)):
        clients = np.concatenate([_of_seen(run, metric) for run in group.runs])
        _box(axes, height, factor * clients)
        for key, label, style in MARKS:
            found = [run.summary[name] for run in group.runs if (name := f"test/{key.format(metric)}") in run.summary]
            if found:
                level = height - (UNSEEN_BELOW if "unseen" in key else 0)
                axes.plot(
                    factor * np.mean(found), level, label=None if label in explained else label, clip_on=False, **style
                )
                explained.add(label)
    axes.set_yticks(range(len(groups)), [textwrap.fill(_cut(group.name), 18) for group in reversed(groups)])
    axes.set(xlabel=f"test {metric} of a client{unit}", ylim=(-0.7, len(groups) - 0.4))
    axes.grid(visible=False, axis="y")
    legend_above(figure, 3)
    return figure


MARKS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("seen/{}", "mean", {"marker": "D", "color": "black", "linestyle": "", "markersize": 4}),
    ("seen/{}_decile", "worst decile", {
        "marker": "v", "color": "#1b4f8a", "markerfacecolor": "white", "linestyle": "", "markersize": 5.5,
    }),
    ("unseen/{}", "mean of unseen", {
        "marker": "s", "color": "#d1701f", "markerfacecolor": "white", "linestyle": "", "markersize": 5,
    }),
)  # fmt: skip
"""Keys of summary.json after the split, and how they are marked."""


def _of_seen(run: FinishedRun, metric: str) -> np.ndarray:
    return run.clients.loc[run.clients["population"] == "seen", metric].dropna().to_numpy()


def _box(axes: Any, height: int, values: np.ndarray) -> None:
    """A line from the worst to the best, a box of the middle half, and a tick at the median."""
    low, first, middle, third, high = np.quantile(values, [0, 0.25, 0.5, 0.75, 1])
    axes.hlines(height, low, high, color="0.4", linewidth=0.9)
    axes.barh(height, third - first, left=first, height=0.46, color="0.85", edgecolor="0.4", linewidth=0.8)
    axes.vlines(middle, height - 0.23, height + 0.23, color="0.2", linewidth=1.4)


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
