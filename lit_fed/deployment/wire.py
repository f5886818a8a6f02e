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

__all__ = ["TYPES", "Packet", "WireError", "digest_of_question", "from_bytes", "to_bytes", "type_name"]

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

NO_PART_OF_QUESTION = ("kind", "needed", "settings", "version")
"""Facts that may differ where a question is asked again, after one of the two was started again."""

MOST_HEADER = 2**26
"""Bytes of a header when it is unpacked."""


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
        header = json.loads(_unpacked(data[START.size : START.size + length]), parse_constant=_refuse)
        facts, forms = header["facts"], header["trees"]
        if not isinstance(facts, dict) or not isinstance(forms, dict):
            _refuse("its header says something else")
        wanted = {name: [_form(*one) for one in some] for name, some in forms.items()}
    except (ValueError, TypeError, KeyError, RecursionError, zlib.error) as error:
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


def _form(kind: str, shape: list[int]) -> tuple[torch.dtype, list[int], int]:
    """Type, shape and bytes of a leaf."""
    is_shape = isinstance(shape, list) and len(shape) <= MOST_AXES
    if kind not in TYPES or not is_shape or not all(type(one) is int and 0 <= one < 2**48 for one in shape):
        _refuse("it holds something else than tensors")
    return TYPES[kind], shape, math.prod(shape) * TYPES[kind].itemsize


def _unpacked(packed: bytes) -> bytes:
    """A header, which may be no longer than `MOST_HEADER`, however short it came."""
    unpacking = zlib.decompressobj()
    header = unpacking.decompress(packed, MOST_HEADER)
    if not unpacking.eof or unpacking.unused_data:
        _refuse("its header does not end")
    return header


def _refuse(what: str) -> NoReturn:
    raise WireError(f"no packet: {what}")
