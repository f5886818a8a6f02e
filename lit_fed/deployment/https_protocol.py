"""What both ends of the HTTPS transport agree on: paths, headers, limits, addresses.

    GET /v1/work               a packet (200) with its id, nothing yet (204) after at most `poll_seconds`, or the
                               training is over (410)
    POST /v1/answers/ID        taken (204), or nobody waits for it any more (410)

Every request names the protocol, the version of lit_fed and the process, which tells a node that was started again from
one that runs twice. A refusal (4xx) is a line of text for the person who started the node.
"""

from __future__ import annotations

import http.client
import ipaddress
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from lit_fed import __version__
from lit_fed.deployment.transport import foreign_text
from lit_fed.errors import ConfigError

__all__ = [
    "ANSWERS", "MOST_BYTES", "NAME", "OVER", "PACKET", "PROCESS", "PROTOCOL", "REFUSALS", "WORK",
    "Limits", "Reply", "address_of", "is_loopback", "keep_alive", "pieces", "version_headers",
]  # fmt: skip

WORK, ANSWERS = "/v1/work", "/v1/answers/"
PROTOCOL, PIECE = "1", 2**18
OVER = 410
MOST_TEXT = 2**16
"""Bytes of a reply that is no packet."""

PACKET, MOST_BYTES, PROCESS, NAME = "Lit-Fed-Packet", "Lit-Fed-Most-Bytes", "Lit-Fed-Process", "Lit-Fed-Name"
REFUSALS = {400, 403, 404, 409, 411, 413, 415, 426}
"""Statuses after which a node ends: asking again would change nothing."""

KEEP_ALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Seconds until the system asks whether the other machine is still there, between such questions, and how many."""


@dataclass(frozen=True)
class Limits:
    """What the server allows a node, or a stranger.

    Args:
        most_bytes: of one answer, whatever is asked for.
        poll_seconds: how long a question for work is kept open.
        idle_seconds: how long a connection may stay without a complete request; one whose node is at work may stay.
        stall_seconds: how long a body may stand still, either way.
        handshakes: connections that may be strangers at a time; further ones wait.
        per_address: how many of these may come from one address; further ones are closed.
        least_speed: bytes of an answer that have to come in a second, on average.
    """

    most_bytes: int = 2**31
    poll_seconds: float = 25.0
    idle_seconds: float = 20.0
    stall_seconds: float = 30.0
    handshakes: int = 64
    per_address: int = 48
    least_speed: float = 1000.0


class Reply:
    """What the server said: `status`, `body`, its beginning as `text`, and of a packet `key` and `most_bytes`.

    Raises:
        HTTPException: if it has no length, a longer body than its status allows, or a packet without a proper id.
        ValueError: if a header is no number.
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
    """What each side says of itself."""
    return {"Lit-Fed-Protocol": PROTOCOL, "Lit-Fed-Version": __version__}


def pieces(data: bytes) -> Iterator[memoryview]:
    """Parts of a body; a connection may stand still for some time at each of them."""
    for start in range(0, len(data), PIECE):
        yield memoryview(data)[start : start + PIECE]


def address_of(given: str, option: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; of an IPv6 address `[HOST]:PORT`.

    Args:
        given: as it was given.
        option: where, for the message.

    Raises:
        ConfigError: naming it and the form.
    """
    host, colon, port = given.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_port = port.isascii() and port.isdigit() and int(port) < 2**16
    plain = bool(host) and not set(host) & set("/@[] ") and (":" not in host or given.startswith("["))
    if not (colon and is_port and plain):
        raise ConfigError(f"{option} {given[:200]!r}: no address; give HOST:PORT, such as server.example:8443")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, seen from itself alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def keep_alive(connection: socket.socket) -> None:
    """Let the system notice within a minute that the other machine is gone without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        if hasattr(socket, name):  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
