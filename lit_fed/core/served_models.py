"""The models that serve a client, found by watching its prediction: any algorithm that mixes models has some."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.core.task import Task
from lit_fed.core.types import ModelState

__all__ = ["ServedModels", "served_models"]


class ServedModels(NamedTuple):
    """The models that serve a client, and their weights."""

    models: ModelState  # leaves [M, ...]
    weights: Tensor  # [M], sum to 1


@dataclass(frozen=True)
class _Watching(Task):
    """A task that notes which models a prediction uses, and how it mixes them."""

    used: list[tuple[ModelState, Tensor]] = field(default_factory=list, compare=False)
    mixed: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list, compare=False)

    @classmethod
    def of(cls, task: Task) -> _Watching:
        """The same task, watched."""
        return cls(**{one.name: getattr(task, one.name) for one in fields(task)})

    def outputs(self, models: ModelState, x: Tensor) -> Tensor:
        found = super().outputs(models, x)
        self.used.append((models, found))
        return found

    def mix(self, weights: Tensor, outputs: Tensor) -> Tensor:
        found = super().mix(weights, outputs)
        self.mixed.append((weights, outputs, found))
        return found


def served_models(predict: Callable[[Task, Tensor], Tensor], task: Task, x: Tensor) -> ServedModels | None:
    """The models behind a client's prediction; None: it is not a mixture of the outputs of models.

    Args:
        predict: the prediction of inputs by a task.
        task: the task.
        x: any inputs [B, ...].
    """
    watching = _Watching.of(task)
    with torch.no_grad():
        prediction = predict(watching, x)
    if len(watching.used) != 1 or len(watching.mixed) != 1:
        return None
    ((models, found),), ((weights, outputs, mixed),) = watching.used, watching.mixed
    return ServedModels(models, weights) if outputs is found and mixed is prediction else None
