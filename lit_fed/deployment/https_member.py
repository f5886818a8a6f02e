"""What the server keeps of one node: its process, its connection, and the packet that it has to answer."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections import deque
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Member", "Posted", "RefusedError", "hang_up"]

FORMER_PROCESSES = 64


class RefusedError(Exception):
    """What a request is answered where it will not do.

    Attributes:
        status: of the answer, one of HTTP's.
        text: what is said to whoever started the node.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text)
        self.status, self.text = status, text


def hang_up(link: Any) -> None:
    """Close a connection at once, whatever is on its way."""
    if link.transport is not None:
        link.transport.abort()


@dataclass(eq=False)
class Posted:
    """A packet that a node has to answer."""

    data: bytes
    most_bytes: int
    answer: asyncio.Future[bytes]
    key: str = field(default_factory=lambda: secrets.token_hex(16))
    fetched: bool = False


@dataclass(eq=False)
class Member:
    """A node, as the server knows it.

    Attributes:
        name: of the node.
        process: the process that speaks for it.
        link: that process's connection; its `transport` is None once it is closed.
        is_new: whether that connection has asked for no work yet.
        packet: what the node has to answer; None: nothing.
        news: set whenever `process` or `packet` changes.
        missed: how long nothing has been heard of it; None: it was said that it is gone, or it has not come yet.
        complained: when the operator was last told what it does wrong.
        awaited: when the operator was last told that it is waited for.
    """

    name: str
    process: str = ""
    link: Any = None
    is_new: bool = True
    packet: Posted | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)
    former: deque[str] = field(default_factory=lambda: deque(maxlen=FORMER_PROCESSES))
    missed: float | None = None
    complained: float = -math.inf
    awaited: float = -math.inf

    @property
    def is_here(self) -> bool:
        """Whether its process has a connection."""
        return self.link is not None and self.link.transport is not None

    def check(self, process: str) -> None:
        """Refuse a process in whose place another one has come."""
        if process != self.process:
            raise RefusedError(
                409, f"another process has come for {self.name}; one process at a time may run under a name"
            )
