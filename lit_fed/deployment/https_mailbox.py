"""Packets for nodes, and their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any

from lit_fed.deployment.https_member import Member, Posted, RefusedError, hang_up
from lit_fed.deployment.https_protocol import OVER

__all__ = ["Mailbox"]

MOST_NODES = 10_000
SECONDS_BETWEEN_COMPLAINTS = 10.0
SECONDS_TO_LEAVE = 1.0
"""Until a connection is closed whose process was told that another one has come."""

SECONDS_UNTIL_GONE = 1.0
"""A node that only opens a new connection is back by then."""


class Mailbox:
    """Packets for nodes and their answers; used inside the server's event loop alone.

    Args:
        allowed: names of the nodes that are let in; None: all.
        say: takes a line for the operator.
    """

    def __init__(self, allowed: Collection[str] | None, say: Callable[[str], None]) -> None:
        self.allowed, self.say = allowed, say
        self.members: dict[str, Member] = {}
        self._over = False

    def admit(self, name: str, process: str, link: Any, note: str = "") -> Member:
        """The node of a request. Of two processes the one that came last goes on, and so does its last connection.

        Args:
            name: of the node.
            process: that speaks for it.
            link: its connection.
            note: what else there is to say when it comes.

        Raises:
            RefusedError: if the name is not on the list, or another process has come since.
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
        """Say what a node does wrong, now and then: it may do so all the time."""
        now = asyncio.get_running_loop().time()
        if now - member.complained > SECONDS_BETWEEN_COMPLAINTS:
            member.complained = now
            self.say(line)

    def _is_full(self, name: str) -> bool:
        return name not in self.members and len(self.members) >= MOST_NODES

    async def next_packet(self, member: Member, process: str, seconds: float) -> Posted | None:
        """What a node has to answer, as soon as there is something; None: there is nothing yet.

        On a new connection nobody waits, so that the node hears at once that it is let in.

        Raises:
            RefusedError: as soon as another process has come for this node, or the training is over.
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
        """Say who is gone; to be called every so many seconds."""
        for one in self.members.values():
            one.missed = 0.0 if one.is_here else None if one.missed is None else one.missed + seconds
            if one.missed is not None and one.missed > SECONDS_UNTIL_GONE:
                still = " before it answered; its question stays open" if one.packet is not None else ""
                self.say(f"{one.name} disconnected{still}")
                one.missed = None

    async def dismiss(self, seconds: float) -> None:
        """Tell the nodes that are here that the training is over, and wait until they have gone.

        Args:
            seconds: how long at most.
        """
        loop = asyncio.get_running_loop()
        self._over, end = True, loop.time() + seconds
        for one in self.members.values():
            one.news.set()
        while any(one.is_here for one in self.members.values()) and loop.time() < end:
            await asyncio.sleep(0.02)

    async def call(
        self, packets: Mapping[str, bytes], most_bytes: Mapping[str, int], seconds: float
    ) -> dict[str, bytes]:
        """See `Transport.call`; nobody may answer afterwards."""
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
