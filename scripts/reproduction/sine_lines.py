"""Lines that clients fit to their parts of a sine curve, for Figure 1 of the FedeRiCo paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from lit_fed.clients import PredictJob
from lit_fed.core.types import Split

__all__ = ["sine_lines"]

POINTS = 20
"""Points of each client's line."""


def sine_lines(cli: Any, folder: Path) -> dict[str, Any]:
    """The line of each client [T, POINTS] with the curve there, its training points, and the mean squared distance."""
    module, data = cli.model, cli.datamodule.dataset
    ends = np.array([data.interval(one) for one in range(data.num_clients)])
    x = np.linspace(ends[:, 0], ends[:, 1], POINTS, axis=1)
    lines, curve, train = _predict(module, x), data.curve(x), data.load()[0].train
    arrays = {"x": x, "lines": lines, "curve": curve, "train_x": train.x.numpy()[:, 0], "train_y": train.y.numpy()}
    rounded = {name: np.round(values.astype(float), 4).tolist() for name, values in arrays.items()}
    return {**rounded, "error": float(np.square(lines - curve).mean())}


def _predict(module: Any, x: np.ndarray) -> np.ndarray:
    """What each client predicts for its row of inputs [T, POINTS]."""
    ids, ctx = torch.arange(len(x)), module.federation.context("evaluate")
    split = Split(
        torch.tensor(x, dtype=torch.float32).reshape(-1, 1), torch.zeros(x.size), torch.arange(len(x) + 1) * POINTS
    )
    states = module.store.gather(ids)["state"]
    lines = np.zeros_like(x)
    for served in module.federation.client_trainer.predict(
        PredictJob(module.algorithm, ctx, module.shared, split, ids, states)
    ):
        lines[served.rows.numpy()] = served.prediction[..., 0].numpy()
    return lines
