"""The server's end of the HTTPS transport.

Nodes ask for work and wait (long poll), so only the server needs a reachable port. A packet stays until it is answered:
a node that was killed and restarted asks again and gets it again. An open connection shows that a node is present, also
while it works; keep-alive probes detect machines that fell silent. Presence is only logged: a node whose answer is late
counts as missing, whatever the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lit_fed import __version__
from lit_fed.deployment import https_protocol as http
from lit_fed.deployment.https_mailbox import Mailbox, Member, Posted, RefusedError, hang_up
from lit_fed.deployment.transport import is_node_name
from lit_fed.errors import ConfigError, logged
from lit_fed.system.packages import imported_later, optional_package

__all__ = ["HttpsServer", "shared_server"]

if TYPE_CHECKING:
    from aiohttp import web
else:
    web = imported_later("aiohttp.web")  # of the extra `federation`

Result = TypeVar("Result")
LISTEN, TLS = "--data.dataset.listen", "--data.dataset.tls"

HANDSHAKE_SECONDS = 10.0
SHUTDOWN_SECONDS = 1.0
"""For a peer to agree that a connection is closed; one that never does holds no descriptor for longer."""

SECONDS_BETWEEN_LOOKS = 0.25
MOST_REASONS = 100

LONGEST_PROCESS = 64
SOON = 30
"""Days before a certificate expires from which the operator is warned."""

SPARE = 64
"""File descriptors that are kept for the process's own files."""

SECONDS_TO_DISMISS = 2.0
"""For nodes to hear that the training is over."""

_SHARED: dict[str, tuple[Any, HttpsServer]] = {}
"""The server at each address, and the options that it was made with."""

SILENT = logging.Logger("lit_fed.deployment", logging.CRITICAL + 1)
"""For aiohttp, whose lines would repeat parts of what strangers send."""

STARTED_BY = "lit-fed client --server {address} --config FILE --data.root DIR --states DIR --tls DIR"


class HttpsServer:
    """A `Transport` to nodes that run `lit-fed client`, in a thread of its own.

    Args:
        listen: see `Federation`, as are the two that follow; with port 0 the system chooses one, see `address`.
        tls: folder of certificates.
        nodes: names of nodes that may connect.
        limits: limits for nodes and strangers.
        say: takes a line for the operator.

    Attributes:
        address: HOST:PORT.
        is_open: whether nodes can still be asked.

    Raises:
        ConfigError: naming what is wrong with the address, or the folder.
    """

    def __init__(
        self, listen: str, tls: Path | None, nodes: Collection[str] | None = None, limits: http.Limits | None = None,
        say: Callable[[str], None] = logged,
    ) -> None:  # fmt: skip
        optional_package("aiohttp", "aiohttp>=3.14.5,<4", "federation", LISTEN)
        host, port = http.address_of(listen, LISTEN)
        self._tls = None if tls is None else http.tls_context("server", tls, TLS)
        self._limits, self._listener = limits or http.Limits(), _listening(host, port)
        bound, port = self._listener.getsockname()[:2]
        if self._tls is None and not http.is_loopback(bound):
            self._listener.close()
            raise ConfigError(
                f"{LISTEN} {listen}: other machines could reach it, and there are no certificates; give {TLS} DIR, "
                "which `lit-fed certificates` writes, or listen on 127.0.0.1"
            )
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._mailbox = Mailbox(None if nodes is None else frozenset(nodes), say)
        self._loop: asyncio.AbstractEventLoop
        self._serving: asyncio.Task | None = None
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name="lit_fed.deployment", daemon=True)
        self._thread.start()
        started.wait()

    def wait_for(self, num_nodes: int, seconds: float) -> list[str]:
        names = self._inside(self._present(num_nodes, seconds))
        if len(names) < num_nodes:
            came = f"{len(names)} ({', '.join(names)})" if names else "none"
            raise ConfigError(
                f"waited {seconds:g} s for {num_nodes} nodes, and {came} came; start the others with "
                f"`{STARTED_BY.format(address=self.address)}`, or give a smaller --data.dataset.num_nodes"
            )
        return names

    def call(self, packets: Mapping[str, bytes], *, most_bytes: Mapping[str, int], seconds: float) -> dict[str, bytes]:
        return self._inside(self._mailbox.call(packets, most_bytes, seconds))

    @property
    def is_open(self) -> bool:
        """Whether nodes can still be asked; False in a process that was forked from the server's."""
        return self._thread.is_alive()

    def close(self, *, over: bool = False) -> None:
        if self.is_open and self._serving is not None:
            if over:
                self._inside(self._mailbox.dismiss(SECONDS_TO_DISMISS))
            self._loop.call_soon_threadsafe(self._serving.cancel)
            self._thread.join()

    def _inside(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the event loop; an interrupt cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()

    async def _present(self, num_nodes: int, seconds: float) -> list[str]:
        end, said = self._loop.time() + seconds, None
        while True:
            names = sorted(one.name for one in self._mailbox.members.values() if one.is_here)
            if len(names) >= num_nodes or self._loop.time() > end:
                return names
            if names != said:
                missing = ", ".join(sorted(set(self._mailbox.allowed or ()) - set(names)))
                more = f" ({missing})" if missing else ""
                self._mailbox.say(f"waiting at {self.address} for {num_nodes - len(names)} of {num_nodes} nodes{more}")
                said = names
            await asyncio.sleep(0.02)

    def _run(self, started: threading.Event) -> None:
        try:
            with contextlib.suppress(asyncio.CancelledError):
                asyncio.run(self._serve(started))
        finally:
            self._listener.close()
            started.set()

    async def _serve(self, started: threading.Event) -> None:
        self._loop, self._serving = asyncio.get_running_loop(), asyncio.current_task()
        connections = Connections(self._listener, self._tls, self._limits, self._mailbox.say)
        requests = Requests(self._mailbox, connections, self._limits, with_tls=self._tls is not None)
        server = web.Server(
            requests.handle, handler_cancellation=True, access_log=None, logger=SILENT, auto_decompress=False,
            lingering_time=1.0,
        )  # fmt: skip
        started.set()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(connections.accept(server))
                group.create_task(connections.look_around(self._mailbox.is_at_work, self._mailbox.look_around))
        finally:
            for one in server.connections:
                hang_up(one)
            while any(one.transport is not None for one in server.connections):
                await asyncio.sleep(0)


def shared_server(listen: str, tls: Path | None, nodes: Collection[str] | None) -> HttpsServer:
    """The server at an address, shared by all federations of this process that have the same options.

    Nodes stay connected from one fit to the next. If options differ, the previous server is closed first. Arguments as
    of `HttpsServer`.
    """
    options, (before, server) = (tls, nodes), _SHARED.get(listen, (None, None))
    if server is not None and server.is_open and not listen.endswith(":0"):
        if before == options:
            return server
        server.close()
    made = HttpsServer(listen, tls, nodes)
    _SHARED[listen] = options, made
    return made


def _listening(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        ConfigError: with the system's reason.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server((str(address[0]), port), family=family, backlog=128)
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]
        raise ConfigError(f"{LISTEN} {host}:{port}: {reason}; give another HOST:PORT of this machine") from error
    listener.setblocking(False)
    return listener


class Connections:
    """Accepts connections, limits those without a request ("strangers"), and closes idle ones."""

    def __init__(
        self, listener: socket.socket, tls: ssl.SSLContext | None, limits: http.Limits, say: Callable[[str], None]
    ) -> None:
        self.listener, self.tls, self.limits, self.say = listener, tls, limits, say
        self._strangers: dict[Any, asyncio.Future[None]] = {}  # connections before their first request
        self._silent_since: dict[Any, float] = {}  # connections between two requests
        self._hosts: Counter[str] = Counter()  # strangers by address
        self._tasks: set[asyncio.Task] = set()
        self._told: set[str] = set()

    async def accept(self, make: Callable[[], Any]) -> None:
        """Accept connections until cancelled; `make` gives the protocol of each."""
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
            http.keep_alive(connection)
            connection.setblocking(False)
            await loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=self.tls, ssl_handshake_timeout=limit,
                ssl_shutdown_timeout=SHUTDOWN_SECONDS if self.tls else None,
            )  # fmt: skip
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
            self._hosts += Counter()  # drops addresses with a count of 0

    def _has_room(self, connection: socket.socket, host: str) -> bool:
        """Whether a connection may stay. A new descriptor has the lowest free number, so it tells how many are open."""
        most = os.sysconf("SC_OPEN_MAX") if hasattr(os, "sysconf") else -1
        if 0 < most - SPARE <= connection.fileno():
            self._refuse(f"refused connections: {most} files may be open (ulimit -n), of which {SPARE} are kept free")
            return False
        if self._hosts[host] >= self.limits.per_address:
            self._refuse(f"refused connections from {host}: {self.limits.per_address} are open without a request")
            return False
        return True

    def _refuse(self, line: str) -> None:
        """Report a refusal, each reason once."""
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
        """Close idle connections until cancelled, and call `also` with the seconds since its last call."""
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


class Requests:
    """Answers requests; none of their contents gets into an error or a log."""

    def __init__(self, mailbox: Mailbox, connections: Connections, limits: http.Limits, *, with_tls: bool) -> None:
        self.mailbox, self.connections, self.limits, self.with_tls = mailbox, connections, limits, with_tls

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request."""
        self.connections.begin(request.protocol)
        try:
            return await self._answer(request)
        except RefusedError as refused:
            response = web.Response(status=refused.status, text=refused.text, headers=http.version_headers())
            if refused.status != http.OVER or request.can_read_body:  # a node without a body may ask on
                response.force_close()
            return response
        except (TimeoutError, ConnectionError, web.RequestPayloadError):  # it stalled or broke off
            hang_up(request.protocol)
            raise ConnectionResetError from None
        finally:
            self.connections.end(request.protocol)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        asks_for_work = request.method == "GET" and request.path_qs == http.WORK
        answers = request.method in ("GET", "POST") and request.path_qs.startswith(http.ANSWERS)
        if not (asks_for_work or answers):
            raise RefusedError(404, "there is nothing here")
        member, process = self._sender(request)
        if request.method == "GET" and request.can_read_body:
            raise RefusedError(400, "a question has no body")
        if asks_for_work:
            packet = await self.mailbox.next_packet(member, process, self.limits.poll_seconds)
            return web.Response(status=204) if packet is None else await self._send(request, packet)
        packet = member.packet
        if packet is None or packet.key != request.path_qs.removeprefix(http.ANSWERS):
            raise RefusedError(http.OVER, "this answer is no longer expected")
        if request.method == "POST":
            body = await self._read(
                request, member, packet, lambda: member.process == process and member.packet is packet
            )
            member.packet = None
            packet.answer.set_result(body)
        return web.Response(status=204)

    def _sender(self, request: web.BaseRequest) -> tuple[Member, str]:
        """The node that sent a request, and its process."""
        own = http.version_headers()
        if any(request.headers.get(key) != value for key, value in own.items()):
            raise RefusedError(426, f"this server runs lit_fed {__version__}; install the same version at the node")
        names, note = request.headers.getall(http.NAME, []), ""
        if self.with_tls:
            certificate = request.transport.get_extra_info("peercert")
            names = [value for part in certificate["subject"] for key, value in part if key == "commonName"]
            note = _end_of(certificate)
        process = request.headers.get(http.PROCESS, "")
        if len(names) != 1 or not is_node_name(names[0]):
            raise RefusedError(403, "there is no name of a node in the certificate, or the header in its place")
        if not process or len(process) > LONGEST_PROCESS:
            raise RefusedError(400, "the process has no name")
        return self.mailbox.admit(names[0], process, request.protocol, note), process

    async def _send(self, request: web.BaseRequest, packet: Posted) -> web.StreamResponse:
        most = min(packet.most_bytes, self.limits.most_bytes)
        response = web.StreamResponse(headers={http.PACKET: packet.key, http.MOST_BYTES: str(most)})
        response.content_type, response.content_length = "application/octet-stream", len(packet.data)
        await response.prepare(request)
        for piece in http.pieces(packet.data):
            async with asyncio.timeout(self.limits.stall_seconds):
                await response.write(piece)
        return response

    async def _read(
        self, request: web.BaseRequest, member: Member, packet: Posted, wanted: Callable[[], bool]
    ) -> bytes:
        """The body, read while it is still wanted."""
        most = min(packet.most_bytes, self.limits.most_bytes)
        if "Content-Encoding" in request.headers:
            raise RefusedError(415, "answers are not compressed")
        if request.content_length is None or "Transfer-Encoding" in request.headers:
            raise RefusedError(411, "the length of the answer is missing")
        if request.content_length > most:
            line = f"refused an answer of {member.name}: {request.content_length} bytes, where {most} are the most"
            self.mailbox.complain(member, line)
            raise RefusedError(413, f"the answer has {request.content_length} bytes; {most} are the most")
        parts, length, now = [], 0, asyncio.get_running_loop().time
        end = now() + self.limits.stall_seconds + request.content_length / self.limits.least_speed
        while length < request.content_length:
            async with asyncio.timeout_at(min(now() + self.limits.stall_seconds, end)):
                parts.append(await request.content.readany())
            if not parts[-1]:
                raise ConnectionResetError
            if not wanted():
                raise RefusedError(http.OVER, "this answer is no longer expected")
            length += len(parts[-1])
        if not wanted():
            raise RefusedError(http.OVER, "this answer is no longer expected")
        return b"".join(parts)


def _end_of(certificate: dict[str, Any]) -> str:
    """A warning if a certificate expires soon, else ""."""
    days = (ssl.cert_time_to_seconds(certificate["notAfter"]) - time.time()) / 86_400
    return f"; its certificate ends in {days:.0f} days" if days < SOON else ""
