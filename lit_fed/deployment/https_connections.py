"""Connections of nodes and of strangers: how many there may be, and for how long they may say nothing."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from lit_fed.deployment.https_member import hang_up
from lit_fed.deployment.https_protocol import Limits, keep_alive
from lit_fed.errors import ConfigError

__all__ = ["Connections", "close_all", "listening"]

HANDSHAKE_SECONDS = 10.0
SECONDS_BETWEEN_LOOKS = 0.25
MOST_REASONS = 100

SPARE = 64
"""Descriptors that are left for the process's own files."""


def listening(host: str, port: int, option: str) -> socket.socket:
    """A socket that listens.

    Args:
        host: a name or an address of this machine.
        port: 0: one that is free.
        option: where both were given, for the message.

    Raises:
        ConfigError: saying why the system refuses it.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server((str(address[0]), port), family=family, backlog=128)
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]
        raise ConfigError(f"{option} {host}:{port}: {reason}; give another HOST:PORT of this machine") from error
    listener.setblocking(False)
    return listener


class Connections:
    """Takes in connections, and closes those that are idle.

    Args:
        listener: a listening socket.
        tls: the server's certificate, and whose nodes' certificates it takes; None: plain HTTP.
        limits: what a stranger may do.
        say: takes a line for the operator.
    """

    def __init__(
        self, listener: socket.socket, tls: ssl.SSLContext | None, limits: Limits, say: Callable[[str], None]
    ) -> None:
        self.listener, self.tls, self.limits, self.say = listener, tls, limits, say
        self._strangers: dict[Any, asyncio.Future[None]] = {}  # connections before their first request
        self._silent_since: dict[Any, float] = {}  # connections between two requests
        self._hosts: Counter[str] = Counter()  # strangers by address
        self._tasks: set[asyncio.Task] = set()
        self._told: set[str] = set()

    async def accept(self, make: Callable[[], Any]) -> None:
        """Take in connections for ever.

        Args:
            make: gives a connection's protocol.
        """
        loop, places = asyncio.get_running_loop(), asyncio.Semaphore(self.limits.handshakes)
        while True:
            await places.acquire()
            try:
                connection, address = await loop.sock_accept(self.listener)
            except OSError:  # too many open files: some will be closed
                places.release()
                await asyncio.sleep(1.0)
                continue
            if not self._has_room(connection, address[0]):
                connection.close()
                places.release()
                await asyncio.sleep(0)
                continue
            self._hosts[address[0]] += 1
            task = loop.create_task(self._welcome(make(), connection, address[0]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _: places.release())

    async def _welcome(self, protocol: Any, connection: socket.socket, host: str) -> None:
        """Shake hands and wait for the first request."""
        loop = asyncio.get_running_loop()
        asked = self._strangers[protocol] = loop.create_future()
        limit = HANDSHAKE_SECONDS if self.tls else None
        try:
            keep_alive(connection)
            connection.setblocking(False)
            await loop.connect_accepted_socket(lambda: protocol, connection, ssl=self.tls, ssl_handshake_timeout=limit)
            await asyncio.wait([asked], timeout=self.limits.idle_seconds)
            if not asked.done():
                hang_up(protocol)
        except OSError as error:  # also those of TLS
            connection.close()
            if isinstance(error, ssl.SSLError):
                self._refuse(f"refused a connection from {host}: {error.reason or 'no TLS'}")
        finally:
            self._strangers.pop(protocol, None)
            self._hosts[host] -= 1
            self._hosts += Counter()  # without addresses of nobody

    def _has_room(self, connection: socket.socket, host: str) -> bool:
        """Whether a connection may stay. A new descriptor has the lowest free number, which says how many are open."""
        most = os.sysconf("SC_OPEN_MAX") if hasattr(os, "sysconf") else -1
        if 0 < most - SPARE <= connection.fileno():
            self._refuse(f"refused connections: {most} files may be open (ulimit -n), of which {SPARE} are kept free")
            return False
        if self._hosts[host] >= self.limits.per_address:
            self._refuse(f"refused connections from {host}: {self.limits.per_address} are open without a request")
            return False
        return True

    def _refuse(self, line: str) -> None:
        """Say why somebody was refused, once."""
        if line not in self._told and len(self._told) < MOST_REASONS:
            self._told.add(line)
            self.say(line)

    def begin(self, protocol: Any) -> None:
        """A request has come."""
        asked = self._strangers.get(protocol)
        if asked is not None and not asked.done():
            asked.set_result(None)
        self._silent_since.pop(protocol, None)

    def end(self, protocol: Any) -> None:
        """A request is answered."""
        self._silent_since[protocol] = asyncio.get_running_loop().time()

    async def look_around(self, may_be_silent: Callable[[Any], bool], also: Callable[[float], None]) -> None:
        """Close idle connections for ever.

        Args:
            may_be_silent: whether a connection may stay without a request.
            also: what else is to be looked at, called with the seconds since it was called before.
        """
        while True:
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
            now = asyncio.get_running_loop().time()
            for protocol, since in list(self._silent_since.items()):
                late = now - since > self.limits.idle_seconds and not may_be_silent(protocol)
                if late:
                    hang_up(protocol)
                if late or protocol.transport is None:
                    del self._silent_since[protocol]
            also(SECONDS_BETWEEN_LOOKS)


async def close_all(protocols: Collection[Any]) -> None:
    """Close connections at once."""
    for one in protocols:
        hang_up(one)
    while any(one.transport is not None for one in protocols):
        await asyncio.sleep(0)
