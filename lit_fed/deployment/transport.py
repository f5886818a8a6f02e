"""What moves bytes between a server and its nodes, whatever they mean."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

from lit_fed.errors import ConfigError

__all__ = ["Transport", "check_node_name", "foreign_text", "is_node_name"]

NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Transport(Protocol):
    """The server's side of an engine; used from one thread."""

    def wait_for(self, num_nodes: int, seconds: float) -> list[str]:
        """The sorted names of the nodes that are there, once these are at least so many.

        Args:
            num_nodes: how many have to come.
            seconds: how long to wait.

        Raises:
            ConfigError: if fewer came in that time, naming those and how a node is started.
        """

    def call(self, packets: Mapping[str, bytes], *, most_bytes: Mapping[str, int], seconds: float) -> dict[str, bytes]:
        """Hand each node its packet and gather their answers; nothing that a node does raises an error.

        Args:
            packets: what each node gets, by its name. One that is away gets its packet when it comes.
            most_bytes: the longest answer that each node may give; longer ones are refused.
            seconds: how long to wait for answers.

        Returns:
            The answers that came in this time, by the node's name; who is missing did not answer.
        """

    def close(self, *, over: bool = False) -> None:
        """End all connections; nothing can be called after it.

        Args:
            over: the training is finished, so nodes need not wait for the server to come back.
        """


def is_node_name(name: str) -> bool:
    """Whether a node may have this name, which may become that of a file."""
    return NODE_NAME.fullmatch(name) is not None


def check_node_name(name: str, option: str) -> str:
    """A name that a node may have.

    Args:
        name: as it was given.
        option: where, for the message.

    Raises:
        ConfigError: naming it and what a name may be.
    """
    if not is_node_name(name):
        raise ConfigError(
            f"{option} {name[:80]!r}: no name for a node; give at most 64 letters, digits, '.', '_' or '-', "
            "the first a letter or digit"
        )
    return name


def foreign_text(value: object, most: int = 200) -> str:
    """Text of the other side for a terminal or a log: printable letters only, and not too many."""
    return "".join(one for one in str(value)[:most] if one.isprintable())
