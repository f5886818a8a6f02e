"""Draws docs/images/federico_sine.png: lines that clients fit to their parts of a sine curve, and who helps whom.

    python scripts/federico_sine.py

After Figure 1 of Sui, Wen, Lau, Ross, Cresswell, "Find Your Friends", https://arxiv.org/abs/2210.06597.
"""

from __future__ import annotations

import tempfile
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import torch
from kept_runs import ROOT
from matplotlib.figure import Figure

from lit_fed.cli import FederatedCLI
from lit_fed.clients import PredictJob
from lit_fed.core.types import Split

__all__ = ["draw", "main"]

POINTS = 20
"""Points of each client's line."""

COLOURS = {"FedAvg": "#8a8a8a", "Local": "#d1701f", "FedeRiCo": "#1b4f8a"}

OPTIONS = {  # gradients of a sum and of a mean differ by the two samples of a client
    "FedAvg": ("--model.algorithm", "FedAvg", "--model.solver.lr", "0.1", "--trainer.max_epochs", "200"),
    "Local": ("--model.algorithm", "Local", "--model.solver.lr", "0.04"),
    "FedeRiCo": (),
}


class Fit(NamedTuple):
    """What a run learned."""

    lines: np.ndarray  # [T, POINTS]
    error: float  # mean squared distance from the curve
    weights: np.ndarray | None  # [T, T]


def fit(name: str) -> tuple[Fit, Any]:
    """Run the experiment with an algorithm; the fit and the data set."""
    config = str(ROOT / "configs/experiment/federico_sine.yaml")
    with tempfile.TemporaryDirectory() as out:
        quiet = ("--trainer.default_root_dir", out, "--trainer.enable_progress_bar", "false")
        cli = FederatedCLI(["fit", "--config", config, *OPTIONS[name], *quiet])
    module, data = cli.model, cli.datamodule.dataset
    ids, ctx = torch.arange(data.num_clients), module.context("evaluate")
    x = grid(data)
    states = module.store.gather(ids)["state"]
    split = Split(
        torch.tensor(x, dtype=torch.float32).view(-1, 1), torch.zeros(x.size), torch.arange(len(x) + 1) * POINTS
    )
    job = PredictJob(module.algorithm, ctx, module.shared, split, ids, states)
    lines = np.zeros_like(x)
    for served in module.client_trainer.predict(job):
        lines[served.rows.numpy()] = served.prediction[..., 0].numpy()
    weights = module.algorithm.collaboration(ctx, module.shared, states)
    return Fit(
        lines, float(np.square(lines - data.curve(x)).mean()), None if weights is None else weights.numpy()
    ), data


def grid(data: Any) -> np.ndarray:
    """Inputs of each client's line, [T, POINTS]."""
    return np.stack([np.linspace(*data.interval(one), POINTS) for one in range(data.num_clients)])


def draw(fits: dict[str, Fit], data: Any) -> Figure:
    """The lines of all clients, and FedeRiCo's weights."""
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(10, 4), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        x, train = grid(data), data.load()[0].train
        left.plot(x.ravel(), data.curve(x).ravel(), color="#b03a8a", label="sine curve")
        left.plot(train.x.numpy()[:, 0], train.y.numpy(), ".", color="#333333", label="training points")
        for name, found in fits.items():
            style = ":" if name == "FedAvg" else "-"
            for row, (where, line) in enumerate(zip(x, found.lines, strict=True)):
                label = f"{name}, squared error {found.error:.2f}" if row == 0 else None
                left.plot(where, line, style, color=COLOURS[name], label=label)
        left.set(xlabel="input", ylabel="output, in units of the noise")
        left.legend(fontsize=8, frameon=False)
        image = right.imshow(fits["FedeRiCo"].weights, cmap="Blues", vmin=0)
        ticks = range(0, data.num_clients, 5)
        right.set(xlabel="whose model", ylabel="client", title="weights of FedeRiCo", xticks=ticks, yticks=ticks)
        figure.colorbar(image, ax=right)
    return figure


def main() -> None:
    """Run the three algorithms and write the picture."""
    fits = {}
    for name in OPTIONS:
        fits[name], data = fit(name)
        print(f"{name}: {fits[name].error:.3f}", flush=True)
    draw(fits, data).savefig(ROOT / "docs/images/federico_sine.png", dpi=150)


if __name__ == "__main__":
    main()
