"""Table of per-client results over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from lit_fed.metrics.pooled import Pool
from lit_fed.metrics.scores import ClientScores

__all__ = ["ClientTable"]


class ClientTable(Metric):
    """Sums over each client's samples, gathered from all ranks; each client is evaluated on one rank.

    Args:
        num_clients: T.
        num_components: M if mixture weights are kept beside the sums, else 0.
        names: names of the K chosen metrics.
    """

    full_state_update = False
    rows: Tensor

    def __init__(self, num_clients: int, num_components: int = 0, names: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_components, self.names = num_components, names
        zeros = torch.zeros(num_clients, 3 + num_components + len(names), dtype=torch.float64)
        self.add_state("rows", zeros, dist_reduce_fx="sum")  # one table is one exchange between ranks
        self.pool = Pool()

    def reset(self) -> None:
        """Forget all results."""
        super().reset()
        self.pool.clear()

    def update(self, positions: Tensor, scores: ClientScores) -> None:
        """Add the results of the clients at `positions` [C]."""
        self.rows[positions] += scores.rows()

    def compute(self) -> Tensor:
        """The table of all ranks, [T, 3 + M + K]."""
        return self.rows

    def scores(self) -> ClientScores:
        """The results of all T clients; the same on every rank."""
        return ClientScores.of_rows(self.compute().cpu().clone(), self.num_components, self.names)
