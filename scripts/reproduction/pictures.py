"""Pictures of tables: bars beside published figures, and curves with their spread; readable in grey."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lit_fed.pictures.style import draw_mean, look, save

Bar = tuple[str, Sequence[float], float | None]
"""Label, a value for each seed, and the published value where there is one."""

Curve = tuple[str, Sequence[float], Sequence[Sequence[float]]]
"""Label, positions on the horizontal axis, and the values of each seed at these positions."""


class Share(NamedTuple):
    """A weight over the rounds."""

    label: str
    values: Sequence[float]
    look: int  # which marker and dash
    colour: int
    thick: bool = False


Shares = tuple[Sequence[float], Sequence[Share]]  # rounds, and the weights there


def panels(
    names: Sequence[str], width: float = 4.2, height: float = 3.2, columns: int | None = None
) -> tuple[Any, dict[str, Any]]:
    """A figure with one panel for each name, so many in a row; None: three at most."""
    from matplotlib.figure import Figure

    columns = columns or (2 if len(names) == 4 else min(3, len(names)))
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in axes[len(names) :]:
        unused.set_visible(False)
    found = dict(zip(names, axes, strict=False))
    for name, axis in found.items():
        axis.set_title(name, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, found


def bars(groups: Mapping[str, Sequence[Bar]], label: str, path: Path) -> None:
    """Horizontal bars with the seeds' values as dots, and published values as triangles; none without values."""
    groups = {name: some for name, rows in groups.items() if (some := [one for one in rows if len(one[1])])}
    figure, axes = panels(list(groups), height=max(2.0, 0.33 * max(map(len, groups.values())) + 1))
    for name, rows in groups.items():
        axis = axes[name]
        for height, (_, values, published) in enumerate(reversed(rows)):
            axis.barh(height, np.mean(values), color="0.78", height=0.7)
            axis.plot(values, [height] * len(values), ".", color="0.2", markersize=5)
            if published is not None:
                axis.plot(published, height, "v", color="tab:red", markersize=7, markeredgecolor="black")
        axis.set_yticks(range(len(rows)), [one[0] for one in reversed(rows)])
        shown = [value for _, values, published in rows for value in (*values, published) if value is not None]
        axis.set_xlim(max(0, min(shown) - 10), min(100, max(shown) + 3))
        axis.set_xlabel(label)
    handles = [
        figure.axes[0].plot([], [], ".", color="0.2", label="a seed")[0],
        figure.axes[0].plot([], [], "v", color="tab:red", markeredgecolor="black", label="the paper")[0],
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=2, fontsize=8)
    save(figure, path)


def curves(
    groups: Mapping[str, Sequence[Curve]], x_label: str | Mapping[str, str], y_label: str, path: Path, columns: int = 0
) -> None:
    """A line for each curve, mean over its seeds with a band of one standard deviation; x labels may be the panels'."""
    groups = {name: some for name, lines in groups.items() if (some := [one for one in lines if len(one[1])])}
    if not groups:
        return
    figure, axes = panels(list(groups), columns=columns or None)
    for name, lines in groups.items():
        axis = axes[name]
        for position, (label, x, values) in enumerate(lines):
            draw_mean(axis, x, values, label=label, markersize=4, **look(position))
        axis.set(xlabel=x_label if isinstance(x_label, str) else x_label[name], ylabel=y_label)
        axis.legend(fontsize=7, frameon=False)
    save(figure, path)


def shares(groups: Mapping[str, Shares], label: str, path: Path, columns: int = 4) -> None:
    """A panel for each client or setting, and in it a line for each weight."""
    figure, axes = panels(list(groups), width=2.7, height=2.2, columns=min(columns, len(groups)))
    known: dict[str, tuple[set[int], int]] = {}  # colours and looks of a label
    for name, (rounds, lines) in groups.items():
        for one in lines:
            looks = {"color": f"C{one.colour}", "markersize": 3.5, **look(one.look)}
            axes[name].plot(rounds, one.values, linewidth=2.8 if one.thick else 1.2, **looks)
            known.setdefault(one.label, (set(), one.look))[0].add(one.colour)
        axes[name].set(ylim=(-0.04, 1.04), xlabel="round", ylabel=label)
    handles = []
    for text, (colours, number) in sorted(known.items()):
        colour = f"C{min(colours)}" if len(colours) == 1 else "black"
        handles += figure.axes[0].plot([], [], label=text, color=colour, **look(number), markersize=4)
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8, frameon=False)
    save(figure, path)
