"""Networks whose outputs and gradients are matrix products over all models at once."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, runtime_checkable

from torch import Tensor

__all__ = ["ClosedForm"]


@runtime_checkable
class ClosedForm(Protocol):
    """A network whose gradient needs no autograd; `parameters` have leaves [M, ...]."""

    def stacked_outputs(self, parameters: dict[str, Tensor], x: Tensor, per_model: bool) -> Tensor:
        """Outputs [B, M, K] for inputs [B, ...], or [M, B, ...] if `per_model`."""

    def stacked_gradient(self, x: Tensor, residual: Tensor, per_model: bool) -> dict[str, Tensor]:
        """Gradient of the parameters, leaves [M, ...], from the gradient of the outputs [B, M, K]."""

    def squared_norms(self, x: Tensor, residual: Tensor, names: Collection[str]) -> Tensor:
        """Squared norms [B, M] float64 of what each sample [B, ...] adds to the gradient of these parameters."""
