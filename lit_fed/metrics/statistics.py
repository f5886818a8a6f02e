"""Statistics over clients: one table, which keys, tables, figures and the documentation read."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

__all__ = ["STATISTICS", "Statistic", "client_statistics"]


class Statistic(NamedTuple):
    """A statistic over clients of a metric."""

    heading: str  # of its column
    meaning: str  # as the documentation has it
    of: Callable[[Tensor, Tensor], Tensor] | None  # values and weights [T] float64 → []; None: see `ChosenMetrics`
    worst_first: bool = False  # order of the values; a metric without a direction has no such statistic
    larger_is_better: bool | None = None  # None: as of the metric
    in_its_unit: bool = True  # whether its unit is that of the metric
    digits: int = 4  # behind the point
    printed: bool = False  # whether it is a column of the table of a run
    compared: bool = False  # whether it is a column of `compare`


STATISTICS = {
    "": Statistic(
        "mean", "mean over clients, weighted by their samples",
        lambda values, weights: (values * weights).sum() / weights.sum(), printed=True, compared=True,
    ),
    "_decile": Statistic(
        "worst decile", "the max(1, ⌊T/10⌋)-th worst of T clients",
        lambda values, _: values[max(1, len(values) // 10) - 1], worst_first=True, printed=True, compared=True,
    ),
    "_worst": Statistic(
        "worst client", "the worst client", lambda values, _: values[0], worst_first=True, printed=True
    ),
    "_std": Statistic(
        "standard deviation", "standard deviation over clients", lambda values, _: values.std(correction=0),
        larger_is_better=False,
    ),
    "_unweighted": Statistic("plain mean", "plain mean over clients", lambda values, _: values.mean()),
    "_pooled": Statistic("pooled", "the metric of the samples of all clients together", None, printed=True),
    "_undefined": Statistic(
        "undefined", "number of clients with samples but without a value", None, larger_is_better=False,
        in_its_unit=False, digits=0, printed=True,
    ),
}  # fmt: skip
"""The statistics, by the end of their key: that of `accuracy` with `_std` is `accuracy_std`.

Those without a function are of chosen metrics alone. `larger_is_better/…` in summary.json has no statistics: their
direction follows from that of the metric and this table.
"""


def client_statistics(
    values: Tensor, num_samples: Tensor, name: str, *, larger_is_better: bool | None = True
) -> dict[str, float]:
    """The statistics over clients of a metric, by key.

    Args:
        values: the metric of each client, [T].
        num_samples: test samples, the weights, [T]; clients without samples are left out.
        name: name of the metric, such as `accuracy`.
        larger_is_better: direction of the metric; None: unknown, and what needs the worst clients is left out.

    Example:
        >>> import torch
        >>> client_statistics(torch.tensor([0.5, 1.0]), torch.tensor([1, 3]), "accuracy")["accuracy"]
        0.875
    """
    held = num_samples > 0
    if not held.any():
        return {}
    values, weights = values[held].double(), num_samples[held].double()
    ordered, order = values.sort(descending=larger_is_better is False)
    return {
        f"{name}{suffix}": float(one.of(ordered, weights[order]) if one.worst_first else one.of(values, weights))
        for suffix, one in STATISTICS.items()
        if one.of is not None and not (one.worst_first and larger_is_better is None)
    }
