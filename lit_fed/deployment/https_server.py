"""The server's end of the HTTPS transport.

Nodes ask for work and wait (long poll), so only the server needs a port that others can reach. A packet stays until its
answer has come: a node that was killed and started again asks anew and gets it again. What tells that a node is gone is
its connection, which stays open while it works; the system asks after machines that fell silent. That is for the log
alone: who does not answer in time is missing, whatever the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from lit_fed.deployment.https_connections import Connections, close_all, listening
from lit_fed.deployment.https_mailbox import Mailbox
from lit_fed.deployment.https_protocol import Limits, address_of, is_loopback
from lit_fed.deployment.https_tls import tls_of_server
from lit_fed.errors import ConfigError, logged
from lit_fed.system.packages import optional_package

__all__ = ["HttpsServer", "shared_server"]

Result = TypeVar("Result")
LISTEN, TLS = "--data.dataset.listen", "--data.dataset.tls"

SECONDS_TO_DISMISS = 2.0
"""For nodes to hear that the training is over."""

_SHARED: dict[str, tuple[Any, HttpsServer]] = {}
"""The server at each address, and with which options it was made."""

SILENT = logging.Logger("lit_fed.deployment", logging.CRITICAL + 1)
"""For aiohttp, whose lines hold parts of what strangers send."""

STARTED_BY = "lit-fed client --server {address} --data.root DIR --states DIR --tls DIR"


class HttpsServer:
    """A `Transport` to nodes that run `lit-fed client`, in a thread of its own.

    Args:
        listen: HOST:PORT; port 0 is one that is free, which `address` tells.
        tls: folder with `server.pem`, `server.key` and `ca.pem`; None: plain HTTP, for this machine alone.
        nodes: names that are let in; None: all that have a certificate.
        limits: what nodes and strangers may do.
        say: takes a line for the operator.

    Attributes:
        address: HOST:PORT.
        is_open: whether nodes can still be asked.

    Raises:
        ConfigError: naming what is wrong with the address, or the folder.
    """

    def __init__(
        self,
        listen: str,
        tls: Path | None,
        nodes: Collection[str] | None = None,
        limits: Limits | None = None,
        say: Callable[[str], None] = logged,
    ) -> None:
        optional_package("aiohttp", "aiohttp>=3.13", "federation", LISTEN)
        host, port = address_of(listen, LISTEN)
        self._tls = None if tls is None else tls_of_server(tls, TLS)
        self._limits, self._listener = limits or Limits(), listening(host, port, LISTEN)
        bound, port = self._listener.getsockname()[:2]
        if self._tls is None and not is_loopback(bound):
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
        """See `Transport.wait_for`."""
        names = self._inside(self._present(num_nodes, seconds))
        if len(names) < num_nodes:
            came = f"{len(names)} ({', '.join(names)})" if names else "none"
            raise ConfigError(
                f"waited {seconds:g} s for {num_nodes} nodes, and {came} came; start the others with "
                f"`{STARTED_BY.format(address=self.address)}`, or give a smaller --data.dataset.num_nodes"
            )
        return names

    def call(self, packets: Mapping[str, bytes], *, most_bytes: Mapping[str, int], seconds: float) -> dict[str, bytes]:
        """See `Transport.call`."""
        return self._inside(self._mailbox.call(packets, most_bytes, seconds))

    @property
    def is_open(self) -> bool:
        """Whether nodes can still be asked; in a process that was forked from the server's they cannot."""
        return self._thread.is_alive()

    def close(self, *, over: bool = False) -> None:
        """See `Transport.close`."""
        if self.is_open and self._serving is not None:
            if over:
                self._inside(self._mailbox.dismiss(SECONDS_TO_DISMISS))
            self._loop.call_soon_threadsafe(self._serving.cancel)
            self._thread.join()

    def _inside(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of what runs in the event loop; an interrupt ends it, too."""
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
        from aiohttp import web

        from lit_fed.deployment.https_requests import Requests

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
            await close_all(server.connections)


def shared_server(listen: str, tls: Path | None, nodes: Collection[str] | None) -> HttpsServer:
    """The server at an address, one for all federations of this process that have the same options.

    Nodes stay connected from one fit to the next. Where options differ, the server before is closed first.

    Args:
        listen: HOST:PORT.
        tls: folder of certificates.
        nodes: names that are let in.
    """
    options, (before, server) = (tls, nodes), _SHARED.get(listen, (None, None))
    if server is not None and server.is_open and not listen.endswith(":0"):
        if before == options:
            return server
        server.close()
    made = HttpsServer(listen, tls, nodes)
    _SHARED[listen] = options, made
    return made
