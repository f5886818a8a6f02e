"""A node's end of the HTTPS transport, with the standard library alone: a node starts in no time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from lit_fed.core.errors import notice
from lit_fed.deployment.https_link import Link
from lit_fed.deployment.https_protocol import WORK

__all__ = ["run_node"]


def run_node(
    handle: Callable[[bytes], bytes],
    server: str,
    tls: Path | None,
    *,
    name: str | None = None,
    patience: float = 3600.0,
    say: Callable[[str], None] = notice,
) -> None:
    """Answer the server's packets until this process is stopped.

    Args:
        handle: makes the answer to a packet; what it raises ends the node.
        server: HOST:PORT.
        tls: folder with `node.pem`, `node.key` and `ca.pem`; None: plain HTTP to a server on this machine.
        name: of this node, where there is no certificate that says it.
        patience: seconds without a server after which the node ends.
        say: takes a line for the operator.

    Raises:
        ConfigError: if the arguments will not do, the server refuses this node or cannot be trusted, or there was none
            for too long.
    """
    with contextlib.closing(Link(server, tls, name, patience, say)) as link:
        while True:
            packet = link.ask("GET", WORK)
            if packet.status == 200:
                link.answer(packet, handle(packet.body))
