"""A forward pass that an E-step and the first local step have in common."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from lit_fed.core.types import ModelState

__all__ = ["ForwardMemory", "Pass"]


class Pass(NamedTuple):
    """A forward pass of one model with its graph; or of M together, with an axis of models everywhere."""

    parameters: dict[str, Tensor]  # leaves of the graph; [M, ...] of M models
    outputs: Tensor  # [B, K] or [B, L, K]; [B, M, K] of M models
    buffers: dict[str, Tensor]  # after the pass


class ForwardMemory:
    """A forward pass that an E-step and the first local step have in common.

    Where both see the same samples under the same models, the gradient of the step needs no second pass. What is
    remembered is recognised by identity, so that nothing but time depends on it.

    Args:
        x: the samples [B, ...] to be remembered.
    """

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.models: ModelState | None = None
        self.passes: list[Pass] = []

    def take(self, models: ModelState, x: Tensor) -> list[Pass]:
        """The passes of these models on these samples, handed out once; [] if they are not remembered."""
        if self.models is None or x is not self.x or models.parameters is not self.models.parameters:
            return []
        passes, self.passes, self.models = self.passes, [], None
        return passes
