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

MOST_CHANGES, CHANGES_SECONDS = 20, 60.0
"""How many processes may come for a node within so many seconds."""


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
        leaving: the connection of the process before, which is told and then closed.
        changes: when processes came for it, the last ones.
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
    leaving: Any = None
    changes: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_CHANGES))
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

    def change_process(self, process: str, now: float) -> None:
        """Let another process speak for the node.

        Raises:
            RefusedError: if too many came lately.
        """
        if len(self.changes) == MOST_CHANGES and now - self.changes[0] < CHANGES_SECONDS:
            raise RefusedError(503, f"too many processes came for {self.name}; wait {CHANGES_SECONDS:g} s")
        self.changes.append(now)
        self.former.append(self.process)
        self.process = process
        self.news.set()  # its other process is told

    def replace_link(self, link: Any, *, is_told: bool) -> Any:
        """Take another connection; at most one more stays open. Returns the one before where it has to be closed soon.

        Args:
            link: the new connection.
            is_told: the one before is of another process, which is still told so.
        """
        before, self.link, self.is_new = self.link, link, True
        if before is None or not is_told:
            if before is not None:
                hang_up(before)
            return None
        if self.leaving is not None:
            hang_up(self.leaving)
        self.leaving = before
        return before
