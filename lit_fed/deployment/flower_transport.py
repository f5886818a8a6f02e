"""Packets over Flower's Grid, sent again where Flower loses them.

Flower hands a message to a node once. If the node dies with it, an error comes when its heartbeats are overdue, or
nothing at all, if it is back before anybody asks. So this transport looks often, sends again after an error and to
nodes that came anew since, and never waits without an end. Work that is done twice has the same result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lit_fed.deployment.flower_records import bytes_of, message_of
from lit_fed.deployment.transport import is_node_name
from lit_fed.errors import ConfigError, logged

__all__ = ["FlowerTransport"]

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds between two attempts at a node that answers with errors; they double."""


@dataclass
class _Asked:
    """What a node is to answer."""

    data: bytes
    messages: set[str]  # sent, and not answered
    came: str | None = None  # when the node had last come, as the last of them was sent
    not_before: float = 0.0
    pause: float = 0.0


class FlowerTransport:
    """A transport over the Grid of a ServerApp.

    Nodes go by the names under which they were registered, and by their numbers where they have none, or where another
    node had that name first.

    Args:
        grid: the Grid.
        pause: seconds between two looks for replies.
        make: makes a message of bytes, the number of a node, and the seconds after which it is of no use.
        read: what a reply holds, or None.
    """

    def __init__(
        self,
        grid: Any,
        pause: float = 0.5,
        make: Callable[[bytes, int, float], Any] = message_of,
        read: Callable[[Any], bytes | None] = bytes_of,
    ) -> None:
        self.grid, self.pause, self._make, self._read = grid, pause, make, read
        self._ids: dict[str, int] = {}
        self._asked: dict[str, _Asked] = {}
        self._complaints: set[tuple[str, str]] = set()

    def wait_for(self, num_nodes: int, seconds: float) -> list[str]:
        """See `Transport`."""
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
        """See `Transport`; Flower has received an answer that is too long before it is refused."""
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
        """Nothing: Flower ends the Grid with the app."""

    def _look(self) -> dict[str, Any]:
        """The nodes that are there, by name."""
        here = {}
        for info in self.grid.get_nodes():
            node_id, name = info.node_id, getattr(info, "name", "")
            if not is_node_name(name) or self._ids.setdefault(name, node_id) != node_id:
                name = str(node_id)
                self._ids[name] = node_id
            here[name] = info
        return here

    def _question(self, node: str, data: bytes) -> _Asked:
        """What a node is asked; a reply to an earlier message with the same packet will do."""
        before = self._asked.get(node)
        return _Asked(data, before.messages if before is not None and before.data == data else set())

    def _send(self, seconds: float) -> None:
        """Send what has not been sent, was lost, or could not be answered."""
        here, now = self._look(), time.monotonic()
        for node, asked in self._asked.items():
            if node not in here or now < asked.not_before:
                continue
            came = getattr(here[node], "last_activated_at", "")
            if asked.messages and asked.came == came:
                continue
            # A reply that is late may still be taken by the next call with the same packet.
            message = self._make(asked.data, self._ids[node], 2 * seconds + 60)
            taken = [one for one in self.grid.push_messages([message]) if one is not None]
            asked.messages.update(taken)
            asked.came = came
            if not taken:
                self._complain(node, asked, "the SuperLink does not take a message for it")

    def _receive(self, most_bytes: Mapping[str, int]) -> dict[str, bytes]:
        """Answers that have come and can be used."""
        found: dict[str, bytes] = {}
        for node, asked in self._asked.items():
            for number in list(asked.messages):  # one by one: a node may write any number into its reply
                for reply in self.grid.pull_messages([number]):
                    asked.messages.discard(number)
                    data = None if reply.has_error() else self._read(reply)
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
        """Say once for each node what went wrong, and leave it alone for a while."""
        asked.pause = min(2 * asked.pause or FIRST_PAUSE, LONGEST_PAUSE)
        asked.not_before = time.monotonic() + asked.pause
        if (node, what) not in self._complaints:
            self._complaints.add((node, what))
            logged(f"node {node}: {what}")
