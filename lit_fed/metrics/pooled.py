"""Metrics of the samples of all clients together, beside means over clients."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_fed.core.reduce import num_ranks
from lit_fed.metrics.chosen import ChosenMetrics

__all__ = ["Pool"]

MOST_AXES = 8
"""Upper limit of axes of predictions and labels."""


class Pool:
    """Predictions and labels of the samples of all measured clients, or states of metrics; see `ClientMeter`."""

    def __init__(self) -> None:
        self._parts: list[tuple[int, Tensor, Tensor]] = []

    def add(self, position: int, shown: Tensor, labels: Tensor) -> None:
        """Add samples of the client at this position of the table: predictions [n, ...] and labels [n, ...]."""
        self._parts.append((position, shown, labels))

    def clear(self) -> None:
        """Forget all samples."""
        self._parts.clear()

    def values(self, chosen: ChosenMetrics, device: torch.device, kept: Tensor | None = None) -> dict[str, float]:
        """Each metric of the samples of all ranks, `<name>_pooled`; NaN if undefined.

        Args:
            chosen: the metrics.
            device: where ranks exchange tensors.
            kept: positions of the clients that count, [m]; None: all.
        """
        of_states = chosen.target.positions
        types = (
            torch.float64 if of_states else torch.float32,
            torch.float32 if chosen.target.continuous else torch.int64,
        )
        whole = self._gathered(device, types)
        if whole is None:
            return {}
        owner, shown, labels = whole
        if kept is not None:
            wanted = torch.isin(owner, kept)
            owner, shown, labels = owner[wanted], shown[wanted], labels[wanted]
        return chosen.of_states(shown) if of_states else chosen.of_all(shown, labels, owner)

    def _gathered(
        self, device: torch.device, types: tuple[torch.dtype, torch.dtype]
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Positions of clients [n], rising, predictions and labels of all ranks; None without samples."""
        owner = torch.cat([torch.full((len(y),), place) for place, _, y in self._parts] or [torch.zeros(0).long()])
        columns = [shown for _, shown, _ in self._parts], [labels for _, _, labels in self._parts]
        each = [torch.cat(one) if one else torch.zeros(0) for one in columns]
        if num_ranks() > 1:
            from torchmetrics.utilities.distributed import gather_all_tensors  # a single process has no use for it

            shapes = torch.zeros(2, MOST_AXES, dtype=torch.int64)  # number of axes, and their sizes; 0 without samples
            for row, one in zip(shapes, each, strict=True):
                row[: one.ndim if self._parts else 0] = torch.tensor([one.ndim, *one.shape[1:]])
            shapes = torch.stack(gather_all_tensors(shapes.to(device))).amax(0).cpu()
            owner = torch.cat(gather_all_tensors(owner.to(device))).cpu()
            each = [torch.cat(gather_all_tensors(one.double().flatten().to(device))).cpu() for one in each]
            each = [
                one.to(kind).view(len(owner), *map(int, row[1 : int(row[0])]))
                for one, kind, row in zip(each, types, shapes, strict=True)
            ]
        if not len(owner):
            return None
        order = owner.argsort(stable=True)
        return owner[order], each[0][order], each[1][order]
