"""Reads the file that an offline W&B run leaves: a LevelDB log of protocol buffers."""

import json
import struct
from pathlib import Path

from wandb.proto import wandb_internal_pb2

FILE_HEADER, BLOCK = 7, 2**15
RECORD_HEADER = struct.Struct("<IHB")  # checksum, length, and whether the record is whole, begins, goes on or ends here


def records(folder):
    """The records of the one run below a folder."""
    (path,) = Path(folder).rglob("*.wandb")
    content, place, parts = path.read_bytes(), FILE_HEADER, b""
    while place + RECORD_HEADER.size <= len(content):
        if BLOCK - place % BLOCK < RECORD_HEADER.size:
            place += BLOCK - place % BLOCK
        _, length, kind = RECORD_HEADER.unpack_from(content, place)
        place += RECORD_HEADER.size
        parts += content[place : place + length]
        place += length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def items(updates):
    """Keys, joined by dots where they are nested, and values."""
    return {one.key or ".".join(one.nested_key): json.loads(one.value_json) for one in updates}


def history(folder):
    """The logged rows."""
    return [items(one.history.item) for one in records(folder) if one.WhichOneof("record_type") == "history"]


def config(folder):
    """The run's configuration."""
    found = {}
    for one in records(folder):
        if one.WhichOneof("record_type") == "config":
            found |= items(one.config.update)
        if one.WhichOneof("record_type") == "run":
            found |= items(one.run.config.update)
    return found


def summary(folder):
    """The run's summary."""
    found = {}
    for one in records(folder):
        if one.WhichOneof("record_type") == "summary":
            found |= items(one.summary.update)
    return found


def artefacts(folder):
    """The logged artefacts."""
    return [one.artifact for one in records(folder) if one.WhichOneof("record_type") == "artifact"]
