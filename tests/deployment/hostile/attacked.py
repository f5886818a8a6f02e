"""What tables of attacks are made of: packets that are changed, and a transport with one liar."""

import json
import os
import struct
import zlib
from pathlib import Path

import torch
from in_process import InProcess

from lit_fed.deployment.wire import Packet, from_bytes, to_bytes

MAGIC = b"litfed1\n"


# ---------------------------------------------------------------------- packets
def raw(header, payload=b"", level=9):
    """A packet with any header, also one that `to_bytes` refuses to write; bytes stand as they are."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    packed = zlib.compress(text, level)
    return struct.pack("<8sQ", MAGIC, len(packed)) + packed + payload


def header_of(data):
    """The header of a packet and the bytes behind it."""
    length = struct.unpack_from("<8sQ", data)[1]
    return json.loads(zlib.decompress(data[16 : 16 + length])), data[16 + length :]


def garbage(data):
    """Answer with these bytes."""
    return lambda honest: data


def cut(start=0, stop=None, more=b""):
    """Answer with a part of the bytes, and more behind it."""
    return lambda honest: honest[start:stop] + more


def header(**changes):
    """Answer with another `facts` or `trees` in the header and no tensor behind it."""
    return lambda honest: raw(header_of(honest)[0] | changes)


def leaf(shape, kind="float32"):
    """Answer with the first leaf in this form, and no bytes behind the header."""

    def change(honest):
        whole, _ = header_of(honest)
        whole["trees"][next(iter(whole["trees"]))][0] = [kind, shape]
        return raw(whole)

    return change


def facts(**changes):
    """Answer with other facts; one that is `...` is left out."""

    def change(honest):
        whole, payload = header_of(honest)
        found = whole["facts"] | changes
        whole["facts"] = {name: value for name, value in found.items() if value is not ...}
        return raw(whole, payload)

    return change


def inside(*path, to):
    """Answer with another value at a path in the facts, where `...` is any name; `to=...` leaves the value out."""

    def change(honest):
        whole, payload = header_of(honest)
        place = whole["facts"]
        for name in path[:-1]:
            place = place[next(iter(place)) if name is ... else name]
        last = next(iter(place)) if path[-1] is ... else path[-1]
        if to is ...:
            del place[last]
        else:
            place[last] = to
        return raw(whole, payload)

    return change


def trees(change):
    """Answer with changed tensors: `change` takes the trees, by name lists of leaves, and changes them in place."""

    def changed(honest):
        packet = from_bytes(honest)
        found = {name: [one.clone() for one in some] for name, some in packet.trees.items()}
        change(found)
        return to_bytes(Packet(packet.facts, found))

    return changed


def every(value):
    """Fill all floats of the first tree with a number."""

    def change(found):
        for one in next(iter(found.values())):
            if one.is_floating_point():
                one.fill_(value)

    return trees(change)


def entry(place, value):
    """Set one leaf of the first tree, counted from the start or the end, to a number."""

    def change(found):
        next(iter(found.values()))[place].fill_(value)

    return trees(change)


def cell(column, value):
    """Set one column of measured rows to a number."""

    def change(found):
        found["rows"][0][:, column] = value

    return trees(change)


# ---------------------------------------------------------------------- a liar among nodes
class WithLiar(InProcess):
    """A transport whose node carl answers questions of one kind with what `lie` makes of the honest answer.

    Attributes:
        lie: `None`: carl is honest; else the kind of the question, and the change.
        lies: how often it was asked.
    """

    def __init__(self, nodes):
        super().__init__(nodes)
        self.lie, self.lies = None, 0

    def call(self, packets, *, most_bytes, seconds):
        kinds = {node: from_bytes(data).facts["kind"] for node, data in packets.items()}
        answers = super().call(packets, most_bytes=dict.fromkeys(most_bytes, 2**40), seconds=seconds)
        if self.lie is not None and kinds.get("carl") == self.lie[0] and "carl" in answers:
            self.lies += 1
            answers["carl"] = self.lie[1](answers["carl"])
        return {node: data for node, data in answers.items() if len(data) <= most_bytes[node]}


# ---------------------------------------------------------------------- this process
def resident():
    """Bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors():
    """How many files and connections of this process are open."""
    return len(os.listdir("/proc/self/fd"))


def all_finite(leaves):
    return all(bool(torch.as_tensor(one).isfinite().all()) for one in leaves)
