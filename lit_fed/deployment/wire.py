"""What passes between server and node: facts in JSON, and tensors as their bytes; nothing in it is ever executed.

A packet holds the leaves of trees, not their structure: both sides know it from the algorithm (`forms`).

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

__all__ = [
    "MOST_HEADER", "TYPES", "Packet", "WireError", "digest_of_question", "from_bytes", "to_bytes",
    "type_name",
]  # fmt: skip

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
"""JSON values, names and brackets in a header, levels of nesting, letters of a text."""

NO_PART_OF_QUESTION = ("kind", "needed", "settings", "version")
"""Facts that may differ where a question is asked again, after one of the two was started again."""

MOST_HEADER = 2**25
"""Bytes of an unpacked header, where the question does not imply fewer."""


class WireError(ValueError):
    """Bytes that are no packet, or not the one that was asked for; the message repeats nothing of their content."""


class Packet(NamedTuple):
    """What one side sends to the other."""

    facts: dict[str, Any]  # what JSON can say
    trees: Mapping[str, list[Tensor]] = MappingProxyType({})  # leaves of each tree, in the order of `tree.items`


def to_bytes(packet: Packet) -> bytes:
    """The packet as bytes; tensors on any device."""
    leaves = {name: [leaf.detach().cpu().contiguous() for leaf in some] for name, some in packet.trees.items()}
    forms = {name: [[type_name(leaf), list(leaf.shape)] for leaf in some] for name, some in leaves.items()}
    header = json.dumps({"facts": packet.facts, "trees": forms}, allow_nan=False, separators=(",", ":"))
    packed = zlib.compress(header.encode(), 9)  # of a small model the facts are a tenth
    parts = (_bytes_of(leaf) for some in leaves.values() for leaf in some)
    return b"".join([START.pack(MAGIC, len(packed)), packed, *parts])


def from_bytes(data: bytes, most_header: int = MOST_HEADER) -> Packet:
    """The inverse of `to_bytes`.

    Args:
        data: the bytes.
        most_header: bytes that the unpacked header may have.

    Raises:
        WireError: for anything else than its result.
    """
    if len(data) < START.size:
        _refuse("it is too short")
    magic, length = START.unpack_from(data)
    if magic != MAGIC or length > len(data) - START.size:
        _refuse("it does not begin as one")
    facts, forms = _header(data[START.size : START.size + length], most_header)
    wanted = {name: [_form(one) for one in some] for name, some in forms.items()}
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


def digest_of_question(packet: Packet) -> str:
    """What tells a question about a round from others: all that an answer to it depends on, and no version numbers."""
    facts = {name: value for name, value in packet.facts.items() if name not in NO_PART_OF_QUESTION}
    digest = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=32)
    for name in sorted(packet.trees):
        for leaf in packet.trees[name]:
            digest.update(json.dumps([name, type_name(leaf), list(leaf.shape)]).encode() + _bytes_of(leaf))
    return digest.hexdigest()


def _bytes_of(leaf: Tensor) -> bytes:
    # one number in a row of length 1 may keep the stride of where it was cut out, with which it is no row of bytes
    row = leaf.reshape(-1).as_strided((leaf.numel(),), (1,))
    return row.view(torch.uint8).numpy().tobytes()


def type_name(leaf: Tensor) -> str:
    """The name of a leaf's type, such as `float32`."""
    return str(leaf.dtype).removeprefix("torch.")


def _header(packed: bytes, most: int) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Facts and the forms of trees; the costs of parsing are bounded before, nesting and texts are checked after."""
    try:
        plain = _unpacked(packed, most)
        if sum(map(plain.count, (b",", b":", b"[", b"{"))) > MOST_ITEMS:
            _refuse("its header has too many parts")
        header = json.loads(plain, parse_constant=_refuse)
    except (ValueError, RecursionError, zlib.error) as error:
        if isinstance(error, WireError):
            raise
        raise WireError("no packet: its header cannot be read") from error
    _check_plain(header)
    facts, forms = (header.get("facts"), header.get("trees")) if isinstance(header, dict) else (None, None)
    if not isinstance(facts, dict) or not isinstance(forms, dict) or len(header) != 2:
        _refuse("its header says something else")
    if not all(isinstance(some, list) for some in forms.values()):
        _refuse("it holds something else than tensors")
    return facts, forms


def _check_plain(header: Any) -> None:
    """Refuse deep nesting, long texts, texts that cannot be printed, and numbers that no field of ours can have."""
    level, depth = [header], 0
    while level:
        depth += 1
        if depth > MOST_DEPTH:
            _refuse("its header is nested too deeply")
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += value
                inner += value.values()
            elif isinstance(value, list):
                inner += value
            elif isinstance(value, str):
                if len(value) > MOST_LETTERS or not value.isprintable():
                    _refuse("its header holds a text that is too long or cannot be printed")
            elif value is not None and not abs(value) < 2**63 and not (type(value) is float and math.isfinite(value)):
                _refuse("its header holds a number that is too large")
        level = inner


def _form(one: Any) -> tuple[torch.dtype, list[int], int]:
    """Type, shape and bytes of a leaf."""
    if not isinstance(one, list) or len(one) != 2 or not isinstance(one[0], str) or one[0] not in TYPES:
        _refuse("it holds something else than tensors")
    kind, shape = one
    if not isinstance(shape, list) or len(shape) > MOST_AXES or not all(type(n) is int and n >= 0 for n in shape):
        _refuse("it holds a tensor without a shape")
    if math.prod(max(n, 1) for n in shape) > MOST_ENTRIES:  # strides are computed from it, also of empty leaves
        _refuse("it holds a tensor that is too large")
    return TYPES[kind], shape, math.prod(shape) * TYPES[kind].itemsize


def _unpacked(packed: bytes, most: int) -> bytes:
    """An unpacked header of at most so many bytes, however short it came."""
    unpacking = zlib.decompressobj()
    header = unpacking.decompress(packed, most)
    if not unpacking.eof or unpacking.unused_data:
        _refuse("its header is too long, or does not end")
    return header


def _refuse(what: str) -> NoReturn:
    raise WireError(f"no packet: {what}")
