"""Results of clients, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["USUAL", "ClientScores"]

USUAL = {"accuracy": True, "mse": False, "loss": False}
"""Metrics that are always measured, and whether larger is better."""


class ClientScores(NamedTuple):
    """Results of C clients, float64.

    Example:
        >>> scores = ClientScores.of_rows(torch.tensor([[4.0, 2.0, 3.0, 0.9, 0.1]]), num_components=2)
        >>> scores.hits, scores.mixture
        (tensor([3.]), tensor([[0.9000, 0.1000]]))
    """

    samples: Tensor  # [C], number of samples that count
    loss: Tensor  # [C], sum over the samples
    hits: Tensor  # [C], sum over the samples of hits, or of the target's error, such as squared errors
    mixture: Tensor  # [C, M], weights of the components; M = 0 without a mixture
    metrics: dict[str, Tensor]  # chosen metrics by name, [C]; NaN where undefined

    @classmethod
    def of_rows(cls, rows: Tensor, num_components: int = 0, names: Sequence[str] = ()) -> ClientScores:
        """Views of a table with a row for each client.

        Args:
            rows: samples, loss, hits, M mixture weights, K chosen metrics, [C, 3 + M + K].
            num_components: M.
            names: names of the K chosen metrics.
        """
        samples, loss, hits, *others = rows.unbind(1)
        metrics = dict(zip(names, others[num_components:], strict=True))
        return cls(samples, loss, hits, rows[:, 3 : 3 + num_components], metrics)

    def rows(self) -> Tensor:
        """The table of `of_rows`, [C, 3 + M + K]."""
        columns = (*self[:3], *self.mixture.unbind(1), *self.metrics.values())
        return torch.stack(columns, dim=1)

    @property
    def held(self) -> Tensor:
        """Whether a client has samples, [C]."""
        return self.samples > 0

    def means(self, metric: str) -> dict[str, Tensor]:
        """Each client's metrics by name, [C]; NaN without samples.

        Args:
            metric: name of the mean of the hits, such as `accuracy` or `mse`.
        """
        count = self.samples.clamp(min=1)
        means = {metric: self.hits / count, "loss": self.loss / count, **self.metrics}
        return {name: column.masked_fill(~self.held, float("nan")) for name, column in means.items()}

    def columns(self, metric: str) -> dict[str, list[float]]:
        """Columns of a table of clients: `num_test`, and the `means`."""
        means = {name: column.tolist() for name, column in self.means(metric).items()}
        return {"num_test": self.samples.long().tolist(), **means}

    def weights(self) -> dict[str, list[float]]:
        """Columns `pi_m` of mixture weights; {} without a mixture."""
        return {f"pi_{m}": column.tolist() for m, column in enumerate(self.mixture.T)}
