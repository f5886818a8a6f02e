"""The picture of a sweep: one key a line, two a heat map, more a panel each; readable in grey."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from optuna.distributions import CategoricalDistribution

from lit_fed.command_line.sweeping.results import Result, short_names
from lit_fed.command_line.sweeping.sweep_file import Sweep, choices_of
from lit_fed.pictures.style import STYLE, save, scale_of

__all__ = ["draw_sweep"]

MOST_PANELS_IN_ROW = 3
INK = "#1b4f8a"


def draw_sweep(sweep: Sweep, results: Sequence[Result], path: Path) -> None:
    """Draw the metric against what was varied.

    Args:
        sweep: what was searched.
        results: its finished points, at least one.
        path: the file to write.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    names = short_names(list(sweep.parameters))
    choices = all(isinstance(one, CategoricalDistribution) for one in sweep.parameters.values())
    with mpl.rc_context(STYLE):
        if len(names) == 2 and choices:
            figure = _heat_map(sweep, results, names, Figure)
        else:
            figure = _panels(sweep, results, names, Figure)
        save(figure, path)


def _label(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _choices(sweep: Sweep, key: str) -> list[Any]:
    """The values of a key: numbers in ascending order, others in that of the file."""
    values = choices_of(sweep.parameters[key])
    return sorted(values) if all(_is_number(one) for one in values) else values


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# ---------------------------------------------------------------------- two keys
def _heat_map(sweep: Sweep, results: Sequence[Result], names: Mapping[str, str], new_figure: Any) -> Any:
    """Darker is better; a frame marks the best cell."""
    across, down = names
    columns, rows = _choices(sweep, across), _choices(sweep, down)
    cells = {(rows.index(one.point[down]), columns.index(one.point[across])): one for one in results}
    values = np.full((len(rows), len(columns)), np.nan)
    for cell, one in cells.items():
        values[cell] = statistics.mean(one.values)
    figure = new_figure(figsize=(2.4 + 0.95 * len(columns), 1.4 + 0.55 * len(rows)))
    axes = figure.subplots()
    cmap = "Greys" if sweep.goal == "maximize" else "Greys_r"
    image = axes.imshow(values, cmap=cmap, aspect="auto", origin="lower")
    for (row, column), one in cells.items():
        share = image.norm(values[row, column])
        dark = share > 0.55 if sweep.goal == "maximize" else share < 0.45
        colour = "white" if dark and values.size > 1 else "black"
        axes.text(column, row, _figures(one), ha="center", va="center", color=colour, fontsize=9)
    _frame_best(axes, values, sweep.goal)
    axes.set_xticks(range(len(columns)), [_label(one) for one in columns])
    axes.set_yticks(range(len(rows)), [_label(one) for one in rows])
    axes.set(xlabel=names[across], ylabel=names[down])
    axes.grid(visible=False)
    figure.colorbar(image, label=sweep.metric)
    return figure


def _figures(one: Result) -> str:
    middle = f"{statistics.mean(one.values):.3f}"
    return middle if len(one.values) == 1 else f"{middle}\n± {statistics.stdev(one.values):.3f}"


def _frame_best(axes: Any, values: np.ndarray, goal: str) -> None:
    from matplotlib.patches import Rectangle

    best = np.nanargmax(values) if goal == "maximize" else np.nanargmin(values)
    row, column = np.unravel_index(best, values.shape)
    frame: dict[str, Any] = {"fill": False, "edgecolor": "#d1701f", "linewidth": 2.5}
    axes.add_patch(Rectangle((column - 0.47, row - 0.46), 0.94, 0.92, **frame))


# ---------------------------------------------------------------------- one key, or many
def _panels(sweep: Sweep, results: Sequence[Result], names: Mapping[str, str], new_figure: Any) -> Any:
    """The metric against every key; a star marks the best point."""
    columns = min(len(names), MOST_PANELS_IN_ROW)
    rows = -(-len(names) // columns)
    figure = new_figure(figsize=(1.0 + 3.0 * columns, 0.5 + 2.8 * rows))
    axes = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for one in axes.flat[len(names) :]:
        one.set_visible(False)
    for one, key in zip(axes.flat, names, strict=False):
        _against(one, sweep, results, key, joined=len(names) == 1)
        one.set_xlabel(names[key])
    for row in axes:
        row[0].set_ylabel(sweep.metric)
    return figure


def _against(axes: Any, sweep: Sweep, results: Sequence[Result], key: str, joined: bool) -> None:
    middle = np.array([statistics.mean(one.values) for one in results])
    error = np.array([statistics.stdev(one.values) if len(one.values) > 1 else 0.0 for one in results])
    best = middle.argmax() if sweep.goal == "maximize" else middle.argmin()
    positions = _positions(axes, sweep, results, key)
    order = np.argsort(positions, kind="stable")
    line = "-" if joined else "none"
    bars = error[order] if error.any() else None
    axes.errorbar(
        positions[order],
        middle[order],
        bars,
        linestyle=line,
        marker="o",
        markersize=5,
        capsize=3,
        elinewidth=1,
        color=INK,
        alpha=0.8,
    )
    axes.plot(
        positions[best], middle[best], marker="*", markersize=15, color="#d1701f", markeredgecolor="black", zorder=5
    )


def _positions(axes: Any, sweep: Sweep, results: Sequence[Result], key: str) -> np.ndarray:
    """Where the points stand: at their numbers, or at the positions of their choices where these are no numbers."""
    kind = sweep.parameters[key]
    if isinstance(kind, CategoricalDistribution):
        choices = _choices(sweep, key)
        if not all(_is_number(one) for one in choices):
            longest = max(len(_label(one)) for one in choices)
            turned = {"rotation": 30, "ha": "right"} if longest * len(choices) > 28 else {}
            axes.set_xticks(range(len(choices)), [_label(one) for one in choices], **turned)
            axes.margins(x=0.15)
            return np.array([choices.index(one.point[key]) for one in results], dtype=float)
    numbers = np.array([one.point[key] for one in results], dtype=float)
    axes.set_xscale("log" if getattr(kind, "log", False) else scale_of(numbers))
    return numbers
