"""Trees: nested named tuples, tuples, lists and dicts with tensors at the leaves; None is an empty tree."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from lit_fed.core.types import ModelState, Tree
from lit_fed.system.machine import aligned

__all__ = [
    "add", "bits", "dot", "index", "items", "leaves", "lerp", "map_leaves", "models", "named", "norm", "rebuild", "row",
    "scale", "stack", "sub", "take", "with_children", "zeros_like",
]  # fmt: skip


def map_leaves(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply `function` to corresponding leaves of trees of one structure.

    Example:
        >>> map_leaves(lambda a, b: a + b, {"w": 1}, {"w": 2})
        {'w': 3}
    """
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {key: map_leaves(function, value, *(other[key] for other in others)) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        return with_children(tree, [map_leaves(function, *parts) for parts in zip(tree, *others, strict=True)])
    return function(tree, *others)


def with_children(node: tuple[Any, ...] | list[Any], children: Sequence[Any]) -> Any:
    """A named tuple, tuple or list with other children."""
    return type(node)(*children) if hasattr(node, "_fields") else type(node)(children)


def items(tree: Tree, path: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves with their paths, the parts joined by '/'.

    Example:
        >>> list(items({"a": (1, 2)}))
        [('a/0', 1), ('a/1', 2)]
    """
    if tree is None:
        return
    if isinstance(tree, dict):
        children: Any = tree.items()
    elif hasattr(tree, "_fields"):
        children = zip(tree._fields, tree, strict=True)
    elif isinstance(tree, tuple | list):
        children = enumerate(tree)
    else:
        yield path, tree
        return
    for name, child in children:
        yield from items(child, f"{path}/{name}" if path else str(name))


def leaves(tree: Tree) -> list[Any]:
    """Leaves in the order of `items`."""
    return [leaf for _, leaf in items(tree)]


def rebuild(template: Tree, values: Sequence[Any]) -> Tree:
    """The tree of `template`'s structure with `values` as leaves, in the order of `items`."""
    remaining = iter(values)
    return map_leaves(lambda _: next(remaining), template)


def sub(a: Tree, b: Tree) -> Tree:
    """The differences a − b of two trees of one structure, leaf by leaf."""
    return map_leaves(torch.sub, a, b)


def add(a: Tree, b: Tree) -> Tree:
    """The sums a + b of two trees of one structure, leaf by leaf."""
    return map_leaves(torch.add, a, b)


def scale(tree: Tree, factor: Tensor | float) -> Tree:
    """Every leaf times a factor: a number, or a tensor [] that does not change the leaves' types."""
    return map_leaves(lambda leaf: leaf * (factor.to(leaf.dtype) if isinstance(factor, Tensor) else factor), tree)


def lerp(a: Tree, b: Tree, share: Tensor | float) -> Tree:
    """Points (1 − share)·a + share·b between two trees of one structure, leaf by leaf; whole numbers are rounded."""

    def between(x: Tensor, y: Tensor) -> Tensor:
        if x.is_floating_point():
            return add(scale(x, 1 - share), scale(y, share))  # type: ignore[no-any-return]
        return ((1 - share) * x.double() + share * y.double()).round().to(x.dtype)

    return map_leaves(between, a, b)


def dot(a: Tree, b: Tree) -> Tensor:
    """Inner product over all leaves, [] float64."""
    products = zip(leaves(a), leaves(b), strict=True)
    return torch.stack([(x.double() * y.double()).sum() for x, y in products]).sum()


def take(tree: Tree, position: Tensor) -> Tree:
    """Entry [] of the leading axis of every leaf, which keeps that axis with length 1."""
    return map_leaves(lambda leaf: leaf.index_select(0, position.view(1)), tree)


def zeros_like(tree: Tree) -> Tree:
    """Zeros of the same shapes and types."""
    return map_leaves(torch.zeros_like, tree)


def norm(tree: Tree) -> Tensor:
    """Euclidean norm over all leaves, [] float64."""
    return torch.stack([leaf.double().pow(2).sum() for leaf in leaves(tree)]).sum().sqrt()


def index(tree: Tree, position: int | slice | Tensor) -> Tree:
    """Entry or entries of the leading axis of every leaf."""
    return map_leaves(lambda leaf: leaf[position], tree)


def row(tree: Tree, position: int) -> Tree:
    """Entry of the leading axis of every leaf, copied if it would be unaligned."""
    return map_leaves(lambda leaf: aligned(leaf[position]), tree)


def stack(trees: Sequence[Tree]) -> Tree:
    """Stack trees of one structure along a new leading axis."""
    return map_leaves(lambda *parts: torch.stack(parts), *trees)


def bits(tree: Tree, private: frozenset[str] = frozenset()) -> int:
    """Size of a tree's leaves in bits, without those whose names are `private` to a client.

    Example:
        >>> bits({"w": torch.zeros(3, dtype=torch.float32)})
        96
    """
    sent = (leaf for path, leaf in items(tree) if path.rpartition("/")[2] not in private)
    return sum(8 * leaf.numel() * leaf.element_size() for leaf in sent)


def named(leaves: dict[str, Any], names: Collection[str] | None) -> dict[str, Any]:
    """The leaves of a dict that have these names; None: all."""
    return leaves if names is None else {name: leaf for name, leaf in leaves.items() if name in names}


def models(tree: Tree) -> list[ModelState]:
    """All model states in a tree."""
    if isinstance(tree, ModelState):
        return [tree]
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, tuple | list) else ()
    return [found for child in children for found in models(child)]
