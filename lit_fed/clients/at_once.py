"""A function of one client for many at once, on trees."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.types import Tree

__all__ = ["at_once"]


class _Layer(NamedTuple):
    """The steps of `torch.func.vmap`, which PyTorch keeps private."""

    begin: Callable[[int, str], int]
    end: Callable[[], Any]
    add: Callable[[Tensor, int, int], Tensor]
    remove: Callable[[Tensor, int, int, int], Tensor]


def at_once(function: Callable[..., Any], *arguments: Tree) -> Any:
    """`torch.func.vmap` over the leading axis of every leaf, without its own, slow look at trees.

    A step of small models takes less time than `vmap` takes to flatten and rebuild its arguments. If this PyTorch lacks
    one of the private steps of `vmap`, `vmap` itself is called; the numbers are the same.

    Args:
        function: of one client; nothing in it draws from a generator of torch.
        arguments: trees with leaves [C, ...]; None is an empty tree.

    Returns:
        What the function returns, leaves [C, ...].
    """
    layer = _private_layer()
    return _by_vmap(function, arguments) if layer is None else _by_layer(layer, function, arguments)


def _by_layer(layer: _Layer, function: Callable[..., Any], arguments: tuple[Tree, ...]) -> Any:
    size = len(next(leaf for _, leaf in tree.items(arguments)))
    level = layer.begin(size, "error")
    try:
        inside = tree.map_leaves(lambda leaf: layer.add(leaf, 0, level), arguments)
        result = function(*inside)
        return tree.map_leaves(lambda leaf: layer.remove(leaf, level, size, 0), result)
    finally:
        layer.end()


def _by_vmap(function: Callable[..., Any], arguments: tuple[Tree, ...]) -> Any:
    results: list[Any] = []

    def of_leaves(*leaves: Tensor) -> tuple[Tensor, ...]:
        results.append(function(*tree.rebuild(arguments, leaves)))
        return tuple(tree.leaves(results[-1]))

    leaves = torch.func.vmap(of_leaves)(*tree.leaves(arguments))
    return tree.rebuild(results[-1], leaves)


@cache
def _private_layer() -> _Layer | None:
    """None if this PyTorch lacks one of the steps, or does something else by it."""
    try:
        from torch._C import _functorch as functorch
        from torch._functorch.predispatch import lazy_load_decompositions

        lazy_load_decompositions()
        layer = _Layer(
            functorch._vmap_increment_nesting, functorch._vmap_decrement_nesting,
            functorch._add_batch_dim, functorch._remove_batch_dim,
        )  # fmt: skip
        rows = torch.arange(6.0).view(2, 3)
        works = torch.equal(_by_layer(layer, lambda row: row.flip(0) * row.max(), (rows,)), rows.flip(1) * rows[:, 2:])
    except (ImportError, AttributeError, TypeError, RuntimeError):
        return None
    return layer if works else None
