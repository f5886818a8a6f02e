"""The results of a sweep: a table on the terminal, sweep.csv, sweep.md and sweep.png."""

from __future__ import annotations

import json
import math
import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lit_fed.command_line.sweep_file import Point, Sweep
from lit_fed.command_line.table_formats import WIDTH, escaped, markdown_table
from lit_fed.pictures.style import STYLE, literal, new_figure, save, scale_of
from lit_fed.system.files import write_atomically
from lit_fed.system.packages import mpl, pd
from lit_fed.training.finished_runs import SAME_DATA
from lit_fed.training.output import print_rows, write_table

__all__ = ["Result", "best_of_each", "draw_sweep", "result_of", "spread", "write_results"]

MOST_PANELS_IN_ROW = 3
INK, BEST = "#1b4f8a", "#d1701f"


class Result(NamedTuple):
    """A finished point."""

    number: int
    point: Point
    values: tuple[float, ...]  # of the metric, one for each seed
    test_values: tuple[float, ...]  # of the same metric on the test split; () without one
    seconds: float  # of training, all seeds together
    diverged: int = 0  # runs whose summary says so


def result_of(sweep: Sweep, number: int, point: Point, found: Sequence[dict[str, Any]]) -> Result | str:
    """The result of a point from its runs' summaries, one for each seed; or what is wrong with them."""
    split, _, rest = sweep.metric.partition("/")
    for summary in found:
        value = summary.get(sweep.metric)
        if not isinstance(value, int | float) or not math.isfinite(value):
            known = [key for key in summary if key.startswith(f"{split}/")]
            hint = f"; there are {', '.join(known[:4])}" if known else ""
            needed = "; it needs --data.val_fraction and --trainer.check_val_every_n_epoch up to --trainer.max_epochs"
            return f"{sweep.metric} is {value} in summary.json{hint}{needed if split == 'val' and not known else ''}"
    tested = [value for summary in found if math.isfinite(value := summary.get(f"test/{rest}", math.nan))]
    known_test = tuple(tested) if len(tested) == len(found) else ()
    seconds = sum(summary["seconds"] for summary in found)
    values = tuple(summary[sweep.metric] for summary in found)
    return Result(number, point, values, known_test, seconds, sum("diverged" in summary for summary in found))


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation.

    Example:
        >>> spread([0.5]), spread([0.5, 0.7])
        ('0.5000', '0.6000 ± 0.1414')
    """
    middle = f"{statistics.mean(values):.4f}"
    return middle if len(values) == 1 else f"{middle} ± {statistics.stdev(values):.4f}"


# ---------------------------------------------------------------------- tables
def write_results(
    sweep: Sweep, results: Sequence[Result], failed: Mapping[int, str], folder: Path, note: str = ""
) -> None:
    """Print the best point of each algorithm and all points, the best first, and write them.

    `sweep.csv` has full names and numbers, `sweep.md` the tables and the command of the best point.
    """
    data = [key for key in sweep.parameters if key.startswith("data.") and key.split(".")[1] not in SAME_DATA]
    other = [f"points differ in {', '.join(data)}: their results are of different data"] if data else []
    note = "; ".join([*filter(None, [note]), *other])
    results = sorted(results, key=lambda one: statistics.mean(one.values), reverse=sweep.goal == "maximize")
    rows = []
    for one in results:
        row: dict[str, Any] = {"point": one.number, **one.point, "seeds": len(one.values), "diverged": one.diverged}
        for name, some in ((sweep.metric, one.values), (f"test/{sweep.metric.partition('/')[2]}", one.test_values)):
            if some:
                row[name] = statistics.mean(some)
                row[f"{name}_std"] = statistics.stdev(some) if len(some) > 1 else math.nan
        rows.append(row | {"seconds": round(one.seconds, 3)})
    write_table(pd.DataFrame(rows), folder / "sweep.csv")
    lines = [f"# Sweep of {escaped(sweep.path.name)}", "", f"{sweep.method}, {sweep.goal} {sweep.metric}", ""]
    tables = {f"{sweep.path.name}: {len(results)} points": ("All points:", _table(sweep, results))}
    if chosen := best_of_each(sweep, results):
        title = "best point of each algorithm"
        tables = {title: (f"The {title}:", _table(sweep, chosen)), **tables}
    for title, (heading, table) in tables.items():
        lines += [*([heading, ""] if chosen else []), *markdown_table(*table), ""]
        if results:
            print_rows(title, *table, width=WIDTH, overflow="fold", caption=note or None)
    lines += [escaped(note), ""] if note else []
    if results:
        best = shlex.join(sweep.arguments(results[0].point))
        lines += ["The best point again:", "", "```bash", f"python -m lit_fed {best}", "```", ""]
        draw_sweep(sweep, results, folder / "sweep.png")
    if failed:
        lines += ["Failed:", "", *(f"- point {number:03d}: {escaped(error)}" for number, error in failed.items()), ""]
    write_atomically(folder / "sweep.md", "\n".join(lines))


def best_of_each(sweep: Sweep, results: Sequence[Result]) -> list[Result]:
    """The first point of each algorithm, the best one; empty unless algorithms and something else vary."""
    if "model.algorithm" not in sweep.parameters or len(sweep.parameters) < 2:
        return []
    best: dict[str, Result] = {}
    for one in results:
        best.setdefault(json.dumps(one.point["model.algorithm"], sort_keys=True), one)
    return list(best.values()) if len(best) > 1 else []


def _table(sweep: Sweep, results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """Headings and cells."""
    names = sweep.short_names()
    tested = any(one.test_values for one in results)
    head = ["point", *names.values(), sweep.metric, *(["on the test split"] if tested else []), "seconds"]
    rows = []
    for one in results:
        test = [spread(one.test_values) if one.test_values else ""] if tested else []
        shown = (_label(one.point[key]) for key in names)
        value = f"{spread(one.values)} (diverged)" if one.diverged else spread(one.values)
        rows.append([f"{one.number:03d}", *shown, value, *test, f"{one.seconds:.1f}"])
    return head, rows


def _label(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# ---------------------------------------------------------------------- figure
def draw_sweep(sweep: Sweep, results: Sequence[Result], path: Path) -> None:
    """Draw the metric against the keys that vary: two with choices as a heat map, else a panel for each."""
    choices = all(isinstance(one, list) for one in sweep.parameters.values())
    with mpl.rc_context(STYLE):
        save((_heat_map if len(sweep.parameters) == 2 and choices else _panels)(sweep, results), path)


def _choices(sweep: Sweep, key: str) -> list[Any]:
    """The values of a key: numbers in ascending order, others in that of the file; [] of a range."""
    kind = sweep.parameters[key]
    values = kind if isinstance(kind, list) else []
    return sorted(values) if all(map(_is_number, values)) else values


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _heat_map(sweep: Sweep, results: Sequence[Result]) -> Any:
    """Darker is better; a frame marks the best cell."""
    from matplotlib.patches import Rectangle

    (across, label_across), (down, label_down) = sweep.short_names().items()
    columns, rows = _choices(sweep, across), _choices(sweep, down)
    figure = new_figure(2.4 + 0.95 * len(columns), 1.4 + 0.55 * len(rows))
    axes, maximize = figure.subplots(), sweep.goal == "maximize"
    values = np.full((len(rows), len(columns)), np.nan)
    cells = {(rows.index(one.point[down]), columns.index(one.point[across])): one for one in results}
    for cell, one in cells.items():
        values[cell] = statistics.mean(one.values)
    image: Any = axes.imshow(values, cmap="Greys" if maximize else "Greys_r", aspect="auto", origin="lower")
    for (row, column), one in cells.items():
        share = image.norm(values[row, column])
        dark = values.size > 1 and (share > 0.55 if maximize else share < 0.45)
        text = f"{values[row, column]:.3f}"
        text += f"\n± {statistics.stdev(one.values):.3f}" if len(one.values) > 1 else ""
        axes.text(column, row, text, ha="center", va="center", color="white" if dark else "black", fontsize=9)
    best = np.nanargmax(values) if maximize else np.nanargmin(values)
    down_best, across_best = np.unravel_index(best, values.shape)
    place = float(across_best) - 0.47, float(down_best) - 0.46
    axes.add_patch(Rectangle(place, 0.94, 0.92, fill=False, edgecolor=BEST, linewidth=2.5))
    axes.set_xticks(range(len(columns)), [literal(_label(one)) for one in columns])
    axes.set_yticks(range(len(rows)), [literal(_label(one)) for one in rows])
    axes.set(xlabel=literal(label_across), ylabel=literal(label_down))
    axes.grid(visible=False)
    figure.colorbar(image, label=sweep.metric)
    return figure


def _panels(sweep: Sweep, results: Sequence[Result]) -> Any:
    """The metric against every key; a star marks the best point."""
    names = sweep.short_names()
    columns = min(len(names), MOST_PANELS_IN_ROW)
    rows = -(-len(names) // columns)
    figure = new_figure(1.0 + 3.0 * columns, 0.5 + 2.8 * rows)
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for one in panels.flat[len(names) :]:
        one.set_visible(False)
    middle = np.array([statistics.mean(one.values) for one in results])
    error = np.array([statistics.stdev(one.values) if len(one.values) > 1 else 0.0 for one in results])
    best = middle.argmax() if sweep.goal == "maximize" else middle.argmin()
    line: dict[str, Any] = {"linestyle": "-" if len(names) == 1 else "none", "marker": "o", "markersize": 5}
    for axes, (key, name) in zip(panels.flat, names.items(), strict=False):
        x = _positions(axes, sweep, results, key)
        order = np.argsort(x, kind="stable")
        bars = error[order] if error.any() else None
        axes.errorbar(x[order], middle[order], bars, capsize=3, elinewidth=1, color=INK, alpha=0.8, **line)
        axes.plot(x[best], middle[best], marker="*", markersize=15, color=BEST, markeredgecolor="black", zorder=5)
        axes.set_xlabel(literal(name))
    for row in panels:
        row[0].set_ylabel(sweep.metric)
    return figure


def _positions(axes: Any, sweep: Sweep, results: Sequence[Result], key: str) -> np.ndarray:
    """Positions of the points: their numbers, or the indices of their choices if these are no numbers."""
    choices = _choices(sweep, key)
    if not all(map(_is_number, choices)):
        labels = [literal(_label(one)) for one in choices]
        turned = {"rotation": 30, "ha": "right"} if max(map(len, labels)) * len(labels) > 28 else {}
        axes.set_xticks(range(len(choices)), labels, **turned)
        axes.margins(x=0.15)
        return np.array([choices.index(one.point[key]) for one in results], dtype=float)
    numbers = np.array([one.point[key] for one in results], dtype=float)
    axes.set_xscale("log" if getattr(sweep.parameters[key], "log", False) else scale_of(numbers))
    return numbers
