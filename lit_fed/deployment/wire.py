"""Packets between server and node: facts as JSON, tensors as bytes; nothing in them is ever executed.

A packet holds the leaves of trees, not their structure, which both sides know from the algorithm (`checked_tree`).

    magic, 8 bytes | length of the header, 8 bytes | header, JSON in zlib | bytes of all leaves, one after another
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.types import Tree
from lit_fed.system.readers import FormError

__all__ = ["MOST_HEADER", "TYPES", "Packet", "checked_tree", "digest_of_question", "from_bytes", "to_bytes"]

MAGIC = b"litfed1\n"
START = struct.Struct("<8sQ")

TYPES = {
    str(kind).removeprefix("torch."): kind
    for kind in (
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
        torch.uint8, torch.bool,
    )
}  # fmt: skip

MOST_LEAVES, MOST_AXES, MOST_ENTRIES = 2**18, 16, 2**40
"""Leaves of a packet, axes of a leaf, and the product of a leaf's axes, where an axis of length 0 counts as 1."""

MOST_ITEMS, MOST_DEPTH, MOST_LETTERS = 2**21, 32, 2**16
"""JSON values, names and brackets in a header; levels of nesting; letters of a text."""

MOST_HEADER = 2**25
"""Bytes of an unpacked header, unless the question implies fewer."""


NO_PART_OF_QUESTION = ("kind", "needed", "settings", "version")
"""Facts that may differ when a question is repeated after a restart of either side."""


class Packet(NamedTuple):
    """A message from one side to the other."""

    facts: dict[str, Any]  # JSON values
    trees: Mapping[str, list[Tensor]] = MappingProxyType({})  # leaves of each tree, in the order of `tree.items`


# ---------------------------------------------------------------------- bytes
def to_bytes(packet: Packet) -> bytes:
    """The packet as bytes; tensors on any device."""
    leaves = {name: [leaf.detach().cpu().contiguous() for leaf in some] for name, some in packet.trees.items()}
    forms = {name: [[_type_name(leaf), list(leaf.shape)] for leaf in some] for name, some in leaves.items()}
    header = json.dumps({"facts": packet.facts, "trees": forms}, allow_nan=False, separators=(",", ":"))
    packed = zlib.compress(header.encode(), 9)  # for a small model facts are a tenth of the packet
    parts = (_bytes_of(leaf) for some in leaves.values() for leaf in some)
    return b"".join([START.pack(MAGIC, len(packed)), packed, *parts])


def from_bytes(data: bytes, most_header: int = MOST_HEADER) -> Packet:
    """The inverse of `to_bytes`, with at most so many bytes of the unpacked header.

    Raises:
        FormError: for anything else than its result.
    """
    if len(data) < START.size:
        _no_packet("it is too short")
    magic, length = START.unpack_from(data)
    if magic != MAGIC or length > len(data) - START.size:
        _no_packet("it does not begin as one")
    facts, forms = _header(data[START.size : START.size + length], most_header)
    wanted = {name: [_form(one) for one in some] for name, some in forms.items()}
    sizes = [size for some in wanted.values() for _, _, size in some]
    if len(sizes) > MOST_LEAVES or sum(sizes) != len(data) - START.size - length:
        _no_packet("it has another length than its header says")
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


def digest_of_question(packet: Packet) -> str:
    """Digest of everything that the answer to a question about a round depends on, without version numbers."""
    facts = {name: value for name, value in packet.facts.items() if name not in NO_PART_OF_QUESTION}
    digest = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=32)
    for name in sorted(packet.trees):
        for leaf in packet.trees[name]:
            digest.update(json.dumps([name, _type_name(leaf), list(leaf.shape)]).encode() + _bytes_of(leaf))
    return digest.hexdigest()


def _bytes_of(leaf: Tensor) -> bytes:
    # a row of length 1 may keep the stride of the tensor that it was cut from, and then cannot be viewed as bytes
    row = leaf.reshape(-1).as_strided((leaf.numel(),), (1,))
    return row.view(torch.uint8).numpy().tobytes()


def _type_name(leaf: Tensor) -> str:
    return str(leaf.dtype).removeprefix("torch.")


def _header(packed: bytes, most: int) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Facts and the forms of trees; the cost of parsing is bounded before, nesting and texts are checked after."""
    try:
        plain = _unpacked(packed, most)
        if sum(map(plain.count, (b",", b":", b"[", b"{"))) > MOST_ITEMS:
            _no_packet("its header has too many parts")
        header = json.loads(plain, parse_constant=_no_packet)
    except (ValueError, RecursionError, zlib.error) as error:
        if isinstance(error, FormError):
            raise
        raise FormError("no packet: its header cannot be read") from error
    _check_plain(header)
    facts, forms = (header.get("facts"), header.get("trees")) if isinstance(header, dict) else (None, None)
    if not isinstance(facts, dict) or not isinstance(forms, dict) or len(header) != 2:
        _no_packet("its header says something else")
    if not all(isinstance(some, list) for some in forms.values()):
        _no_packet("it holds something else than tensors")
    return facts, forms


def _check_plain(header: Any) -> None:
    """Refuse deep nesting, long or unprintable texts, and numbers that no field can have."""
    level, depth = [header], 0
    while level:
        depth += 1
        if depth > MOST_DEPTH:
            _no_packet("its header is nested too deeply")
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += value
                inner += value.values()
            elif isinstance(value, list):
                inner += value
            elif isinstance(value, str):
                if len(value) > MOST_LETTERS or not value.isprintable():
                    _no_packet("its header holds a text that is too long or cannot be printed")
            elif value is not None and not abs(value) < 2**63 and not (type(value) is float and math.isfinite(value)):
                _no_packet("its header holds a number that is too large")
        level = inner


def _form(one: Any) -> tuple[torch.dtype, list[int], int]:
    """Type, shape and bytes of a leaf."""
    if not isinstance(one, list) or len(one) != 2 or not isinstance(one[0], str) or one[0] not in TYPES:
        _no_packet("it holds something else than tensors")
    kind, shape = one
    if not isinstance(shape, list) or len(shape) > MOST_AXES or not all(type(n) is int and n >= 0 for n in shape):
        _no_packet("it holds a tensor without a shape")
    if math.prod(max(n, 1) for n in shape) > MOST_ENTRIES:  # torch computes strides from it, also of empty leaves
        _no_packet("it holds a tensor that is too large")
    return TYPES[kind], shape, math.prod(shape) * TYPES[kind].itemsize


def _unpacked(packed: bytes, most: int) -> bytes:
    """An unpacked header of at most so many bytes; a compressed bomb is not unpacked further."""
    unpacking = zlib.decompressobj()
    header = unpacking.decompress(packed, most)
    if not unpacking.eof or unpacking.unused_data:
        _no_packet("its header is too long, or does not end")
    return header


def _no_packet(what: str) -> NoReturn:
    raise FormError(f"no packet: {what}")


# ---------------------------------------------------------------------- trees
def checked_tree(leaves: list[Tensor], form: Tree, *, shapes: bool = True) -> Tree:
    """The tree of these leaves, in the order of `tree.items`, if number, types and shapes match those of `form`.

    Without `shapes` all axes but the first have to be equal.

    Raises:
        FormError: naming the first that differs.
    """
    wanted = list(tree.items(form))
    if len(leaves) != len(wanted):
        raise FormError(f"{len(leaves)} tensors in the place of {len(wanted)}")
    for leaf, (path, one) in zip(leaves, wanted, strict=True):
        axes = 0 if shapes else 1
        if leaf.dtype != one.dtype or leaf.ndim != one.ndim or leaf.shape[axes:] != one.shape[axes:]:
            kind, expected = (f"{_type_name(each)} of shape {list(each.shape)}" for each in (leaf, one))
            raise FormError(f"{path} is {kind} in the place of {expected}")
    return tree.rebuild(form, leaves)
