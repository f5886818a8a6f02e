"""Which components of a mixture attackers weigh, and what these are good for alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from lit_fed.callbacks.component_accuracy import measure_components
from lit_fed.metrics.gathered import ClientTable

__all__ = ["poisoned_components"]


def poisoned_components(cli: Any, folder: Path) -> dict[str, list[float]]:
    """Of each component, that which attackers weigh most first: their mean weight, that of honest clients, accuracy.

    Without attackers the component comes first that clients weigh most.
    """
    module, data = cli.model, cli.datamodule
    tables = [ClientTable(data.seen.num_measured) for _ in range(module.algorithm.num_models)]
    for block in data.serving("seen", "test"):
        measure_components(module, block, tables)
    rows = torch.stack([table.compute() for table in tables])  # [M, T, 3]
    attacks = torch.zeros(rows.shape[1], dtype=torch.bool).index_fill(0, data.seen.attackers, True)
    weights = module.mixture_weights.double()
    honest = rows[:, ~attacks].sum(1)
    alone, by_honest = honest[:, 2] / honest[:, 0], weights[~attacks].mean(0)
    by_attackers = weights[attacks].mean(0) if attacks.any() else torch.zeros_like(by_honest)
    order = (by_attackers if attacks.any() else by_honest).argsort(descending=True)
    found = {"attackers": by_attackers, "honest": by_honest, "alone": alone}
    return {name: [round(float(value), 4) for value in values[order]] for name, values in found.items()}
