"""What is measured on a finished run besides its summary: functions of the command line's objects and its folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from reproduction.attacked_components import poisoned_components
from reproduction.client_accuracies import client_accuracies
from reproduction.e_steps import unseen_by_e_steps
from reproduction.mixture_curve import mixture_curve
from reproduction.mixtures import accuracy_by_share, mixture_entropy, recovery
from reproduction.sine_lines import sine_lines

__all__ = ["MEASURES"]


def client_weights(cli: Any, folder: Path) -> dict[str, Any]:
    """What `weights.npz` holds, rounded to three digits."""
    with np.load(folder / "weights.npz") as kept:
        return {name: np.round(kept[name].astype(float), 3).tolist() for name in kept.files}


def data_statistics(cli: Any, folder: Path) -> dict[str, Any]:
    """Clients, samples of each client in all splits, classes, and parameters of one network."""
    data = cli.datamodule
    both = [one for one in (data.seen, data.unseen) if one is not None]
    sizes = [(one.train.sizes + one.val.sizes + one.test.sizes).tolist() for one in both]
    network = cli.model.settings.network(data.input_shape, data.target.num_outputs)
    return {
        "samples": [size for some in sizes for size in some],
        "training_samples": sum(one.train.num_samples for one in both),
        "classes": data.target.num_classes,
        "parameters": sum(leaf.numel() for leaf in network.parameters()),
    }


def participation(cli: Any, folder: Path) -> dict[str, float]:
    """Clients of the training, and how many of them take part in a round on average."""
    data = cli.datamodule
    clients = data.seen.train.num_clients
    return {"clients": clients, "per_round": data.clients_per_round or clients}


def objective(cli: Any, folder: Path) -> dict[str, Any]:
    """What `ObjectiveGap` measured after each round, and the megabits that clients have sent and received by then."""
    import pandas as pd

    from reproduction.objective import ObjectiveGap

    (callback,) = (one for one in cli.trainer.callbacks if isinstance(one, ObjectiveGap))
    table = pd.read_csv(folder / "metrics.csv")
    bits = 8 * (table["comm/bytes_up"].fillna(0) + table["comm/bytes_down"].fillna(0)).cumsum()
    rows = table["objective/gap"].notna()
    columns = {"gap": table["objective/gap"], "disagreement": table["objective/disagreement"], "megabits": bits / 1e6}
    curve = {name: [float(f"{value:.4g}") for value in values[rows]] for name, values in columns.items()}
    return curve | {"minimum": callback.minimum, "curvature": callback.curvature, "slope": callback.slope}


MEASURES: dict[str, Callable[[Any, Path], Any]] = {
    "accuracy_by_share": accuracy_by_share,
    "client_accuracies": client_accuracies,
    "client_weights": client_weights,
    "data_statistics": data_statistics,
    "mixture_curve": mixture_curve,
    "mixture_entropy": mixture_entropy,
    "objective": objective,
    "participation": participation,
    "poisoned_components": poisoned_components,
    "recovery": recovery,
    "sine_lines": sine_lines,
    "unseen_by_e_steps": unseen_by_e_steps,
}
