"""A node's end of the HTTPS transport, with the standard library alone: a node starts in no time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from lit_fed.deployment.https_link import Link
from lit_fed.deployment.https_protocol import OVER, WORK

__all__ = ["run_node"]

SECONDS_BETWEEN_QUESTIONS = 0.02
"""A server that has nothing to ask holds the question back; one that does not cannot keep this processor busy."""


def run_node(handle: Callable[[bytes], bytes], link: Link) -> None:
    """Answer the server's packets until the training is over, or this process is stopped.

    Args:
        handle: makes the answer to a packet; what it raises ends the node.
        link: the way to the server.

    Raises:
        ConfigError: if the server refuses this node or cannot be trusted, or there was none for too long.
    """
    with contextlib.closing(link):
        while True:
            packet = link.ask("GET", WORK)
            if packet.status == OVER:
                return
            if packet.status == 200:
                link.answer(packet, handle(packet.body))
            else:
                time.sleep(SECONDS_BETWEEN_QUESTIONS)
