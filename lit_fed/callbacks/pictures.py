"""The pictures of a run, readable in print and in grey."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lit_fed.callbacks.weight_pictures import weight_figures

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["draw"]

STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 150,
}
LINES = {"seen": {"color": "#1b4f8a", "linestyle": "-"}, "unseen": {"color": "#d1701f", "linestyle": "--"}}


def draw(folder: Path, clients: pd.DataFrame) -> None:
    """Draw what the folder's metrics.csv and the table of clients show, as `plots/*.png`.

    Args:
        folder: the run's folder.
        clients: a row per client, as in clients.csv.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    plots = folder / "plots"
    plots.mkdir(exist_ok=True)
    with mpl.rc_context(STYLE):
        for name, figure in _figures(folder, clients, Figure):
            partial = plots / f".{name}.partial"
            figure.savefig(partial, format="png")
            partial.replace(plots / name)


def _figures(folder: Path, clients: pd.DataFrame, new_figure: Any) -> list[tuple[str, Any]]:
    import pandas as pd

    hit = "accuracy" if "accuracy" in clients else "mse"
    figures = []
    metrics_file = folder / "metrics.csv"
    history = pd.read_csv(metrics_file) if metrics_file.is_file() else pd.DataFrame({"step": []})
    if {"comm/bytes_up", "comm/bytes_down"} <= set(history):
        sent = (history["comm/bytes_up"].fillna(0) + history["comm/bytes_down"].fillna(0)).cumsum()
        figures.append((f"{hit}_vs_rounds.png", _history(history, history["step"] + 1, "round", hit, new_figure)))
        megabytes = _history(history, sent / 1e6, "megabytes sent and received by all clients", hit, new_figure)
        figures.append((f"{hit}_vs_bytes.png", megabytes))
        if "time/simulated" in history:
            label = "simulated time, in units of one model sent downwards"
            figures.append((f"{hit}_vs_time.png", _history(history, history["time/simulated"], label, hit, new_figure)))
    figures.append((f"client_{hit}.png", _histogram(clients, hit, new_figure)))
    if "pi_0" in clients:
        figures.append(("mixture_weights.png", _mixtures(clients, new_figure)))
    return figures + weight_figures(folder, new_figure)


def _history(history: pd.DataFrame, x: Any, label: str, hit: str, new_figure: Any) -> Any:
    figure = new_figure(figsize=(6, 3.6))
    axes = figure.subplots()
    split = "val" if any(column.startswith("val/") for column in history) else "test"
    inside = history["comm/bytes_up"].notna()  # the row of the final test belongs to no round
    for population, line in LINES.items():
        for suffix, alpha, name in (("", 1.0, "mean"), ("_decile", 0.45, "worst decile")):
            key = f"{split}/{population}/{hit}{suffix}"
            if key in history:
                known = history[key].notna() & inside
                axes.plot(x[known], history[key][known], label=f"{population} clients, {name}", alpha=alpha, **line)
    axes.set(xlabel=label, ylabel=f"{split} {hit}")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)
    return figure


def _histogram(clients: pd.DataFrame, hit: str, new_figure: Any) -> Any:
    figure = new_figure(figsize=(6, 3.6))
    axes = figure.subplots()
    edges = np.histogram_bin_edges(clients[hit].dropna(), bins=20)
    for population, line in LINES.items():
        values = clients.loc[clients["population"] == population, hit].dropna()
        if len(values):
            filled = population == "seen"
            axes.hist(
                values, bins=edges, color=line["color"], histtype="stepfilled" if filled else "step",
                alpha=0.5 if filled else 1.0, linestyle=line["linestyle"], linewidth=1.5, label=f"{population} clients",
            )  # fmt: skip
            worst = values.sort_values(ascending=hit == "accuracy").iloc[max(1, len(values) // 10) - 1]
            axes.axvline(worst, label=f"worst decile, {population}", linewidth=1.2, **line)
    axes.set(xlabel=f"test {hit} of a client", ylabel="clients")
    axes.legend(frameon=False)
    return figure


def _mixtures(clients: pd.DataFrame, new_figure: Any) -> Any:
    seen = clients[clients["population"] == "seen"]
    weights = seen[[column for column in clients if column.startswith("pi_")]].to_numpy()
    weights = weights[np.lexsort((-weights.max(1), weights.argmax(1)))]
    figure = new_figure(figsize=(7, 0.6 + 0.45 * weights.shape[1] + 0.8))
    axes = figure.subplots()
    image = axes.imshow(weights.T, aspect="auto", cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
    axes.set(xlabel="seen clients, ordered by their largest component", ylabel="component")
    axes.set_yticks(range(weights.shape[1]))
    axes.grid(visible=False)
    figure.colorbar(image, label="mixture weight")
    return figure
