"""Table of per-client results over all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from lit_fed.metrics.pooled import Pool

__all__ = ["ClientTable"]


class ClientTable(Metric):
    """Sums over each client's samples, gathered from all ranks; each client is evaluated on one rank.

    Args:
        num_clients: T.
        num_components: M if mixture weights are kept beside the sums, else 0.
        num_metrics: K, number of user-defined metrics, kept last.
    """

    full_state_update = False
    rows: Tensor

    def __init__(self, num_clients: int, num_components: int = 0, num_metrics: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        zeros = torch.zeros(num_clients, 3 + num_components + num_metrics, dtype=torch.float64)
        self.add_state("rows", zeros, dist_reduce_fx="sum")
        self.pool = Pool()

    def reset(self) -> None:
        """Forget all results."""
        super().reset()
        self.pool.clear()

    def update(self, positions: Tensor, rows: Tensor) -> None:
        """Add rows of the clients at `positions` [C].

        Args:
            positions: positions in the table.
            rows: number of samples, loss, hits, mixture weights, user-defined metrics, [C, 3 + M + K].
        """
        self.rows[positions] += rows

    def compute(self) -> Tensor:
        """All rows, [T, 3 + M + K]; the same on every rank."""
        return self.rows.cpu().clone()
