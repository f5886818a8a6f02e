"""Paths, headers, limits, addresses and TLS settings that both ends of the HTTPS transport share.

    GET /v1/work               a packet (200) with its id, nothing yet (204) after at most `poll_seconds`, or the
                               training is over (410)
    POST /v1/answers/ID        accepted (204), or no longer awaited (410)

Every request names the protocol, the version of lit_fed and the process; a process id tells a restarted node from a
second one. A refusal (4xx) is one line of text for the operator of the node.
"""

from __future__ import annotations

import http.client
import ipaddress
import re
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lit_fed import __version__
from lit_fed.deployment.transport import foreign_text
from lit_fed.errors import ConfigError

__all__ = [
    "ANSWERS", "MOST_BYTES", "NAME", "OVER", "PACKET", "PROCESS", "PROTOCOL", "REFUSALS", "WORK", "Limits", "Reply",
    "address_of", "is_loopback", "keep_alive", "pieces", "tls_context", "version_headers",
]  # fmt: skip

WORK, ANSWERS = "/v1/work", "/v1/answers/"
PROTOCOL, PIECE = "1", 2**18
OVER = 410
MOST_TEXT = 2**16
"""Maximum bytes of a reply that is not a packet."""

PACKET, MOST_BYTES, PROCESS, NAME = "Lit-Fed-Packet", "Lit-Fed-Most-Bytes", "Lit-Fed-Process", "Lit-Fed-Name"
REFUSALS = {400, 403, 404, 409, 411, 413, 415, 426}
"""Statuses after which a node ends, since a retry would change nothing."""

KEEP_ALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Seconds until the first probe of a silent connection, seconds between probes, and their number."""


@dataclass(frozen=True)
class Limits:
    """Limits of the server for nodes and for connections without a request ("strangers").

    Args:
        most_bytes: maximum size of one answer, whatever the question allows.
        poll_seconds: how long a request for work is held open.
        idle_seconds: timeout of a connection without a complete request; one whose node is at work may stay.
        stall_seconds: timeout of a body that makes no progress, in either direction.
        handshakes: strangers at a time; further ones wait.
        per_address: strangers from one address; further ones are closed.
        least_speed: minimum average speed of an answer, in bytes per second.
    """

    most_bytes: int = 2**31
    poll_seconds: float = 25.0
    idle_seconds: float = 20.0
    stall_seconds: float = 30.0
    handshakes: int = 64
    per_address: int = 48
    least_speed: float = 1000.0


class Reply:
    """A reply of the server: `status`, `body`, its beginning as `text`, and of a packet `key` and `most_bytes`.

    Raises:
        HTTPException: if it has no length, a longer body than its status allows, or a packet without a valid id.
        ValueError: if a header is not a number.
    """

    def __init__(self, response: http.client.HTTPResponse) -> None:
        if response.status not in (200, 204, OVER, *REFUSALS) and response.status < 500:
            raise http.client.HTTPException(f"status {response.status}")
        most = Limits.most_bytes if response.status == 200 else MOST_TEXT
        if response.chunked or response.length is None:
            raise http.client.HTTPException("a reply without a length")
        if response.length > most:
            raise http.client.HTTPException(f"a reply of {response.length} bytes, where {most} are the most")
        self.status, self.body, headers = response.status, response.read(), response.headers
        self.text = foreign_text(self.body[:500].decode(errors="replace"), 500)
        self.key, self.most_bytes = headers.get(PACKET, ""), int(headers.get(MOST_BYTES, "0"))
        if self.status == 200 and re.fullmatch("[0-9a-f]{1,64}", self.key) is None:
            raise http.client.HTTPException("a packet without an id")


def version_headers() -> dict[str, str]:
    """Headers that name protocol and version of either side."""
    return {"Lit-Fed-Protocol": PROTOCOL, "Lit-Fed-Version": __version__}


def pieces(data: bytes) -> Iterator[memoryview]:
    """Split a body into parts; the timeout for stalled connections applies to each."""
    for start in range(0, len(data), PIECE):
        yield memoryview(data)[start : start + PIECE]


def address_of(given: str, option: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; an IPv6 address is written `[HOST]:PORT`.

    Raises:
        ConfigError: naming `option` and the form.
    """
    host, colon, port = given.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_port = port.isascii() and port.isdigit() and int(port) < 2**16
    plain = bool(host) and not set(host) & set("/@[] ") and (":" not in host or given.startswith("["))
    if not (colon and is_port and plain):
        raise ConfigError(f"{option} {given[:200]!r}: no address; give HOST:PORT, such as server.example:8443")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def keep_alive(connection: socket.socket) -> None:
    """Let the system detect within a minute that the other machine is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        if hasattr(socket, name):  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def tls_context(name: str, folder: Path, option: str) -> ssl.SSLContext:
    """TLS 1.3 for `name`, `server` or `node`, whose pair is in the folder; its `ca.pem` is the only CA that is trusted.

    Both sides need a certificate of that CA. A node also checks that the server's certificate names its host.

    Raises:
        ConfigError: naming `option`, which gave the folder, and the problem.
    """
    files = [folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem"]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ConfigError(f"{option} {folder}: no {', '.join(missing)} in it; `lit-fed certificates` writes them")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if name == "server" else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(files[0], files[1], password="")  # without it OpenSSL would prompt for a password
        context.load_verify_locations(files[2])
    except (OSError, ssl.SSLError) as error:
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
        raise ConfigError(f"{option} {folder}: its certificates cannot be used ({why}); make them anew") from error
    return context
