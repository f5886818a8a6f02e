"""The figure of a partition: sizes of the clients, and their labels if any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lit_fed.pictures.style import STYLE, literal, new_figure, save, short_name
from lit_fed.system.packages import mpl, pd

__all__ = ["draw_partition", "partition_figure"]

MOST_NAMES = 60
"""Upper limit of clients with names below the figure."""

MOST_LABELS = 40
"""Upper limit of labels that are all numbered at the axis."""

FILLS = {"num_train": ("#1b4f8a", "training"), "num_val": ("#d1701f", "validation"), "num_test": ("#c8c8c8", "test")}


def draw_partition(table: pd.DataFrame, path: Path) -> None:
    """Write the figure of a partition.

    Args:
        table: a row per client, as in partition.csv.
        path: the .png file.
    """
    with mpl.rc_context(STYLE):
        save(_figure(table), path)


def partition_figure(table: pd.DataFrame) -> Any:
    """The figure of a partition, for notebooks; `table` as for `draw_partition`."""
    with mpl.rc_context(STYLE):
        return _figure(table)


def _figure(table: pd.DataFrame) -> Any:
    """Clients from left to right: their samples above, and below the shares of labels, darker for larger ones."""
    keys = _order(table)
    ordered = table.sort_values(["population", *keys], kind="stable")
    labels = ordered.filter(regex="^label_")
    names, counts = [str(name).removeprefix("label_") for name in labels], labels.to_numpy().T
    below = min(6.0, 0.8 + 0.16 * len(counts)) if len(counts) else 0.0
    figure = new_figure(min(11.0, 5.0 + 0.08 * len(ordered)), 2.4 + below)
    panels = figure.subplots(
        1 + bool(below), 1, sharex=True, squeeze=False, height_ratios=[1.6, below] if below else None
    )[:, 0]
    _draw_sizes(panels[0], ordered)
    if below:
        image = _draw_shares(panels[1], counts / counts.sum(axis=0), names)
        figure.colorbar(image, ax=panels.tolist(), label="share of a client's samples")
    _mark(panels, ordered)
    _name_clients(panels[-1], ordered, keys)
    return figure


def _order(table: pd.DataFrame) -> dict[str, str]:
    """Columns that order the clients, with their names in the figure; many without labels are ordered by size."""
    sizes_alone = not len(table.filter(regex=r"^label_\d+$").columns)
    by_group = {"group": "true group"} if "group" in table else {}
    return by_group | ({"num_train": "size"} if sizes_alone and len(table) > MOST_NAMES else {})


def _draw_sizes(axes: Any, ordered: pd.DataFrame) -> None:
    """Draw the samples of each client's splits, one above the other."""
    edges = np.arange(len(ordered) + 1) - 0.5
    base = np.zeros(len(ordered))
    for column, (color, name) in FILLS.items():
        top = base + ordered[column].to_numpy()
        if (top > base).any():
            axes.stairs(top, edges, baseline=base, fill=True, color=color, label=name)
        base = top
    axes.set(ylabel="samples", xlim=(edges[0], edges[-1]))
    axes.grid(visible=False, axis="x")
    axes.legend(frameon=False, ncols=3, fontsize=8, loc="lower right", bbox_to_anchor=(1, 1.08), borderaxespad=0)


def _draw_shares(axes: Any, shares: np.ndarray, names: list[str]) -> Any:
    """Draw the share of each label in each client's samples, [L, T], as a heat map."""
    image = axes.imshow(shares, aspect="auto", cmap="Greys", vmin=0, vmax=shares.max(), interpolation="nearest")
    axes.set_ylabel("label")
    axes.grid(visible=False)
    if len(shares) <= MOST_LABELS:
        axes.set_yticks(range(len(shares)), map(literal, names), fontsize=7)
    return image


def _mark(panels: np.ndarray, ordered: pd.DataFrame) -> None:
    """Draw lines between true groups, and a dashed one before the unseen clients."""
    unseen = (ordered["population"] == "unseen").to_numpy()
    groups = ordered["group"].to_numpy() if "group" in ordered else np.zeros(len(ordered))
    for axes in panels:
        for bound in np.flatnonzero((groups[1:] != groups[:-1]) & (unseen[1:] == unseen[:-1])):
            axes.axvline(bound + 0.5, color="#d1701f", linewidth=0.8)
        for bound in np.flatnonzero(unseen[1:] != unseen[:-1]):
            axes.axvline(bound + 0.5, color="black", linewidth=1.4, linestyle="--")
    for name, rows in (("seen", np.flatnonzero(~unseen)), ("unseen", np.flatnonzero(unseen))):
        if unseen.any() and len(rows):
            across = panels[0].get_xaxis_transform()
            panels[0].text(rows.mean(), 1.01, name, transform=across, ha="center", va="bottom", fontsize=8)


def _name_clients(axes: Any, ordered: pd.DataFrame, keys: dict[str, str]) -> None:
    order = f", ordered by {' and '.join(keys.values())}" if keys else ""
    axes.set_xlabel(f"{len(ordered):,} clients{order}")
    if len(ordered) > MOST_NAMES:
        axes.set_xticks([])
        return
    axes.set_xticks(range(len(ordered)), map(short_name, ordered["client"]), fontsize=7, rotation=90)
