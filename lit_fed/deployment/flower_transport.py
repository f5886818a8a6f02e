"""Packets over Flower's Grid, sent again where Flower loses them.

Flower hands a message to a node once. If the node dies with it, Flower reports an error when the node's heartbeats are
overdue, or nothing at all if the node is back before that. So this transport polls often, resends after an error and to
nodes that reconnected, and always has a timeout. Work that is done twice has the same result.

A message holds bytes as one array in one record, which Flower splits into pieces itself.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lit_fed.deployment.transport import is_node_name
from lit_fed.errors import ConfigError, logged
from lit_fed.system.packages import optional_package

__all__ = ["FLOWER", "FlowerTransport", "bytes_of", "flower", "message_of", "reply_of"]

FLOWER = "flwr>=1.41,<1.43"
"""Of the extra `flower`; newer versions often change these interfaces."""

MESSAGE_TYPE = "query"
"""One type for all packets: a client app treats them alike."""

RECORD, STYPE = "packet", "lit_fed.packet"

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds between attempts at a node that answers with errors; the pause doubles each time."""


def flower(module: str) -> Any:
    """A module of the package flwr; `ConfigError` if it is missing, naming what to install."""
    return optional_package(f"flwr.{module}", FLOWER, "flower", "a federation over Flower")


def message_of(data: bytes, node_id: int, seconds: float) -> Any:
    """A message for a node, by Flower's number, that expires after so many seconds."""
    return flower("app").Message(_content(data), node_id, MESSAGE_TYPE, ttl=seconds)


def reply_of(data: bytes, message: Any) -> Any:
    """The reply to a message."""
    return flower("app").Message(_content(data), reply_to=message)


def bytes_of(message: Any) -> bytes | None:
    """The bytes in a message of `message_of` or `reply_of`; None for any other message."""
    try:
        data = message.content[RECORD][RECORD].data
    except Exception:  # the content is foreign
        return None
    return data if isinstance(data, bytes) else None


def _content(data: bytes) -> Any:
    app = flower("app")
    array = app.Array(dtype="uint8", shape=(len(data),), stype=STYPE, data=data)
    return app.RecordDict({RECORD: app.ArrayRecord({RECORD: array})})


@dataclass
class _Asked:
    """A packet that a node is to answer."""

    data: bytes
    messages: set[str]  # sent, and not answered
    came: str | None = None  # when the node had last connected, at the time of the latest message
    not_before: float = 0.0
    pause: float = 0.0


class FlowerTransport:
    """A `Transport` over the Grid of a ServerApp.

    A node goes by its registered name, or by its number if it has none or another node had that name first.

    Args:
        grid: the Grid.
        pause: seconds between two looks for replies.
    """

    def __init__(self, grid: Any, pause: float = 0.5) -> None:
        self.grid, self.pause = grid, pause
        self._ids: dict[str, int] = {}
        self._asked: dict[str, _Asked] = {}
        self._complaints: set[tuple[str, str]] = set()

    def wait_for(self, num_nodes: int, seconds: float) -> list[str]:
        end = time.monotonic() + seconds
        while len(here := self._look()) < num_nodes:
            if time.monotonic() >= end:
                raise ConfigError(
                    f"{len(here)} of {num_nodes} SuperNodes are there after {seconds:g} s ({', '.join(sorted(here))}); "
                    "start the others, or write the app anew with another --data.dataset.num_nodes"
                )
            time.sleep(self.pause)
        return sorted(here)

    def call(self, packets: Mapping[str, bytes], *, most_bytes: Mapping[str, int], seconds: float) -> dict[str, bytes]:
        """See `Transport.call`; an answer that is too long is refused only after Flower has received it."""
        end = time.monotonic() + seconds
        self._asked = {node: self._question(node, data) for node, data in packets.items()}
        answers: dict[str, bytes] = {}
        while True:
            self._send(seconds)
            for node, data in self._receive(most_bytes).items():
                answers[node] = data
                del self._asked[node]
            left = end - time.monotonic()
            if not self._asked or left <= 0:
                return answers
            time.sleep(min(self.pause, left))

    def close(self, *, over: bool = False) -> None:
        """Do nothing: Flower ends the Grid with the app."""

    def _look(self) -> dict[str, Any]:
        """The connected nodes by name."""
        here = {}
        for info in self.grid.get_nodes():
            node_id, name = info.node_id, getattr(info, "name", "")
            if not is_node_name(name) or self._ids.setdefault(name, node_id) != node_id:
                name = str(node_id)
                self._ids[name] = node_id
            here[name] = info
        return here

    def _question(self, node: str, data: bytes) -> _Asked:
        """A packet for a node; a reply to an earlier message with the same packet is accepted."""
        before = self._asked.get(node)
        return _Asked(data, before.messages if before is not None and before.data == data else set())

    def _send(self, seconds: float) -> None:
        """Send packets that were not sent yet, were lost, or were answered with an error."""
        here, now = self._look(), time.monotonic()
        for node, asked in self._asked.items():
            if node not in here or now < asked.not_before:
                continue
            came = getattr(here[node], "last_activated_at", "")
            if asked.messages and asked.came == came:
                continue
            # a late reply may still be used by the next call with the same packet
            message = message_of(asked.data, self._ids[node], 2 * seconds + 60)
            taken = [one for one in self.grid.push_messages([message]) if one is not None]
            asked.messages.update(taken)
            asked.came = came
            if not taken:
                self._complain(node, asked, "the SuperLink does not take a message for it")

    def _receive(self, most_bytes: Mapping[str, int]) -> dict[str, bytes]:
        """Usable answers that have arrived."""
        found: dict[str, bytes] = {}
        for node, asked in self._asked.items():
            for number in list(asked.messages):  # one by one: a node may write any number into its reply
                for reply in self.grid.pull_messages([number]):
                    asked.messages.discard(number)
                    data = None if reply.has_error() else bytes_of(reply)
                    if reply.has_error():
                        self._complain(node, asked, f"Flower's error {reply.error.code}, sent again")
                    elif data is None:
                        self._complain(node, asked, "no reply of lit_fed")
                    elif len(data) > most_bytes[node]:
                        self._complain(
                            node, asked, f"{len(data)} bytes where at most {most_bytes[node]} were asked for"
                        )
                    else:
                        found[node] = data
        return found

    def _complain(self, node: str, asked: _Asked, what: str) -> None:
        """Report a problem once for each node, and delay the next attempt."""
        asked.pause = min(2 * asked.pause or FIRST_PAUSE, LONGEST_PAUSE)
        asked.not_before = time.monotonic() + asked.pause
        if (node, what) not in self._complaints:
            self._complaints.add((node, what))
            logged(f"node {node}: {what}")
