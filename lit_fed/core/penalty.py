"""What algorithms add to a client's loss: a linear and a quadratic term in its parameters."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Penalty"]


class Penalty(NamedTuple):
    """⟨linear, θ⟩ + weight/2·‖θ − anchor‖², for each of M models; leaves [M, ...], or [1, ...] for all alike.

    A proximal term has a weight and an anchor, a gradient correction a linear part, an augmented Lagrangian all three.
    """

    weight: Tensor | float = 0.0  # [] or [M]
    anchor: dict[str, Tensor] | None = None  # None: the origin
    linear: dict[str, Tensor] | None = None  # None: zero

    def gradient(self, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
        """The gradient, linear + weight·(θ − anchor), leaves [M, ...]."""
        if self.linear is not None and not isinstance(self.weight, Tensor) and not self.weight:
            return {name: self.linear[name].expand_as(leaf) for name, leaf in parameters.items()}
        found = {}
        for name, leaf in parameters.items():
            part = self._weight(leaf) * (leaf if self.anchor is None else leaf - self.anchor[name])
            found[name] = part if self.linear is None else part + self.linear[name]
        return found

    def value(self, parameters: dict[str, Tensor]) -> Tensor:
        """The penalty of each model, [M]."""
        parts = []
        for name, leaf in parameters.items():
            away = leaf if self.anchor is None else leaf - self.anchor[name]
            part = 0.5 * self._weight(leaf) * away.square()
            parts.append(
                (part if self.linear is None else part + self.linear[name] * leaf).reshape(len(leaf), -1).sum(1)
            )
        return torch.stack(parts).sum(0)

    def of_model(self, m: int) -> Penalty:
        """The penalty of model m alone, with a leading axis of 1."""
        weight = self.weight
        if isinstance(weight, Tensor) and weight.ndim:
            weight = weight[m : m + 1]
        return Penalty(weight, _of_model(self.anchor, m), _of_model(self.linear, m))

    def _weight(self, leaf: Tensor) -> Tensor | float:
        if not isinstance(self.weight, Tensor):
            return self.weight
        weight = self.weight.to(leaf.dtype)
        return weight.view(-1, *[1] * (leaf.ndim - 1)) if weight.ndim else weight


def _of_model(leaves: dict[str, Tensor] | None, m: int) -> dict[str, Tensor] | None:
    if leaves is None:
        return None
    return {name: leaf if leaf.shape[0] == 1 else leaf[m : m + 1] for name, leaf in leaves.items()}
