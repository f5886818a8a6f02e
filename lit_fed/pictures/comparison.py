"""Figures of several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lit_fed.pictures import style
from lit_fed.system.packages import mpl, pd
from lit_fed.training.finished_runs import FinishedRun, Group
from lit_fed.training.round_logger import evaluated_split

__all__ = ["comparison_figures", "draw_comparison"]

LONGEST_NAME = 44
"""Letters of a name in a legend; a longer one is cut."""


def draw_comparison(groups: Sequence[Group], metric: str, output: Path, formats: Sequence[str]) -> None:
    """Draw the figures of a comparison into a folder."""
    with mpl.rc_context(style.COLUMN):
        for name, figure in comparison_figures(groups, metric).items():
            for suffix in formats:
                style.save(figure, output / f"{name}.{suffix}")


def comparison_figures(groups: Sequence[Group], metric: str) -> dict[str, Any]:
    """The clients of every run, and the metric against rounds and bytes where a run measured any; by their names."""
    curves = [_curve(group, metric) for group in groups]
    measured = ("rounds", "bytes") if any(len(curve.rounds) for curve in curves) else ()
    figures = {f"{metric}_vs_{axis}": _curves(groups, curves, metric, bytes_sent=axis == "bytes") for axis in measured}
    return {**figures, f"client_{metric}": _clients(groups, metric)}


class _Curve(NamedTuple):
    """A metric at the rounds that all runs of a group evaluated."""

    name: str
    rounds: np.ndarray  # [n]
    sent: np.ndarray  # [n] bytes until then, mean over runs
    values: np.ndarray  # [runs, n], as drawn


def _curve(group: Group, metric: str) -> _Curve:

    key = f"{evaluated_split(group.runs[0].history)}/seen/{metric}"
    histories = [run.history.set_index("step") for run in group.runs]
    known = [one[key].dropna() if key in one else one["sent"][:0] for one in histories]
    table = pd.concat(known, axis=1, join="inner").sort_index()
    sent = pd.concat([one["sent"] for one in histories], axis=1).loc[table.index].mean(axis=1)
    values = style.percent(metric)[0] * table.to_numpy(dtype=float).T
    return _Curve(style.short_name(group.name, LONGEST_NAME), table.index.to_numpy() + 1, sent.to_numpy(), values)


def _curves(groups: Sequence[Group], curves: Sequence[_Curve], metric: str, *, bytes_sent: bool) -> Any:
    columns = 2 if max(len(curve.name) for curve in curves) <= 20 else 1
    figure = style.new_figure(style.COLUMN_WIDTH, 2.1 + 0.17 * -(-len(groups) // columns))
    axes = figure.subplots()
    size, unit = style.byte_unit(max(curve.sent.max(initial=0) for curve in curves))
    for position, curve in enumerate(curves):
        if len(curve.rounds):
            _draw(axes, position, curve, curve.sent / size if bytes_sent else curve.rounds)
    splits = "/".join(sorted({evaluated_split(run.history) for group in groups for run in group.runs}))
    axes.set_ylabel(f"{splits} {metric} of seen clients{style.percent(metric)[1]}")
    if metric != "accuracy":
        axes.set_yscale(style.scale_of(np.concatenate([curve.values.mean(0) for curve in curves])))
    _label_x(axes, curves, f"{unit} sent and received by all clients" if bytes_sent else "round")
    style.legend_above(figure, columns)
    return figure


def _draw(axes: Any, position: int, curve: _Curve, x: np.ndarray) -> None:
    """Mean and spread over seeds; of runs that send nothing a level line at their last value."""
    options = {"label": curve.name, "color": style.COLOURS[position % len(style.COLOURS)], **style.look(position)}
    if x[-1] == 0:
        axes.axhline(curve.values[:, -1].mean(), **options | {"marker": "", "label": f"{curve.name} (sends nothing)"})
    else:
        style.draw_mean(axes, x, curve.values, **options)


def _label_x(axes: Any, curves: Sequence[_Curve], label: str) -> None:
    """A logarithmic axis where one run sends far more than another."""
    totals = [curve.sent[-1] for curve in curves if curve.sent.any()]
    axes.set_xlabel(label)
    if label != "round" and totals and max(totals) > 10 * min(totals):
        axes.set_xscale("log")
    else:
        axes.xaxis.set_major_locator(style.few_ticks(whole=label == "round"))


def _clients(groups: Sequence[Group], metric: str) -> Any:
    """Box plots of the seen and the unseen clients for each name; means and worst deciles are in the table."""
    figure = style.new_figure(style.COLUMN_WIDTH, 1.1 + 0.42 * len(groups))
    axes = figure.subplots()
    factor, unit = style.percent(metric)
    for level, (population, colour) in zip((0.18, -0.18), style.POPULATIONS.items(), strict=True):
        label: str | None = f"{population} clients"
        for height, group in enumerate(reversed(groups)):
            clients = np.concatenate([_of(population, run, metric) for run in group.runs])
            if len(clients):
                _box(axes, height + level, factor * clients, colour, label)
                label = None
    axes.set_yticks(
        range(len(groups)),
        [style.short_name(group.name, LONGEST_NAME, line=18) for group in reversed(groups)],
    )
    axes.set(xlabel=f"test {metric} of a client{unit}", ylim=(-0.6, len(groups) - 0.4))
    axes.grid(visible=False, axis="y")
    style.legend_above(figure)
    return figure


def _of(population: str, run: FinishedRun, metric: str) -> np.ndarray:
    return run.clients.loc[run.clients["population"] == population, metric].dropna().to_numpy()


def _box(axes: Any, height: float, values: np.ndarray, colour: str, label: str | None) -> None:
    """A line from the worst to the best, a box of the middle half, and a tick at the median."""
    low, first, middle, third, high = np.quantile(values, [0, 0.25, 0.5, 0.75, 1])
    axes.hlines(height, low, high, color="0.4", linewidth=0.9)
    look = {"color": colour, "edgecolor": "0.4", "linewidth": 0.8, "zorder": 2}  # above the line
    axes.barh(height, third - first, left=first, height=0.26, label=label, **look)
    axes.vlines(middle, height - 0.13, height + 0.13, color="0.2", linewidth=1.4)
