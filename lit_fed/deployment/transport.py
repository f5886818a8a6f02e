"""The interface that moves bytes between a server and its nodes, and names of nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

from lit_fed.errors import ConfigError

__all__ = ["Transport", "check_node_name", "foreign_text", "is_node_name"]

NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Transport(Protocol):
    """The server's side of a transport; used from one thread."""

    def wait_for(self, num_nodes: int, seconds: float) -> list[str]:
        """The sorted names of the connected nodes, as soon as there are at least `num_nodes`.

        Raises:
            ConfigError: if fewer connect within so many seconds, naming those and how a node is started.
        """

    def call(self, packets: Mapping[str, bytes], *, most_bytes: Mapping[str, int], seconds: float) -> dict[str, bytes]:
        """Hand each node its packet and gather their answers; nothing that a node does raises an error.

        Args:
            packets: by the node's name. A disconnected node gets its packet when it reconnects.
            most_bytes: maximum size of each node's answer; longer ones are refused.
            seconds: timeout of the answers.

        Returns:
            The answers that arrived in this time, by the node's name.
        """

    def close(self, *, over: bool = False) -> None:
        """Close all connections; the transport cannot be used afterwards.

        Args:
            over: the training is finished, so nodes need not wait for the server to come back.
        """


def is_node_name(name: str) -> bool:
    """Whether a node may have this name, which may become the name of a file."""
    return NODE_NAME.fullmatch(name) is not None


def check_node_name(name: str, option: str) -> str:
    """Return a valid name of a node.

    Raises:
        ConfigError: naming `option` and the rule.
    """
    if not is_node_name(name):
        raise ConfigError(
            f"{option} {name[:80]!r}: no name for a node; give at most 64 letters, digits, '.', '_' or '-', "
            "the first a letter or digit"
        )
    return name


def foreign_text(value: object, most: int = 200) -> str:
    """Text of the other side, safe for a terminal or a log: its first printable characters."""
    return "".join(one for one in str(value)[:most] if one.isprintable())
