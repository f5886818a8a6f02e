"""The nodes as the HTTPS server knows them: process, connection, and the packet that each has to answer."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from lit_fed.deployment.https_protocol import OVER

__all__ = ["Mailbox", "Member", "Posted", "RefusedError", "hang_up"]

FORMER_PROCESSES = 64

MOST_CHANGES, CHANGES_SECONDS = 20, 60.0
"""Maximum number of processes that may appear for one node within so many seconds."""

MOST_NODES = 10_000
SECONDS_BETWEEN_COMPLAINTS = 10.0
SECONDS_TO_LEAVE = 1.0
"""Until the connection of a replaced process is closed; by then the process has been sent the reason."""

SECONDS_UNTIL_GONE = 1.0
"""A node that only reconnects is back by then."""


class RefusedError(Exception):
    """A request is refused, with this HTTP status and a line for the operator of the node."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text)
        self.status, self.text = status, text


def hang_up(link: Any) -> None:
    """Close a connection at once; unsent data is dropped."""
    if link is not None and link.transport is not None:
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
    """A node, as the server knows it."""

    name: str
    process: str = ""  # the process that speaks for it
    link: Any = None  # that process's connection; its `transport` is None once it is closed
    leaving: Any = None  # connection of the previous process, which is sent the reason and then closed
    changes: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_CHANGES))  # times of the latest processes
    is_new: bool = True  # whether the connection has not asked for work yet
    packet: Posted | None = None  # what the node has to answer
    news: asyncio.Event = field(default_factory=asyncio.Event)  # set whenever `process` or `packet` changes
    former: deque[str] = field(default_factory=lambda: deque(maxlen=FORMER_PROCESSES))
    missed: float | None = None  # seconds without a connection; None: not come yet, or reported as gone
    complained: float = -math.inf  # time of the latest report of a misbehaviour
    awaited: float = -math.inf  # time of the latest line that says that the server waits for it

    @property
    def is_here(self) -> bool:
        """Whether its process is connected."""
        return self.link is not None and self.link.transport is not None

    def check(self, process: str) -> None:
        """Refuse a process that was replaced by another one."""
        if process != self.process:
            raise RefusedError(
                409, f"another process has come for {self.name}; one process at a time may run under a name"
            )

    def change_process(self, process: str, now: float) -> None:
        """Let another process speak for the node; `RefusedError` if there were too many changes recently."""
        if len(self.changes) == MOST_CHANGES and now - self.changes[0] < CHANGES_SECONDS:
            raise RefusedError(503, f"too many processes came for {self.name}; wait {CHANGES_SECONDS:g} s")
        self.changes.append(now)
        self.former.append(self.process)
        self.process = process
        self.news.set()  # wakes the previous process's request, which is then refused

    def replace_link(self, link: Any, *, is_told: bool) -> Any:
        """Take a new connection; `is_told`: the old one is of another process, which is still sent the reason.

        At most one old connection stays open; it is returned if it is to be closed soon.
        """
        before, self.link, self.is_new = self.link, link, True
        if not is_told:
            hang_up(before)
            return None
        hang_up(self.leaving)
        self.leaving = before
        return before


class Mailbox:
    """Packets for nodes and their answers; used inside the server's event loop only."""

    def __init__(self, allowed: Collection[str] | None, say: Callable[[str], None]) -> None:
        self.allowed, self.say = allowed, say
        self.members: dict[str, Member] = {}
        self._over = False

    def admit(self, name: str, process: str, link: Any, note: str = "") -> Member:
        """The node of a request. The latest process of a node replaces the others, and so does its latest connection.

        Raises:
            RefusedError: if the name is not on the list, or the process was replaced.
        """
        if name not in self.allowed if self.allowed is not None else self._is_full(name):
            raise RefusedError(
                403, f"the server does not take in {name}; its operator's list says which nodes may come"
            )
        member = self.members.setdefault(name, Member(name))
        if process in member.former:
            member.check(process)
        is_other, loop = process != member.process, asyncio.get_running_loop()
        if is_other:
            was = member.process
            member.change_process(process, loop.time())
            if was and member.is_here:
                self.complain(member, f"{name} was started twice; the process that came last goes on")
        if member.link is not link and (before := member.replace_link(link, is_told=is_other)) is not None:
            loop.call_later(SECONDS_TO_LEAVE, hang_up, before)
        if member.missed is None:
            self.say(f"{name} is here{note}")
        member.missed = 0.0
        return member

    def complain(self, member: Member, line: str) -> None:
        """Report a node's misbehaviour, at a limited rate."""
        now = asyncio.get_running_loop().time()
        if now - member.complained > SECONDS_BETWEEN_COMPLAINTS:
            member.complained = now
            self.say(line)

    def _is_full(self, name: str) -> bool:
        return name not in self.members and len(self.members) >= MOST_NODES

    async def next_packet(self, member: Member, process: str, seconds: float) -> Posted | None:
        """Wait for a packet that the node has to answer; None: there is none after so many seconds.

        The first request of a connection is answered at once, which tells the node that it is admitted.

        Raises:
            RefusedError: as soon as the process is replaced, or the training is over.
        """
        end = asyncio.get_running_loop().time() + (0.0 if member.is_new else seconds)
        member.is_new = False
        while member.packet is None:
            member.check(process)
            if self._over:
                raise RefusedError(OVER, "the training is over")
            member.news.clear()
            try:
                async with asyncio.timeout_at(end):
                    await member.news.wait()
            except TimeoutError:
                return None
        member.check(process)
        member.packet.fetched = True
        return member.packet

    def is_at_work(self, link: Any) -> bool:
        """Whether a connection's node has fetched a packet and not answered it."""
        return any(one.link is link and one.packet is not None and one.packet.fetched for one in self.members.values())

    def look_around(self, seconds: float) -> None:
        """Report nodes that are gone; to be called every so many seconds."""
        for one in self.members.values():
            one.missed = 0.0 if one.is_here else None if one.missed is None else one.missed + seconds
            if one.missed is not None and one.missed > SECONDS_UNTIL_GONE:
                still = " before it answered; its question stays open" if one.packet is not None else ""
                self.say(f"{one.name} disconnected{still}")
                one.missed = None

    async def dismiss(self, seconds: float) -> None:
        """Tell connected nodes that the training is over; wait at most so many seconds until they have disconnected."""
        loop = asyncio.get_running_loop()
        self._over, end = True, loop.time() + seconds
        for one in self.members.values():
            one.news.set()
        while any(one.is_here for one in self.members.values()) and loop.time() < end:
            await asyncio.sleep(0.02)

    async def call(
        self, packets: Mapping[str, bytes], most_bytes: Mapping[str, int], seconds: float
    ) -> dict[str, bytes]:
        """As `Transport.call`; later answers are refused."""
        loop, posted = asyncio.get_running_loop(), {}
        for name, data in packets.items():
            member = self.members.setdefault(name, Member(name))
            posted[name] = member.packet = Posted(data, most_bytes[name], loop.create_future())
            member.news.set()
            if not member.is_here and loop.time() - member.awaited > SECONDS_BETWEEN_COMPLAINTS:
                member.awaited = loop.time()
                self.say(f"waiting for {name}, which is not connected")
        try:
            if posted:
                await asyncio.wait([one.answer for one in posted.values()], timeout=seconds)
        finally:
            for name, one in posted.items():
                if self.members[name].packet is one:
                    self.members[name].packet = None
        return {name: one.answer.result() for name, one in posted.items() if one.answer.done()}
