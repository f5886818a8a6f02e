"""Per-client results, and what papers report of them."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.distributed import gather_all_tensors

from lit_fed.core.machine.roll_call import exchange

__all__ = ["ClientTable", "client_statistics", "summarise"]


def client_statistics(
    values: Tensor, num_samples: Tensor, name: str, *, larger_is_better: bool | None = True
) -> dict[str, float]:
    """Statistics over clients of a metric.

    Args:
        values: the metric of each client, [T].
        num_samples: samples it was measured on, [T]; clients without any take no part.
        name: `accuracy`, say.
        larger_is_better: which end is the worse; None: neither, and `_decile` and `_worst` are left out.

    Returns:
        The mean weighted by samples under `name`; `_decile`, the max(1, ⌊T/10⌋)-th worst client; `_worst`; `_std`;
        `_unweighted`, the plain mean.

    Example:
        >>> client_statistics(torch.tensor([0.5, 1.0]), torch.tensor([1, 3]), "accuracy")["accuracy"]
        0.875
    """
    held = num_samples > 0
    if not held.any():
        return {}
    values, weight = values[held].double(), num_samples[held].double()
    worst_first = values.sort(descending=larger_is_better is False).values
    worst = {
        f"{name}_decile": float(worst_first[max(1, len(values) // 10) - 1]),
        f"{name}_worst": float(worst_first[0]),
    }
    return {
        name: float((values * weight).sum() / weight.sum()),
        **({} if larger_is_better is None else worst),
        f"{name}_std": float(values.std(correction=0)),
        f"{name}_unweighted": float(values.mean()),
    }


def _of_all_ranks(state: Tensor, group: Any = None) -> list[Tensor]:
    """The tables of all ranks; torchmetrics' own exchange would not name a rank that is lost."""
    with exchange():
        return gather_all_tensors(state, group)


class ClientTable(Metric):
    """Sums over each client's samples, gathered from all ranks: each client is measured on one of them.

    Args:
        num_clients: T.
        num_components: M, where clients are served by mixtures, whose weights are kept beside the sums; else 0.
        num_metrics: K, metrics of the user's choice, which are kept behind them.
    """

    full_state_update = False
    rows: Tensor

    def __init__(self, num_clients: int, num_components: int = 0, num_metrics: int = 0, **kwargs: Any) -> None:
        super().__init__(**{"dist_sync_fn": _of_all_ranks} | kwargs)
        zeros = torch.zeros(num_clients, 3 + num_components + num_metrics, dtype=torch.float64)
        self.add_state("rows", zeros, dist_reduce_fx="sum")

    def update(self, positions: Tensor, rows: Tensor) -> None:
        """Add rows of the clients at `positions` [C].

        Args:
            positions: places in the table.
            rows: number of samples, loss, hits, mixture weights, chosen metrics, [C, 3 + M + K].
        """
        self.rows[positions] += rows

    def compute(self) -> Tensor:
        """All rows, [T, 3 + M + K]; the same on every rank."""
        return self.rows.cpu().clone()


def summarise(rows: Tensor, metric: Literal["accuracy", "mse"] = "accuracy") -> dict[str, float]:
    """`loss`, and `accuracy` or `mse` with the statistics of `client_statistics`.

    Args:
        rows: number of samples, sum of losses and sum of hits (`mse`: squared errors) of each client, [T, >=3].
        metric: name of the mean of the third column; of `mse` the largest are the worst.
    """
    count, loss, hits = rows[:, :3].unbind(1)
    if not (count > 0).any():
        return {}
    each = count.clamp(min=1)
    results = {"loss": float(loss.sum() / count.sum())}
    return results | client_statistics(hits / each, count, metric, larger_is_better=metric == "accuracy")
