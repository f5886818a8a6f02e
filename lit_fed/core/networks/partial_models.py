"""Networks in two parts by the names of their leaves, such as a shared body under a personal head."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor

from lit_fed.core.types import ModelState

__all__ = ["joined", "part_like", "without"]


def part_like(models: ModelState, like: tuple[dict[str, Tensor], dict[str, Tensor]]) -> ModelState:
    """Those leaves of whole models that another pair of parameters and buffers has."""
    return ModelState(*({name: own[name] for name in names} for own, names in zip(models, like, strict=True)))


def without(models: ModelState, names: Collection[str]) -> ModelState:
    """The models without the leaves of these names."""
    return ModelState(*({name: leaf for name, leaf in part.items() if name not in names} for part in models))


def joined(models: ModelState, other: tuple[dict[str, Tensor], dict[str, Tensor]]) -> ModelState:
    """Leaves of two parts; those of the second one replace others of the same name."""
    return ModelState(models.parameters | other[0], models.buffers | other[1])
