"""A function of one client for many at once, on trees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._C import _functorch as functorch
from torch._functorch.predispatch import lazy_load_decompositions

from lit_fed.core import tree
from lit_fed.core.types import Tree

__all__ = ["at_once"]


def at_once(function: Callable[..., Any], *arguments: Tree) -> Any:
    """`torch.func.vmap` over the leading axis of every leaf, without its own, slow look at trees.

    A step of small models takes less time than `vmap` takes to flatten and rebuild its arguments.

    Args:
        function: of one client; nothing in it draws from a generator of torch.
        arguments: trees with leaves [C, ...]; None is an empty tree.

    Returns:
        What the function returns, leaves [C, ...].
    """
    lazy_load_decompositions()
    size = len(next(leaf for _, leaf in tree.items(arguments)))
    level = functorch._vmap_increment_nesting(size, "error")
    try:
        inside = tree.map_leaves(lambda leaf: functorch._add_batch_dim(leaf, 0, level), arguments)
        result = function(*inside)
        return tree.map_leaves(lambda leaf: functorch._remove_batch_dim(leaf, level, size, 0), result)
    finally:
        functorch._vmap_decrement_nesting()
