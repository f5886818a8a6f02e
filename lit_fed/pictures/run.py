"""Figures of a run, one column wide and readable in grey."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lit_fed.data.data_sets.npz import read_npz
from lit_fed.errors import ConfigError
from lit_fed.metrics.scores import STATISTICS, USUAL
from lit_fed.pictures import style
from lit_fed.system.foreign_files import read_table
from lit_fed.system.packages import mpl, nx, pd
from lit_fed.training.round_logger import evaluated_split, read_history

__all__ = [
    "draw", "draw_graph", "mixture_heat_map", "mixtures_figure", "rounds_figure", "weight_figures",
]  # fmt: skip

LINES = {
    ("seen", ""): {"color": "#1b4f8a", "linestyle": "-", "marker": "o"},
    ("seen", "_decile"): {"color": "#1b4f8a", "linestyle": ":", "marker": "o", "markerfacecolor": "white"},
    ("unseen", ""): {"color": "#d1701f", "linestyle": "--", "marker": "s"},
    ("unseen", "_decile"): {"color": "#d1701f", "linestyle": "-.", "marker": "s", "markerfacecolor": "white"},
}

MOST_GROUPS = 12
"""Upper limit of true groups marked below the mixture weights."""

MOST_NUMBERS = 12
"""Upper limit of columns of a heat map with numbers in its cells."""

PANELS = 4
"""Upper limit of rounds side by side."""

STEADY = 0.02
"""Relative deviation of bytes from a constant number per round, up to which they share an axis with rounds."""

MOST_NODES = 40
"""Upper limit of clients in a graph with names and groups."""

MOST_CURVES = 12
"""Upper limit of clients with a panel of curves each; of more, means over clients are drawn."""


def draw(
    folder: Path, clients: pd.DataFrame, directions: Mapping[str, bool | None], formats: Sequence[str] = ("png",),
    samples: Any | None = None,
) -> None:  # fmt: skip
    """Draw the figures of a run into `plots/`.

    Args:
        folder: the run's folder.
        clients: a row per client, as in clients.csv.
        directions: whether larger is better, by the name of the metric; None: unknown. A chosen metric that stands
            first is drawn ahead of the accuracy.
        formats: formats of each figure, `png`, `pdf` or `svg`.
        samples: the figure of test samples; None: there is none.
    """
    plots = folder / "plots"
    plots.mkdir(exist_ok=True)
    with mpl.rc_context(style.COLUMN):
        figures = _figures(folder, clients, directions)
        for name, figure in figures if samples is None else [*figures, (style.SAMPLES, samples)]:
            for suffix in formats:
                style.save(figure, (plots / name).with_suffix(f".{suffix}"))


def _figures(folder: Path, clients: pd.DataFrame, directions: Mapping[str, bool | None]) -> list[tuple[str, Any]]:
    metric = next(one for one in USUAL if one in clients)
    figures = []
    for one in dict.fromkeys((next(iter(directions)), metric)):
        if np.isfinite(clients[one]).any() or one == metric:
            figures += _history_figures(folder, one)
            figures.append((f"client_{one}.png", _histogram(clients, one, directions[one])))
    if mixture_columns(clients):
        figures.append(("mixture_weights.png", mixture_heat_map(clients)))
    return [*figures, *_component_figures(folder, metric), *weight_figures(folder)]


def rounds_figure(folder: Path, metric: str) -> Any:
    """A metric of the clients at every evaluation of a run.

    Args:
        folder: the run's folder.
        metric: name of the metric.

    Raises:
        ConfigError: if it was not measured.
    """
    history = read_history(folder)
    split = evaluated_split(history)
    known = [str(column).split("/")[2] for column in history if str(column).startswith(f"{split}/seen/")]
    if metric not in known:
        raise ConfigError(f"metric is {metric!r}; {folder / 'metrics.csv'} has {', '.join(known) or 'no evaluation'}")
    with mpl.rc_context(style.COLUMN):
        return _history(history, history["step"] + 1, "round", metric)


def mixtures_figure(clients: pd.DataFrame) -> Any:
    """The heat map of `mixture_heat_map` in the style of a run's figures."""
    with mpl.rc_context(style.COLUMN):
        return mixture_heat_map(clients)


def _history_figures(folder: Path, metric: str) -> list[tuple[str, Any]]:
    history = read_history(folder)
    if not len(history):
        return []
    rounds, sent = history["step"] + 1, history["sent"]
    size, unit = style.byte_unit(sent.max())
    label, per_round = f"{unit} sent and received by all clients", (sent / rounds / size).mean()
    axis = {f"{metric}_vs_rounds.png": (rounds, "round")}
    steady = np.allclose(sent / size, per_round * rounds, rtol=STEADY, atol=0)  # the curves would be the same
    if sent.max() > 0 and not steady:
        axis[f"{metric}_vs_bytes.png"] = (sent / size, label)
    if "time/simulated" in history:
        axis[f"{metric}_vs_time.png"] = (history["time/simulated"], "simulated time, in models sent downwards")
    above = (per_round, label) if sent.max() > 0 and steady else None
    return [
        (name, _history(history, x, below, metric, above if below == "round" else None))
        for name, (x, below) in axis.items()
    ]


def _history(
    history: pd.DataFrame, x: pd.Series, label: str, metric: str, above: tuple[float, str] | None = None
) -> Any:
    """Curves of a metric over x; `above` adds an axis at the top: x times a factor, and its label."""
    figure = style.new_figure(style.COLUMN_WIDTH, 2.5)
    axes = figure.subplots()
    factor, unit = style.percent(metric)
    split = evaluated_split(history)
    shown = []
    for (population, suffix), line in LINES.items():
        values = history.get(f"{split}/{population}/{metric}{suffix}")
        if values is not None and values.notna().any():
            known = values.notna()
            name = f"{population}, {STATISTICS[suffix].heading}"
            style.draw_curve(axes, x[known].to_numpy(), factor * values[known].to_numpy(), label=name, **line)
            shown += values[known].tolist()
    axes.set(
        xlabel=label,
        ylabel=f"{split} {metric} of clients{unit}",
        yscale=style.scale_of(shown) if metric == "mse" else "linear",
    )
    axes.xaxis.set_major_locator(style.few_ticks(whole=label == "round"))
    if above is not None:
        factor_above, label_above = above
        scales = (lambda x: x * factor_above, lambda x: x / factor_above)
        axes.secondary_xaxis("top", functions=scales).set_xlabel(label_above)
    style.legend_above(figure)
    return figure


def _histogram(clients: pd.DataFrame, metric: str, larger_is_better: bool | None) -> Any:
    """Histograms of the clients' results, unseen ones below: the worst decile is hatched, infinite ones are counted."""
    factor, unit = style.percent(metric)
    found = {
        population: factor * clients.loc[clients["population"] == population, metric].dropna()
        for population in ("seen", "unseen")
    }
    values = {population: held[np.isfinite(held)] for population, held in found.items()}
    shown = [population for population in values if len(found[population])] or ["seen"]
    scale = style.scale_of(clients[metric]) if metric == "mse" else "linear"
    edges = _bins(np.concatenate(list(values.values())), scale)
    figure = style.new_figure(style.COLUMN_WIDTH, 2.5 if len(shown) == 1 else 2.9)
    panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False, height_ratios=[1.7, 1][: len(shown)])[:, 0]
    for axes, population in zip(panels, shown, strict=True):
        held, infinite = values[population], len(found[population]) - len(values[population])
        beside = f", and {infinite} infinite" if infinite else ""
        look_of = {"color": style.POPULATIONS[population], "edgecolor": "white", "linewidth": 0.8}
        axes.hist(held, bins=edges, label=f"{population} clients{beside}", **look_of) if len(held) else None
        axes.set(ylabel="clients", xscale=scale)
        axes.yaxis.set_major_locator(style.few_ticks(whole=True, most=5 if axes is panels[0] else 3))
        axes.grid(visible=False, axis="x")
    if len(values["seen"]) and larger_is_better is not None:
        _mark_worst_decile(panels[0], values["seen"], edges, unit, larger_is_better=larger_is_better)
    panels[-1].set_xlabel(f"test {metric} of a client{unit}")
    style.legend_above(figure)
    return figure


def _bins(values: np.ndarray, scale: str) -> np.ndarray:
    if scale == "log":
        return np.geomspace(values.min(), values.max(), 21)
    try:
        return np.histogram_bin_edges(values, bins=20)
    except ValueError:  # too large, and too near to each other, for numbers between them
        return float(values.mean()) + float(np.abs(values).mean()) * np.linspace(-0.01, 0.01, 21)


def _mark_worst_decile(axes: Any, values: pd.Series, edges: np.ndarray, unit: str, *, larger_is_better: bool) -> None:
    """Hatch the max(1, ⌊T/10⌋) worst clients."""
    worst = values.sort_values(ascending=larger_is_better)[: max(1, len(values) // 10)]
    sign, sign_of_unit = "≤" if larger_is_better else "≥", "%" if unit else ""
    label = f"worst decile of the seen: {sign} {worst.iloc[-1]:.3g}{sign_of_unit}"
    axes.hist(worst, bins=edges, facecolor="0.25", edgecolor="white", linewidth=0.8, hatch="////", label=label)


def mixture_columns(clients: pd.DataFrame) -> list[str]:
    """The columns of mixture weights of a table of clients."""
    return [str(column) for column in clients if str(column).startswith("pi_")]


def mixture_heat_map(clients: pd.DataFrame) -> Any:
    """A heat map of the seen clients' mixture weights, and below it their true groups."""
    seen = clients[clients["population"] == "seen"]
    columns = mixture_columns(clients)
    weights = seen[columns].to_numpy()
    order = np.lexsort((-weights.max(1), weights.argmax(1)))
    names = seen["client"].to_numpy()[order] if "client" in seen else None
    groups = seen["group"].to_numpy()[order] if "group" in clients else np.zeros(len(seen))
    known = np.unique(groups)
    marked = len(known) if "group" in clients and len(known) <= MOST_GROUPS else 0
    heights = [0.26 * weights.shape[1], 0.16 * marked]
    figure = style.new_figure(style.COLUMN_WIDTH, 0.9 + sum(heights))
    panels = figure.subplots(1 + bool(marked), 1, sharex=True, squeeze=False, height_ratios=heights if marked else None)
    image = _cells(panels[0, 0], weights[order].T, "component", [one.removeprefix("pi_") for one in columns])
    if marked:
        _cells(panels[1, 0], groups == known[:, None], "true\ngroup", known.astype(int))
    style.name_clients(panels[-1, 0], names, len(seen))
    panels[-1, 0].set_xlabel(f"{len(seen):,} seen clients, ordered by their largest component")
    figure.colorbar(image, ax=panels.ravel().tolist(), label="mixture weight")
    return figure


def _cells(axes: Any, values: np.ndarray, label: str, names: Any) -> Any:
    """Draw rows of values in [0, 1] as a heat map, darker for larger ones."""
    image = axes.imshow(values, aspect="auto", cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
    axes.set_ylabel(label)
    axes.set_yticks(range(len(values)), [str(name) for name in names])
    style.frame(axes)
    return image


def _component_figures(folder: Path, metric: str) -> list[tuple[str, Any]]:

    path = folder / "components.csv"
    if not path.is_file():
        return []
    return [(f"component_{metric}.png", _components(read_table(path, "move it away"), metric))]


def _components(table: pd.DataFrame, metric: str) -> Any:
    """A heat map of the results of every component alone on the clients of each true group."""
    factor, unit = style.percent(metric)
    values = factor * table.pivot_table(index="component", columns="group", values=metric)
    figure = style.new_figure(max(2.4, min(style.FULL_WIDTH, 1.4 + 0.45 * values.shape[1])), 0.9 + 0.3 * len(values))
    axes = figure.subplots()
    image = axes.imshow(values, aspect="auto", cmap="Greys", interpolation="nearest")
    axes.set(xlabel="true group", ylabel="component alone")
    axes.set_xticks(range(values.shape[1]), [str(group) for group in values.columns])
    axes.set_yticks(range(len(values)), [str(component) for component in values.index])
    style.frame(axes)
    if values.shape[1] <= MOST_NUMBERS:
        _number_cells(axes, values.to_numpy(), image)
    figure.colorbar(image, label=f"test {metric}{unit}")
    return figure


def _number_cells(axes: Any, values: np.ndarray, image: Any) -> None:
    for (row, column), value in np.ndenumerate(values):
        colour = "white" if image.norm(value) > 0.55 else "black"
        text = f"{value:.1f}" if values.max() >= 10 else f"{value:.2g}"
        axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=7)


# ---------------------------------------------------------------------- weights.npz
def weight_figures(folder: Path) -> list[tuple[str, Any]]:
    """Figures of a run's folder, by file name; none without `weights.npz`.

    Args:
        folder: the run's folder.

    Raises:
        ConfigError: naming that file if it cannot be read.
    """
    path = folder / "weights.npz"
    if not path.is_file():
        return []
    try:
        parts = ("mixture", "collaboration", "on_graph", "groups", "names")
        weights: dict[str, Any] = dict(read_npz(path, ("rounds",), parts))
    except ConfigError as error:
        raise ConfigError(f"{path} cannot be read ({error}); it is not this run's, so move it away") from error
    figures = []
    if "mixture" in weights and len(weights["rounds"]) > 1:
        figures.append(("mixture_over_rounds.png", _mixtures(weights)))
    if "collaboration" in weights and weights["on_graph"]:
        groups = weights.get("groups", np.zeros(weights["collaboration"].shape[1], dtype=int))
        graph = draw_graph(weights["collaboration"][-1], groups, weights.get("names"))
        figures.append(("graph.png", graph))
    elif "collaboration" in weights:
        figures.append(("collaboration.png", _heat_map(weights)))
        if len(weights["rounds"]) > 1:
            figures.append(("collaboration_over_rounds.png", _curves(weights)))
    return figures


def draw_graph(matrix: np.ndarray, groups: np.ndarray, names: Sequence[Any] | None = None) -> Any:
    """Weights between clients as a graph: clients on a circle, darker edges for larger weights.

    Neighbours of a ring or a chain stand side by side, on other graphs the clients of a group. Nodes show the number of
    the group; names stand beside them if there is room.

    Args:
        matrix: weights between clients, [T, T]; the two directions of an edge are averaged, the diagonal is left out.
        groups: the group of each client, [T].
        names: names of the clients, [T]; None: their numbers.
    """
    weights = (matrix + matrix.T) / 2 * (1 - np.eye(len(matrix)))
    graph = nx.from_numpy_array(weights)
    order = _around(graph, groups)
    edges = sorted(graph.edges(data="weight"), key=lambda edge: edge[2])  # the darkest on top
    values = np.array([edge[2] for edge in edges])
    scale = mpl.colors.Normalize(0, values.max(initial=0.0) or 1.0)
    figure = style.new_figure(style.COLUMN_WIDTH, 2.9)
    axes = figure.subplots()
    positions = nx.circular_layout(order)
    few = len(order) <= MOST_NODES
    _, colours = np.unique(groups, return_inverse=True)
    nx.draw(
        graph, positions, ax=axes, nodelist=order, node_color=colours[order], cmap="Set3", vmin=0, vmax=11,
        edgecolors="black", linewidths=0.6 if few else 0.2, node_size=80 if few else max(6, 2400 / len(order)),
        edgelist=[edge[:2] for edge in edges], edge_color=values.tolist(), edge_cmap=mpl.colormaps["Greys"],
        edge_vmin=0, edge_vmax=scale.vmax, width=float(np.clip(200 / max(len(edges), 1), 0.08, 1.0)),
    )  # fmt: skip
    if few:
        _write_beside(axes, positions, range(len(order)) if names is None else names)
        if colours.any():
            groups_of = {client: str(int(groups[client])) for client in order}
            nx.draw_networkx_labels(graph, positions, groups_of, ax=axes, font_size=6)
    axes.set_aspect("equal")
    axes.margins(0.22 if few else 0.05)
    if len(values) and np.ptp(values) > 1e-6 * values.max():
        figure.colorbar(mpl.cm.ScalarMappable(scale, "Greys"), ax=axes, label="mixing weight", shrink=0.8)
    elif len(values):
        axes.set_title(f"every mixing weight is {values[0]:.3g}", y=-0.04)
    return figure


def _around(graph: Any, groups: np.ndarray) -> list[int]:
    """Order of the clients on the circle: along a ring or chain, else by group."""
    by_group: list[int] = np.argsort(groups, kind="stable").tolist()
    degrees = dict(graph.degree())
    if len(graph) < 3 or max(degrees.values()) > 2 or not nx.is_connected(graph):
        return by_group
    ends = [client for client in by_group if degrees[client] == 1]
    return list(nx.dfs_preorder_nodes(graph, (ends or by_group)[0]))


def _write_beside(axes: Any, positions: dict[int, np.ndarray], names: Sequence[Any]) -> None:
    """Write names outside the circle."""
    for client, (x, y) in positions.items():
        side = "left" if x > 0.1 else "right" if x < -0.1 else "center"
        level = "bottom" if y > 0.9 else "top" if y < -0.9 else "center"
        axes.annotate(style.short_name(names[client]), (1.1 * x, 1.1 * y), ha=side, va=level, fontsize=6)


def _panels(num_rounds: int) -> list[int]:
    return sorted(set(np.linspace(0, num_rounds - 1, min(PANELS, num_rounds)).round().astype(int).tolist()))


def _mixtures(weights: dict[str, Any]) -> Any:
    """Heat maps of all clients' mixture weights in a few rounds before the last one, which has its own figure."""
    mixture, last = weights["mixture"], weights["mixture"][-1]
    order = np.lexsort((-last.max(1), last.argmax(1)))
    names = weights["names"][order] if len(weights.get("names", ())) == len(order) else None
    shown = _panels(len(mixture))[:-1]
    figure = style.new_figure(style.COLUMN_WIDTH, 0.7 + (0.25 + 0.2 * mixture.shape[2]) * len(shown))
    axes = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    for one, idx in zip(axes, shown, strict=True):
        image = one.imshow(mixture[idx][order].T, aspect="auto", cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
        one.set(title=_round(weights, idx), yticks=range(mixture.shape[2]))
        style.frame(one)
    style.name_clients(axes[-1], names, len(order))  # once for all rounds, with the whole width for them
    axes[-1].set_xlabel(f"{len(order):,} seen clients, ordered as in the last round")
    figure.supylabel("component", fontsize="medium")
    figure.colorbar(image, ax=axes.tolist(), label="mixture weight")
    return figure


def _round(weights: dict[str, Any], idx: int) -> str:
    return f"round {int(weights['rounds'][idx])}"


def _group_order(weights: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Clients ordered by true group, and the positions at which a new group begins."""
    num_clients = weights["collaboration"].shape[1]
    groups = weights.get("groups", np.zeros(num_clients, dtype=int))
    order = np.argsort(groups, kind="stable")
    return order, np.flatnonzero(np.diff(groups[order])) + 1


def _heat_map(weights: dict[str, Any]) -> Any:
    """Heat maps of the weights between clients in a few rounds; clients are ordered by true group."""
    between = weights["collaboration"]
    order, bounds = _group_order(weights)
    names = weights["names"][order] if "names" in weights else order
    shown = _panels(len(between))
    width, height = (0.9 + 1.5 * len(shown), 2.1) if len(shown) > 1 else (style.COLUMN_WIDTH, 2.7)
    figure = style.new_figure(width, height)
    axes = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    largest = max(float(between[shown].max()), 1e-12)
    for one, idx in zip(axes, shown, strict=True):
        image = one.imshow(between[idx][np.ix_(order, order)], cmap="Greys", vmin=0, vmax=largest)
        for bound in bounds:
            one.axhline(bound - 0.5, color="#d1701f", linewidth=0.8)
            one.axvline(bound - 0.5, color="#d1701f", linewidth=0.8)
        one.set(title=_round(weights, idx), xlabel="model of client")
        style.frame(one)
        style.name_clients(one, names, len(order), most=18 if len(shown) > 1 else 30)
    axes[0].set_yticks(axes[0].get_xticks(), [label.get_text() for label in axes[0].get_xticklabels()], fontsize=6)
    by_group = ",\nby true group" if "groups" in weights else ""
    axes[0].set_ylabel(f"served client{by_group}")
    figure.colorbar(image, ax=axes.tolist(), label="weight")
    return figure


def _curves(weights: dict[str, Any]) -> Any:
    """Curves of each client's weights over the rounds; of many clients, the share within their groups."""
    between, rounds = weights["collaboration"], weights["rounds"]
    num_clients = between.shape[1]
    groups = weights.get("groups", np.zeros(num_clients, dtype=int))
    if num_clients > MOST_CURVES:
        return _share_in_group(between, rounds, groups)
    names = weights.get("names", [f"client {number}" for number in range(num_clients)])
    columns = min(4, num_clients)
    rows = -(-num_clients // columns)
    figure = style.new_figure(1.65 * columns + 0.4, 1.3 * rows + 0.6)
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for served, one in enumerate(axes.flat):
        one.set_visible(served < num_clients)
        for other in range(num_clients if served < num_clients else 0):
            group = int(groups[other])
            one.plot(
                rounds, between[:, served, other], color=style.COLOURS[group % len(style.COLOURS)],
                linestyle=style.DASHES[group % len(style.DASHES)], linewidth=2.2 if other == served else 0.9,
            )  # fmt: skip
        if served < num_clients:
            one.set_title(f"{style.short_name(names[served])}, group {int(groups[served])}", fontsize=7)
            one.xaxis.set_major_locator(style.few_ticks(whole=True, most=4))
    figure.supxlabel("round")
    figure.supylabel("weight (thick: its own model)")
    handles = [
        axes.flat[0].plot(
            [], [], color=style.COLOURS[group % len(style.COLOURS)], linestyle=style.DASHES[group % len(style.DASHES)]
        )[0]
        for group in np.unique(groups)
    ]
    names = [f"models of group {group}" for group in np.unique(groups)]
    figure.legend(handles, names, loc="outside upper center", ncols=len(names))
    return figure


def _share_in_group(between: np.ndarray, rounds: np.ndarray, groups: np.ndarray) -> Any:
    same = groups[:, None] == groups
    inside = (between * same).sum(2) / np.maximum(between.sum(2), 1e-12)
    own = np.einsum("rii->ri", between) / np.maximum(between.sum(2), 1e-12)
    figure = style.new_figure(style.COLUMN_WIDTH, 2.5)
    axes = figure.subplots()
    for position, (values, name) in enumerate(((inside, "its true group"), (own, "its own model"))):
        label, color = f"to {name}, mean over clients", style.COLOURS[position]
        style.draw_curve(axes, rounds, values.mean(1), label=label, color=color, **style.look(position))
        axes.fill_between(rounds, *np.quantile(values, [0.1, 0.9], axis=1), color=color, alpha=0.15, linewidth=0)
    axes.xaxis.set_major_locator(style.few_ticks(whole=True))
    axes.set(xlabel="round", ylabel="share of a client's weights", ylim=(-0.02, 1.02))
    style.legend_above(figure, columns=1)
    return figure
