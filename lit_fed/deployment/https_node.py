"""A node's end of the HTTPS transport, with the standard library alone, so that a node starts fast.

A node keeps one connection open while it works, which tells the server that it is present. If the connection breaks,
the node reconnects and repeats its request; the server recognises packets by their ids.
"""

from __future__ import annotations

import contextlib
import http.client
import secrets
import ssl
import time
from collections.abc import Callable
from pathlib import Path

from lit_fed.deployment import https_protocol as protocol
from lit_fed.deployment.https_protocol import Limits, Reply
from lit_fed.deployment.transport import check_node_name, foreign_text
from lit_fed.errors import ConfigError

__all__ = ["AwayError", "Link", "run_node"]

SERVER, TLS, NEVER, SECONDS = "--server", "--tls", -1.0, Limits.poll_seconds + 15.0
PAUSES, NEAR = (0.5, 30.0), 2.0
"""Seconds before the first and before a late attempt to reconnect, and before a late one on the same machine."""

LARGE = 2**20
"""Bytes of an answer above which the node first asks whether the answer is still awaited."""

NOT_TRUSTED = ("VERIFY_FAILED", "CERTIFICATE_REQUIRED", "UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_EXPIRED")
"""Parts of OpenSSL's reasons for which a retry is useless."""

MOST_HANG_UPS = 3
"""Consecutive disconnects after the handshake, after which the certificate counts as refused.

In TLS 1.3 the server checks the node's certificate after the handshake is complete on the node's side.
"""

SECONDS_BETWEEN_QUESTIONS = 0.02
"""Pause between requests for work, so that a server that does not hold them open cannot keep the processor busy."""


class AwayError(ConfigError):
    """The server was away for longer than the node's patience."""


class Link:
    """A node's connection to the server; waits for one that is away.

    Args:
        server: HOST:PORT.
        tls: folder with `node.pem`, `node.key` and `ca.pem`; None: plain HTTP to a server on this machine.
        name: name of this node, if no certificate names it.
        patience: seconds without a server after which the node ends.
        say: takes a line for the operator.

    Raises:
        ConfigError: naming an invalid argument.
    """

    def __init__(
        self, server: str, tls: Path | None, name: str | None, patience: float, say: Callable[[str], None]
    ) -> None:
        host, port = protocol.address_of(server, SERVER)
        self._server, self._patience, self._say = server, patience, say
        self._away_since: float | None = NEVER
        self._pause, self._hung_up, self._has_tls = PAUSES[0], 0, tls is not None
        self._longest = min(NEAR, PAUSES[1]) if protocol.is_loopback(host) else PAUSES[1]
        self._headers = {**protocol.version_headers(), protocol.PROCESS: secrets.token_hex(16)}
        self._connection: http.client.HTTPConnection
        if tls is not None:
            context = protocol.tls_context("node", tls, TLS)
            self._connection = http.client.HTTPSConnection(host, port, timeout=SECONDS, context=context)
        elif not protocol.is_loopback(host):
            raise ConfigError(f"{SERVER} {server} is another machine; give {TLS} DIR, with this node's certificate")
        elif name is None:
            raise ConfigError(f"neither {TLS} nor --name is given; give {TLS} DIR or, on one machine, --name NAME")
        else:
            self._headers[protocol.NAME] = check_node_name(name, "--name")
            self._connection = http.client.HTTPConnection(host, port, timeout=SECONDS)

    def close(self) -> None:
        """Close the connection; the next request reopens it."""
        self._connection.close()

    def answer(self, packet: Reply, answer: bytes) -> None:
        """Send an answer, if it is still awaited.

        Raises:
            ConfigError: if it is longer than the server accepts; see also `ask`.
        """
        if len(answer) > packet.most_bytes:
            raise ConfigError(f"{SERVER} {self._server} takes {packet.most_bytes} bytes; an answer has {len(answer)}")
        path, done = protocol.ANSWERS + packet.key, False
        while not done:
            wanted = len(answer) <= LARGE or self.ask("GET", path).status == 204
            done = not wanted or self._try("POST", path, answer) is not None

    def ask(self, method: str, path: str) -> Reply:
        """The server's reply, waiting for a server that is away.

        Raises:
            ConfigError: if it refuses this node, cannot be trusted, or was away for too long.
        """
        while (reply := self._try(method, path)) is None:
            pass
        return reply

    def _try(self, method: str, path: str, body: bytes | None = None) -> Reply | None:
        """One attempt; None, after a pause, if the server is away."""
        try:
            reply = self._once(method, path, body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            self._wait(error)
            return None
        if reply.status in protocol.REFUSALS:
            raise ConfigError(f"{SERVER} {self._server} refuses this node: {reply.text}")
        if self._away_since is not None:
            self._say(f"connected to {self._server}")
        self._away_since, self._pause = None, PAUSES[0]
        return reply

    def _once(self, method: str, path: str, body: bytes | None) -> Reply:
        is_closed = self._connection.sock is None
        if is_closed:
            self._connection.connect()
            protocol.keep_alive(self._connection.sock)
        length = {"Content-Length": str(len(body))} if body else {}
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the server may have replied before
                self._connection.request(method, path, body and protocol.pieces(body), self._headers | length)
            with contextlib.closing(self._connection.getresponse()) as response:
                reply = Reply(response)
        except ConnectionError:
            self._hung_up += 1
            raise
        if reply.status >= 500:
            raise http.client.HTTPException(f"status {reply.status} {reply.text}".rstrip())
        self._hung_up = 0
        return reply

    def _wait(self, error: Exception) -> None:
        """Pause after an error; raise it if a retry is useless or the patience is over."""
        reason = foreign_text(getattr(error, "reason", None) or getattr(error, "strerror", None) or error)
        untrusted = isinstance(error, ssl.SSLError) and any(one in reason for one in NOT_TRUSTED)
        if untrusted or (self._has_tls and self._hung_up >= MOST_HANG_UPS):
            why = (getattr(error, "verify_message", None) or reason).rstrip(".")
            raise ConfigError(
                f"{SERVER} {self._server}: certificates do not fit ({why}); {TLS} has to be of the server's CA, and "
                "both certificates good today, the server's for this host"
            ) from error
        now = time.monotonic()
        if self._away_since in (None, NEVER):
            self._away_since = now
            self._say(f"{self._server} cannot be reached ({reason}); trying again for {self._patience:g} s")
        if now - self._away_since > self._patience:
            why = f"cannot be reached for {self._patience:g} s ({reason})"
            raise AwayError(f"{SERVER} {self._server}: {why}; start it, or correct the address") from error
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, self._longest)


def run_node(handle: Callable[[bytes], bytes], link: Link) -> None:
    """Answer the server's packets until the training is over or this process is stopped.

    Args:
        handle: makes the answer to a packet; an error that it raises ends the node.
        link: the connection to the server.

    Raises:
        ConfigError: as `Link.ask`.
    """
    with contextlib.closing(link):
        while (packet := link.ask("GET", protocol.WORK)).status != protocol.OVER:
            if packet.status == 200:
                link.answer(packet, handle(packet.body))
            else:
                time.sleep(SECONDS_BETWEEN_QUESTIONS)
