"""A node's way to the server.

One connection, which stays open while the node works: it tells the server that the node is there. Where it breaks,
the node connects anew and says again what it had to say; the server knows packets by their ids.
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
from lit_fed.deployment.https_tls import tls_of_node
from lit_fed.deployment.transport import check_node_name, foreign_text
from lit_fed.errors import ConfigError

__all__ = ["AwayError", "Link"]

SERVER, TLS, NEVER, SECONDS = "--server", "--tls", -1.0, Limits.poll_seconds + 15.0
PAUSES = (0.5, 30.0)
"""Seconds until the first and until a late attempt to reach the server again; each pause is twice the one before."""

LARGE = 2**20
"""Bytes of an answer before which the node asks whether anybody still waits for it."""

NOT_TRUSTED = ("VERIFY_FAILED", "CERTIFICATE_REQUIRED", "UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_EXPIRED")
"""Parts of OpenSSL's reasons that time does not heal."""

MOST_HANG_UPS = 3
"""A server that hangs up after the handshakes of TLS 1.3, so often in a row, has looked at the certificate by then."""


class AwayError(ConfigError):
    """There was no server for longer than the node's patience."""


class Link:
    """The way to the server; waits for one that is away.

    Args:
        server: HOST:PORT.
        tls: folder with `node.pem`, `node.key` and `ca.pem`; None: plain HTTP to a server on this machine.
        name: of this node, where there is no certificate that says it.
        patience: seconds without a server after which the node ends.
        say: takes a line for the operator.

    Raises:
        ConfigError: naming an argument that will not do.
    """

    def __init__(
        self, server: str, tls: Path | None, name: str | None, patience: float, say: Callable[[str], None]
    ) -> None:
        host, port = protocol.address_of(server, SERVER)
        self._server, self._patience, self._say = server, patience, say
        self._away_since: float | None = NEVER
        self._pause, self._hung_up, self._has_tls = PAUSES[0], 0, tls is not None
        self._headers = {**protocol.version_headers(), protocol.PROCESS: secrets.token_hex(16)}
        self._connection: http.client.HTTPConnection
        if tls is not None:
            self._connection = http.client.HTTPSConnection(host, port, timeout=SECONDS, context=tls_of_node(tls, TLS))
        elif not protocol.is_loopback(host):
            raise ConfigError(f"{SERVER} {server} is another machine; give {TLS} DIR, with this node's certificate")
        elif name is None:
            raise ConfigError(f"neither {TLS} nor --name is given; give {TLS} DIR or, on one machine, --name NAME")
        else:
            self._headers[protocol.NAME] = check_node_name(name, "--name")
            self._connection = http.client.HTTPConnection(host, port, timeout=SECONDS)

    def close(self) -> None:
        """Close the connection; the next question opens one."""
        self._connection.close()

    def answer(self, packet: Reply, answer: bytes) -> None:
        """Send an answer, if anybody still waits for it.

        Raises:
            ConfigError: if it is longer than the server takes; see also `ask`.
        """
        if len(answer) > packet.most_bytes:
            raise ConfigError(f"{SERVER} {self._server} takes {packet.most_bytes} bytes; an answer has {len(answer)}")
        path, done = protocol.ANSWERS + packet.key, False
        while not done:
            wanted = len(answer) <= LARGE or self.ask("GET", path).status == 204
            done = not wanted or self._try("POST", path, answer) is not None

    def ask(self, method: str, path: str) -> Reply:
        """What the server replies, as soon as there is one.

        Raises:
            ConfigError: if it refuses this node, cannot be trusted, or was away for too long.
        """
        while (reply := self._try(method, path)) is None:
            pass
        return reply

    def _try(self, method: str, path: str, body: bytes | None = None) -> Reply | None:
        """One attempt; None, after a pause, where the server is away."""
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
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may have said why before
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
        """Pause after an error, unless time does not heal it or there was enough of that."""
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
        self._pause = min(2 * self._pause, PAUSES[1])
