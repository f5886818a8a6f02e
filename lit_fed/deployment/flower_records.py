"""Bytes as the content of Flower's messages: one array in one record, which Flower cuts into pieces by itself."""

from __future__ import annotations

from typing import Any

from lit_fed.system.packages import optional_package

__all__ = ["FLOWER", "bytes_of", "flower", "message_of", "reply_of"]

FLOWER = "flwr>=1.41,<1.43"
"""Of the extra `flower`: newer ones have other interfaces more often than not."""

MESSAGE_TYPE = "query"
"""What a client app does with our messages is the same whatever they ask, so Flower need not tell them apart."""

RECORD, STYPE = "packet", "lit_fed.packet"


def flower(module: str) -> Any:
    """A module of the package flwr.

    Raises:
        ConfigError: where it is missing, naming what to install.
    """
    return optional_package(f"flwr.{module}", FLOWER, "flower", "a federation over Flower")


def message_of(data: bytes, node_id: int, seconds: float) -> Any:
    """A message for a node.

    Args:
        data: its content.
        node_id: Flower's number of the node.
        seconds: after which it is of no use to anybody.
    """
    return flower("app").Message(_content(data), node_id, MESSAGE_TYPE, ttl=seconds)


def reply_of(data: bytes, message: Any) -> Any:
    """The reply to a message."""
    return flower("app").Message(_content(data), reply_to=message)


def bytes_of(message: Any) -> bytes | None:
    """What a message holds; None: something that `message_of` and `reply_of` do not make."""
    try:
        data = message.content[RECORD][RECORD].data
    except Exception:  # whatever a stranger has put there
        return None
    return data if isinstance(data, bytes) else None


def _content(data: bytes) -> Any:
    app = flower("app")
    array = app.Array(dtype="uint8", shape=(len(data),), stype=STYPE, data=data)
    return app.RecordDict({RECORD: app.ArrayRecord({RECORD: array})})
