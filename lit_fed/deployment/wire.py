"""What passes between server and node: facts in JSON, and tensors as their bytes; nothing in it is ever executed.

A packet holds the leaves of trees, not their structure: both sides know it from the algorithm, and `in_form` compares
number, types and shapes before anything is done with them.

    magic, 8 bytes | length of the header, 8 bytes | header, JSON | bytes of all leaves, one after another
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.types import Tree

__all__ = ["Packet", "WireError", "from_bytes", "in_form", "most_bytes", "to_bytes"]

MAGIC = b"litfed1\n"
START = struct.Struct("<8sQ")

TYPES = {
    str(kind).removeprefix("torch."): kind
    for kind in (
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
        torch.uint8, torch.bool,
    )
}  # fmt: skip

MOST_LEAVES, MOST_AXES = 1_000_000, 16
"""Of one packet, and of one leaf; whoever sends more does not mean well."""

HEADER_BYTES = 65_536
"""Room for the header of an answer, beside what each leaf takes in it."""


class WireError(ValueError):
    """Bytes that are no packet, or not the one that was asked for; the message repeats nothing of their content."""


class Packet(NamedTuple):
    """What one side sends to the other."""

    facts: dict[str, Any]  # what JSON can say
    trees: Mapping[str, list[Tensor]] = MappingProxyType({})  # leaves of each tree, in the order of `tree.items`


def to_bytes(packet: Packet) -> bytes:
    """The packet as bytes; tensors on any device."""
    leaves = {name: [leaf.detach().cpu().contiguous() for leaf in some] for name, some in packet.trees.items()}
    forms = {name: [[_type_name(leaf), list(leaf.shape)] for leaf in some] for name, some in leaves.items()}
    header = json.dumps({"facts": packet.facts, "trees": forms}, allow_nan=False, separators=(",", ":")).encode()
    parts = (_bytes_of(leaf) for some in leaves.values() for leaf in some)
    return b"".join([START.pack(MAGIC, len(header)), header, *parts])


def from_bytes(data: bytes) -> Packet:
    """The inverse of `to_bytes`.

    Raises:
        WireError: for anything else than its result.
    """
    if len(data) < START.size:
        _refuse("it is too short")
    magic, length = START.unpack_from(data)
    if magic != MAGIC or length > len(data) - START.size:
        _refuse("it does not begin as one")
    try:
        header = json.loads(data[START.size : START.size + length], parse_constant=_refuse)
        facts, forms = header["facts"], header["trees"]
        if not isinstance(facts, dict) or not isinstance(forms, dict):
            _refuse("its header says something else")
        wanted = {name: [_form(*one) for one in some] for name, some in forms.items()}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        if isinstance(error, WireError):
            raise
        raise WireError("no packet: its header cannot be read") from error
    sizes = [size for some in wanted.values() for _, _, size in some]
    if len(sizes) > MOST_LEAVES or sum(sizes) != len(data) - START.size - length:
        _refuse("it has another length than its header says")
    place = START.size + length
    trees: dict[str, list[Tensor]] = {}
    for name, some in wanted.items():
        trees[name] = []
        for kind, shape, size in some:
            leaf = torch.empty(shape, dtype=kind)
            if size:
                raw = np.frombuffer(data, dtype=np.uint8, count=size, offset=place)
                leaf.view(-1).view(torch.uint8).copy_(torch.from_numpy(raw.copy()))
            trees[name].append(leaf)
            place += size
    return Packet(facts, trees)


def in_form(leaves: list[Tensor], form: Tree, *, shapes: bool = True) -> Tree:
    """The tree of these leaves, which have the number, types and shapes of those of `form`.

    Args:
        leaves: in the order of `tree.items`.
        form: a tree of the same structure.
        shapes: whether shapes have to be the same; else the number of their axes.

    Raises:
        WireError: naming the first that differs.
    """
    wanted = list(tree.items(form))
    if len(leaves) != len(wanted):
        raise WireError(f"{len(leaves)} tensors in the place of {len(wanted)}")
    for leaf, (path, one) in zip(leaves, wanted, strict=True):
        if leaf.dtype != one.dtype or (leaf.shape != one.shape if shapes else leaf.ndim != one.ndim):
            kind, expected = (f"{_type_name(each)} of shape {list(each.shape)}" for each in (leaf, one))
            raise WireError(f"{path} is {kind} in the place of {expected}")
    return tree.rebuild(form, leaves)


def most_bytes(form: Tree, number: int) -> int:
    """What an answer with so many trees of a form may take on the wire."""
    leaves = tree.leaves(form)
    each: int = sum(leaf.numel() * leaf.element_size() + 64 + 24 * leaf.ndim for leaf in leaves)
    return HEADER_BYTES + number * (each + 256)


def _bytes_of(leaf: Tensor) -> bytes:
    # one number in a row of length 1 may keep the stride of where it was cut out, with which it is no row of bytes
    row = leaf.reshape(-1).as_strided((leaf.numel(),), (1,))
    return row.view(torch.uint8).numpy().tobytes()


def _type_name(leaf: Tensor) -> str:
    return str(leaf.dtype).removeprefix("torch.")


def _form(kind: str, shape: list[int]) -> tuple[torch.dtype, list[int], int]:
    """Type, shape and bytes of a leaf."""
    is_shape = isinstance(shape, list) and len(shape) <= MOST_AXES
    if kind not in TYPES or not is_shape or not all(type(one) is int and 0 <= one < 2**48 for one in shape):
        _refuse("it holds something else than tensors")
    return TYPES[kind], shape, math.prod(shape) * TYPES[kind].itemsize


def _refuse(what: str) -> NoReturn:
    raise WireError(f"no packet: {what}")
