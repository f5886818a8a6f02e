"""What is measured on clients that are mixtures of components: FedEM paper, Figure 2, Appendices J.3 and J.4."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lit_fed.callbacks.evaluation import measure_population
from lit_fed.core.seeds import generator
from lit_fed.core.types import Split
from lit_fed.data.data_sets.synthetic import synthetic_parameters
from lit_fed.metrics import summarise
from lit_fed.metrics.gathered import ClientTable

__all__ = ["SHARES", "accuracy_by_share", "first_samples", "mixture_entropy", "recovery"]

SHARES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def accuracy_by_share(cli: Any, folder: Path) -> dict[str, list[float]]:
    """Test accuracy of unseen clients that adapt on a share of their training samples, each holding the one before."""
    data, device = cli.datamodule, cli.trainer.strategy.root_device
    whole, results = data.unseen, []
    cli.model.to(device)  # which the end of the run has brought home
    for share in SHARES:
        data.unseen = whole._replace(train=first_samples(whole.train, share, data.seed))
        table = ClientTable(whole.num_measured).to(device)
        with torch.inference_mode():
            measure_population(cli.trainer, cli.model, "unseen", "test", table)
        results.append(summarise(table.compute())["accuracy"])
    data.unseen = whole
    return {"shares": list(SHARES), "accuracy": results}


def first_samples(split: Split, share: float, seed: int) -> Split:
    """The first part of each client's shuffled samples, rounded up.

    Args:
        split: clients with all of their samples.
        share: part that each keeps, in [0, 1].
        seed: of the order.
    """
    rows = []
    for position, (start, end) in enumerate(pairwise(split.offsets.tolist())):
        order = generator(seed, 0, split.first_id + position, "share of the training samples").permutation(end - start)
        rows.append(start + order[: math.ceil(share * (end - start))])
    offsets = torch.tensor([0, *np.cumsum([len(some) for some in rows]).tolist()])
    taken = torch.from_numpy(np.concatenate(rows))
    return Split(split.x[taken], split.y[taken], offsets, split.first_id)


def mixture_entropy(cli: Any, folder: Path) -> dict[str, float]:
    """Mean entropy in nats of the mixture weights that clients were served with, of seen and of unseen ones."""
    import pandas as pd

    table = pd.read_csv(folder / "clients.csv")
    weights = table[[name for name in table if name.startswith("pi_")]].to_numpy().clip(min=1e-300)
    entropy = -(weights * np.log(weights)).sum(axis=1)
    return {name: float(entropy[table["population"] == name].mean()) for name in table["population"].unique()}


def recovery(cli: Any, folder: Path) -> dict[str, Any]:
    """How near the components and mixtures of a run come to those that drew the synthetic data.

    Components are matched one to one by the largest sum of cosines. A component is known up to its length, since its
    labels say only on which side of a plane a sample lies.
    """
    from scipy.optimize import linear_sum_assignment

    truth = synthetic_parameters(cli.datamodule.dataset)
    learned = cli.model.shared.models.parameters["linear.weight"].double().cpu().numpy()[:, 0]
    cosine = _directions(truth.components) @ _directions(learned).T
    true, found = linear_sum_assignment(cosine, maximize=True)
    mixtures = cli.model.mixture_weights.double().cpu().numpy()[:, found]
    wanted = truth.mixtures[:, true]
    return {
        "cosines": np.round(cosine[true, found], 4).tolist(),
        "mixture_l1": float(np.abs(mixtures - wanted).sum(axis=1).mean()),
        "clusters": float((mixtures.argmax(axis=1) == wanted.argmax(axis=1)).mean()),
    }


def _directions(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
