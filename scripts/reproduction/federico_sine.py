"""Lines fitted to parts of a sine curve: Figure 1 of https://arxiv.org/abs/2210.06597."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reproduction.pictures import save
from reproduction.runs import Kept, Record, Run
from reproduction.settings import LABELS, algorithm, solver
from reproduction.tables import Method, Scale, Setting, Table, grid, wrap

__all__ = ["TABLES"]

COLOURS = {"fedavg": "#8a8a8a", "local": "#d1701f", "federico": "#1b4f8a"}
DASHES = {"fedavg": ":", "local": "--", "federico": "-"}

own = (("fedavg", algorithm("FedAvg"), 0.1), ("local", algorithm("Local"), 0.04))
# gradients of a sum and of a mean differ by the two samples of a client
methods = tuple(Method(name, LABELS[name], (*chosen, *solver(lr=lr))) for name, chosen, lr in own)
weighing = Method("federico", LABELS["federico"], (), ("client_weights",))
REDUCED = Setting("sine", "Sine", "federico_sine", (*methods, weighing), (), ("sine_lines",), draws_data=False)
short = ("--trainer.max_epochs", "5", "--trainer.check_val_every_n_epoch", "5")


def setting(scale: Scale) -> Setting:
    """The setting of the figure: small, so the same at all scales, but for fewer rounds in `smoke`."""
    return REDUCED._replace(arguments=short) if scale == "smoke" else REDUCED


def runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """FedAvg, Local and FedeRiCo."""
    return setting(scale).runs(seeds)


def found(kept: Kept, scale: Scale, seeds: Sequence[int]) -> dict[str, Record]:
    """The record of the first seed that was run, for each algorithm."""
    all_of_them = {name: kept.all(setting(scale).runs(seeds, [name])) for name in COLOURS}
    return {name: records[0] for name, records in all_of_them.items() if records}


def body(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """How far the lines are from the curve, and whom FedeRiCo's clients work with."""
    records = found(kept, scale, seeds)
    rows = [
        [LABELS[name], f"{records[name]['sine_lines']['error']:.3f}" if name in records else "not run"]
        for name in COLOURS
    ]
    lines = wrap(
        "20 clients see two noisy points each of their own part of a sine curve and fit a line; the squared distance "
        "of the lines from the curve, in units of the noise's variance, is a mean over each client's part. The "
        "paper's figure gives no numbers, so points, noise, learning rates and rounds are ours."
    )
    lines += ["", *grid(["algorithm", "squared distance"], rows)]
    return [*lines, "", *wrap(_neighbourhood(records["federico"]))] if "federico" in records else lines


def _neighbourhood(record: Record) -> str:
    """What near and far clients have in common; whose models they are says little, as all start at random."""
    weights = np.array(record["client_weights"]["collaboration"])[-1]
    overlap = np.minimum(weights[:, None], weights[None]).sum(-1)
    apart = np.abs(np.subtract.outer(range(len(weights)), range(len(weights))))
    near, far = (100 * overlap[mask].mean() for mask in (apart == 1, apart >= 5))
    return (
        f"Two clients next to each other on the curve have on average {near:.0f} percent of FedeRiCo's weights in "
        f"common, two that are five or more apart {far:.0f} percent."
    )


def picture(kept: Kept, scale: Scale, seeds: Sequence[int], path: Path) -> None:
    """The lines of all clients, and FedeRiCo's weights."""
    from matplotlib.figure import Figure

    records = found(kept, scale, seeds)
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_lines(left, records)
    if "federico" in records:
        image = right.imshow(records["federico"]["client_weights"]["collaboration"][-1], cmap="Blues", vmin=0)
        figure.colorbar(image, ax=right)
    right.set(
        xlabel="whose model",
        ylabel="client",
        title="weights of FedeRiCo",
        xticks=range(0, 20, 5),
        yticks=range(0, 20, 5),
    )
    save(figure, path)


def _draw_lines(axis: Any, records: dict[str, Record]) -> None:
    any_of_them = next(iter(records.values()))["sine_lines"]
    x, curve = np.array(any_of_them["x"]), np.array(any_of_them["curve"])
    axis.plot(x.ravel(), curve.ravel(), color="#b03a8a", label="sine curve")
    axis.plot(any_of_them["train_x"], any_of_them["train_y"], ".", color="#333333", label="training points")
    for name, record in records.items():
        for client, line in enumerate(record["sine_lines"]["lines"]):
            label = f"{LABELS[name]}, squared distance {record['sine_lines']['error']:.2f}" if client == 0 else None
            axis.plot(x[client], line, DASHES[name], color=COLOURS[name], label=label)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set(xlabel="input", ylabel="output, in units of the noise")
    axis.legend(fontsize=8, frameon=False)


TABLES = [
    Table("federico-figure1", runs, body, picture),
]
