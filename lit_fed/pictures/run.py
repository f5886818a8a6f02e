"""Figures of a run, one column wide and readable in grey."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lit_fed.pictures.client_weights import weight_figures
from lit_fed.pictures.style import (
    COLUMN,
    COLUMN_WIDTH,
    FULL_WIDTH,
    byte_unit,
    draw_curve,
    few_ticks,
    frame,
    legend_above,
    name_clients,
    percent,
    save,
    scale_of,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["draw", "evaluated_split", "read_history"]

LINES = {
    ("seen", ""): {"color": "#1b4f8a", "linestyle": "-", "marker": "o"},
    ("seen", "_decile"): {"color": "#1b4f8a", "linestyle": ":", "marker": "o", "markerfacecolor": "white"},
    ("unseen", ""): {"color": "#d1701f", "linestyle": "--", "marker": "s"},
    ("unseen", "_decile"): {"color": "#d1701f", "linestyle": "-.", "marker": "s", "markerfacecolor": "white"},
}

POPULATIONS = {"seen": "#7694bb", "unseen": "#d1701f"}

MOST_GROUPS = 12
"""Upper limit of true groups marked below the mixture weights."""

MOST_NUMBERS = 12
"""Upper limit of columns of a heat map with numbers in its cells."""


def draw(folder: Path, clients: pd.DataFrame, formats: Sequence[str] = ("png",), *, private: bool = False) -> None:
    """Draw the figures of a run into `plots/`.

    Args:
        folder: the run's folder.
        clients: a row per client, as in clients.csv.
        formats: of each figure, `png`, `pdf` or `svg`.
        private: make `plots/` readable by its owner only.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    plots = folder / "plots"
    plots.mkdir(mode=0o700 if private else 0o777, exist_ok=True)
    with mpl.rc_context(COLUMN):
        for name, figure in _figures(folder, clients, Figure):
            for suffix in formats:
                save(figure, (plots / name).with_suffix(f".{suffix}"))


def _figures(folder: Path, clients: pd.DataFrame, new_figure: Any) -> list[tuple[str, Any]]:
    metric = "accuracy" if "accuracy" in clients else "mse"
    figures = [
        *_history_figures(folder, metric, new_figure),
        (f"client_{metric}.png", _histogram(clients, metric, new_figure)),
    ]
    if "pi_0" in clients:
        figures.append(("mixture_weights.png", mixture_heat_map(clients, new_figure)))
    return [*figures, *_component_figures(folder, metric, new_figure), *weight_figures(folder, new_figure)]


def read_history(folder: Path) -> pd.DataFrame:
    """The rounds of a run's metrics.csv, with `sent`: bytes that clients sent and received in all rounds so far.

    Args:
        folder: the run's folder; a run without that file has no rounds.
    """
    import pandas as pd

    path = folder / "metrics.csv"
    history = pd.read_csv(path) if path.is_file() else pd.DataFrame()
    if not {"comm/bytes_up", "comm/bytes_down"} <= set(history):
        return pd.DataFrame({"step": [], "sent": []})
    history = history[history["comm/bytes_up"].notna()]  # without the row of the final test
    sent = (history["comm/bytes_up"] + history["comm/bytes_down"]).cumsum()
    return pd.concat([history, sent.rename("sent")], axis=1)  # avoids a warning of pandas about fragmented frames


def evaluated_split(history: pd.DataFrame) -> str:
    """The split that the periodic evaluation measured."""
    return "val" if any(str(column).startswith("val/") for column in history) else "test"


def _history_figures(folder: Path, metric: str, new_figure: Any) -> list[tuple[str, Any]]:
    history = read_history(folder)
    if not len(history):
        return []
    axis = {f"{metric}_vs_rounds.png": (history["step"] + 1, "round")}
    most = history["sent"].max()
    if most > 0:
        size, unit = byte_unit(most)
        axis[f"{metric}_vs_bytes.png"] = (history["sent"] / size, f"{unit} sent and received by all clients")
    if "time/simulated" in history:
        label = "simulated time, in models sent downwards"
        axis[f"{metric}_vs_time.png"] = (history["time/simulated"], label)
    return [(name, _history(history, x, label, metric, new_figure)) for name, (x, label) in axis.items()]


def _history(history: pd.DataFrame, x: pd.Series, label: str, metric: str, new_figure: Any) -> Any:
    figure = new_figure(figsize=(COLUMN_WIDTH, 2.5))
    axes = figure.subplots()
    factor, unit = percent(metric)
    split = evaluated_split(history)
    shown = []
    for (population, suffix), line in LINES.items():
        values = history.get(f"{split}/{population}/{metric}{suffix}")
        if values is not None and values.notna().any():
            known = values.notna()
            name = f"{population}, {'worst decile' if suffix else 'mean'}"
            draw_curve(axes, x[known].to_numpy(), factor * values[known].to_numpy(), label=name, **line)
            shown += values[known].tolist()
    axes.set(
        xlabel=label,
        ylabel=f"{split} {metric} of clients{unit}",
        yscale=scale_of(shown) if metric == "mse" else "linear",
    )
    axes.xaxis.set_major_locator(few_ticks(whole=label == "round"))
    legend_above(figure)
    return figure


def _histogram(clients: pd.DataFrame, metric: str, new_figure: Any) -> Any:
    """Histograms of the clients' results, unseen ones below: the worst decile is hatched, infinite ones are counted."""
    factor, unit = percent(metric)
    found = {
        population: factor * clients.loc[clients["population"] == population, metric].dropna()
        for population in ("seen", "unseen")
    }
    values = {population: held[np.isfinite(held)] for population, held in found.items()}
    shown = [population for population in values if len(found[population])] or ["seen"]
    scale = scale_of(clients[metric]) if metric == "mse" else "linear"
    edges = _bins(np.concatenate(list(values.values())), scale)
    figure = new_figure(figsize=(COLUMN_WIDTH, 2.5 if len(shown) == 1 else 2.9))
    panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False, height_ratios=[1.7, 1][: len(shown)])[:, 0]
    for axes, population in zip(panels, shown, strict=True):
        held, infinite = values[population], len(found[population]) - len(values[population])
        beside = f", and {infinite} infinite" if infinite else ""
        look_of = {"color": POPULATIONS[population], "edgecolor": "white", "linewidth": 0.8}
        axes.hist(held, bins=edges, label=f"{population} clients{beside}", **look_of) if len(held) else None
        axes.set(ylabel="clients", xscale=scale)
        axes.yaxis.set_major_locator(few_ticks(whole=True, most=5 if axes is panels[0] else 3))
        axes.grid(visible=False, axis="x")
    if len(values["seen"]):
        _mark_worst_decile(panels[0], values["seen"], metric, edges, unit)
    panels[-1].set_xlabel(f"test {metric} of a client{unit}")
    legend_above(figure)
    return figure


def _bins(values: np.ndarray, scale: str) -> np.ndarray:
    if scale == "log":
        return np.geomspace(values.min(), values.max(), 21)
    return np.histogram_bin_edges(values, bins=20)


def _mark_worst_decile(axes: Any, values: pd.Series, metric: str, edges: np.ndarray, unit: str) -> None:
    """Hatch the max(1, ⌊T/10⌋) worst clients."""
    larger_is_better = metric == "accuracy"
    worst = values.sort_values(ascending=larger_is_better)[: max(1, len(values) // 10)]
    sign, sign_of_unit = "≤" if larger_is_better else "≥", "%" if unit else ""
    label = f"worst decile of the seen: {sign} {worst.iloc[-1]:.3g}{sign_of_unit}"
    axes.hist(worst, bins=edges, facecolor="0.25", edgecolor="white", linewidth=0.8, hatch="////", label=label)


def mixture_heat_map(clients: pd.DataFrame, new_figure: Any) -> Any:
    """A heat map of the seen clients' mixture weights, and below it who belongs to which true group."""
    seen = clients[clients["population"] == "seen"]
    weights = seen[[column for column in clients if str(column).startswith("pi_")]].to_numpy()
    order = np.lexsort((-weights.max(1), weights.argmax(1)))
    names = seen["client"].to_numpy()[order] if "client" in seen else None
    groups = seen["group"].to_numpy()[order] if "group" in clients else np.zeros(len(seen))
    known = np.unique(groups)
    marked = len(known) if "group" in clients and len(known) <= MOST_GROUPS else 0
    heights = [0.26 * weights.shape[1], 0.16 * marked]
    figure = new_figure(figsize=(COLUMN_WIDTH, 0.9 + sum(heights)))
    panels = figure.subplots(1 + bool(marked), 1, sharex=True, squeeze=False, height_ratios=heights if marked else None)
    image = _cells(panels[0, 0], weights[order].T, "component", range(weights.shape[1]))
    if marked:
        _cells(panels[1, 0], groups == known[:, None], "true\ngroup", known.astype(int))
    name_clients(panels[-1, 0], names, len(seen))
    panels[-1, 0].set_xlabel(f"{len(seen):,} seen clients, ordered by their largest component")
    figure.colorbar(image, ax=panels.ravel().tolist(), label="mixture weight")
    return figure


def _cells(axes: Any, values: np.ndarray, label: str, names: Any) -> Any:
    """Draw rows of values in [0, 1] as a heat map, darker for larger ones."""
    image = axes.imshow(values, aspect="auto", cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
    axes.set_ylabel(label)
    axes.set_yticks(range(len(values)), [str(name) for name in names])
    frame(axes)
    return image


def _component_figures(folder: Path, metric: str, new_figure: Any) -> list[tuple[str, Any]]:
    import pandas as pd

    path = folder / "components.csv"
    if not path.is_file():
        return []
    return [(f"component_{metric}.png", _components(pd.read_csv(path), metric, new_figure))]


def _components(table: pd.DataFrame, metric: str, new_figure: Any) -> Any:
    """A heat map of the results of every component alone on the clients of each true group."""
    factor, unit = percent(metric)
    values = factor * table.pivot_table(index="component", columns="group", values=metric)
    figure = new_figure(figsize=(max(2.4, min(FULL_WIDTH, 1.4 + 0.45 * values.shape[1])), 0.9 + 0.3 * len(values)))
    axes = figure.subplots()
    image = axes.imshow(values, aspect="auto", cmap="Greys", interpolation="nearest")
    axes.set(xlabel="true group", ylabel="component alone")
    axes.set_xticks(range(values.shape[1]), [str(group) for group in values.columns])
    axes.set_yticks(range(len(values)), [str(component) for component in values.index])
    frame(axes)
    if values.shape[1] <= MOST_NUMBERS:
        _number_cells(axes, values.to_numpy(), image)
    figure.colorbar(image, label=f"test {metric}{unit}")
    return figure


def _number_cells(axes: Any, values: np.ndarray, image: Any) -> None:
    for (row, column), value in np.ndenumerate(values):
        colour = "white" if image.norm(value) > 0.55 else "black"
        text = f"{value:.1f}" if values.max() >= 10 else f"{value:.2g}"
        axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=7)
