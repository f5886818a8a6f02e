"""Deltas of messages: clients send models, and wrappers bound, round or hide changes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.reduce import cast_like
from lit_fed.core.types import Chosen, Leaves, ModelState, Tree

__all__ = [
    "delta_of", "map_parameter_trees", "names_of_parameters", "parameter_trees", "reference_of", "shares_of",
    "with_delta",
]  # fmt: skip


def reference_of(algorithm: Any, shared: Tree, value: Tree) -> Tree:
    """The part of a message that the server already knows.

    Args:
        algorithm: its `message.kind` says whether messages hold models or changes.
        shared: the broadcast state; clients start from its first models.
        value: the message's value, or the mean of several.

    Returns:
        A tree of the message's structure and shapes: for each `ModelState` the server's leaves of the same names, and
        zeros for everything else, including models that a client does not send.
    """
    if algorithm.message.kind != "models":
        return tree.zeros_like(value)
    return _counterpart(value, tree.models(shared)[0])


def _counterpart(value: Tree, models: ModelState) -> Tree:
    if isinstance(value, ModelState):
        return ModelState(*({name: own[name] for name in part} for part, own in zip(value, models, strict=True)))
    if isinstance(value, Chosen):
        taken = value.taken
        every = _counterpart(value.models, models)
        sent = tree.map_leaves(
            lambda leaf: leaf * taken.to(leaf.dtype).view(*taken.shape, *[1] * (leaf.ndim - 1)), every
        )
        return Chosen(sent, torch.zeros_like(taken))
    if isinstance(value, dict):
        return {key: _counterpart(part, models) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return tree.with_children(value, [_counterpart(part, models) for part in value])
    return None if value is None else torch.zeros_like(value)


def shares_of(value: Tree) -> Tensor | None:
    """The shares `taken`, [..., M], of a message with `Chosen`; None for others."""
    if isinstance(value, Chosen):
        return value.taken
    found = map(shares_of, value) if isinstance(value, tuple | list) else ()
    return next((shares for shares in found if shares is not None), None)


def delta_of(value: Tree, reference: Tree) -> Tree:
    """The changes value − reference of all leaves, in float64: of buffers, too, and of the shares of `Chosen`."""
    return tree.map_leaves(lambda new, old: new.double() - old.double(), value, reference)


def with_delta(value: Tree, reference: Tree, changes: Tree, told: Tree) -> Tree:
    """The message with its delta replaced, in its own types.

    Numbers with an unchanged delta are taken from the message itself, so a wrapper without effect changes no bit.

    Args:
        value: the message's value.
        reference: as of `reference_of`.
        changes: its delta.
        told: the new delta, in float64.
    """

    def leaf(own: Tensor, old: Tensor, before: Tensor, after: Tensor) -> Tensor:
        return torch.where(after == before, own, cast_like(old.double() + after, own))

    return tree.map_leaves(leaf, value, reference, changes, told)


def names_of_parameters(shared: Tree) -> frozenset[str]:
    """Names of the parameters of the models that clients start from."""
    return frozenset(tree.models(shared)[0].parameters)


def _holds_parameters(value: Tree, names: frozenset[str]) -> bool:
    return isinstance(value, dict) and bool(value) and value.keys() <= names


def parameter_trees(value: Tree, names: frozenset[str]) -> list[Leaves]:
    """The trees of parameters in a message: of models, gradients or controls, by name.

    Buffers of models and shares of `Chosen` are in none of them; the models of `Chosen` are, times their shares.

    Args:
        value: the message's value, or a delta of its structure.
        names: see `names_of_parameters`.
    """
    if isinstance(value, ModelState):
        return [value.parameters]
    if _holds_parameters(value, names):
        return [value]
    return (
        [part for child in value for part in parameter_trees(child, names)] if isinstance(value, tuple | list) else []
    )


def map_parameter_trees(change: Callable[[int, Leaves], Leaves], value: Tree, names: frozenset[str]) -> Tree:
    """The message with each of its `parameter_trees` replaced.

    Args:
        change: gets the place of a tree among them, from 0, and its leaves by name; returns the new leaves.
        value: the message's value, or a delta of its structure.
        names: see `names_of_parameters`.
    """
    places = count()

    def changed(part: Tree) -> Tree:
        if isinstance(part, ModelState):
            return part._replace(parameters=change(next(places), part.parameters))
        if _holds_parameters(part, names):
            return change(next(places), part)
        if isinstance(part, tuple | list):
            return tree.with_children(part, [changed(child) for child in part])
        return part

    return changed(value)
