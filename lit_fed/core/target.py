"""What a task predicts: the kind of its labels, and how many outputs these need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lit_fed.core.errors import ConfigError

__all__ = ["Target"]

Kind = Literal["binary", "multiclass", "regression"]


@dataclass(frozen=True)
class Target:
    """What is predicted.

    Args:
        kind: `binary` (one logit), `multiclass` (C logits) or `regression` (a mean, unit variance).
        num_classes: C; 1 for regression.
        positions: labels have a position axis [B, L]; losses are averaged over it.
    """

    kind: Kind
    num_classes: int
    positions: bool = False

    def __post_init__(self) -> None:
        """Positions are for classes."""
        if self.positions and self.kind != "multiclass":
            raise ConfigError(f"labels with a position axis are {self.kind}; give classes, one for each position")

    @property
    def num_outputs(self) -> int:
        """Outputs of the network per sample or position: 1, C or 1."""
        return 1 if self.kind == "binary" else self.num_classes
