"""Asking nodes: who answers in time, who does not, and what becomes of a question then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from lit_fed.deployment.forms import Most
from lit_fed.deployment.messages import refusal_of
from lit_fed.deployment.refusal import REFUSALS
from lit_fed.deployment.roster import Roster
from lit_fed.deployment.transport import Transport
from lit_fed.deployment.wire import MOST_HEADER, Packet, WireError, from_bytes, to_bytes
from lit_fed.errors import logged

__all__ = ["Fleet", "LostNodesError", "Missing"]

Missing = Literal["wait", "stop", "drop"]

FACTS = Most(2**24, MOST_HEADER)
"""Length of what a node may say of its clients and their samples."""

HOPELESS = [f"says: {REFUSALS[code]}" for code in ("no settings", "settings", "start", "noise seed")]
"""What a node says of the server's settings."""

PAUSES = (1.0, 30.0)
"""Seconds until a node is first asked again after an answer that cannot be used, and at most; they double."""


class LostNodesError(RuntimeError):
    """Nodes whose answer is needed did not give one that can be used."""


class Fleet:
    """All nodes of a federation.

    Args:
        transport: carries bytes to nodes and back.
        missing: what becomes of a question that a node has not answered after `seconds`: it is asked again until
            `patience` is over (`wait`), the run ends (`stop`), or goes on without the node's clients (`drop`).
        seconds: how long an answer may take.
        patience: how long the server waits for a node altogether, in seconds.
        max_update_norm: bound on the Euclidean norm of a client's update; None: that of float32.

    Attributes:
        roster: the clients of all nodes; set once they have told of them.
        over: the training is finished, so nodes may end when the server does.
        sent: bytes that went to nodes so far, by the kind of the question; `received`: likewise those that came.
    """

    roster: Roster

    def __init__(
        self,
        transport: Transport,
        *,
        missing: Missing,
        seconds: float,
        patience: float,
        max_update_norm: float | None = None,
    ) -> None:
        self.transport, self.missing, self.seconds, self.patience = transport, missing, seconds, patience
        self.max_update_norm = max_update_norm
        self.sent: dict[str, int] = {}
        self.received: dict[str, int] = {}
        self.over = False

    def end(self) -> None:
        """Let go of the nodes when the server's process ends."""
        self.transport.close(over=self.over)

    def ask(
        self,
        packets: Mapping[str, Packet],
        most: Mapping[str, Most],
        read: Callable[[str, Packet], Any],
        *,
        may_drop: bool,
        seconds: float | None = None,
        sessions: Mapping[str, Packet] | None = None,
    ) -> dict[str, Any]:
        """The answers of some nodes. One that cannot be read counts as none.

        Args:
            packets: what each of them is asked.
            most: length of the answer that each may give; by default that of facts.
            read: reads the answer of a node, or raises `WireError`.
            may_drop: whether the caller can go on without an answer.
            seconds: how long an answer may take; None: as always.
            sessions: the same questions with the settings of the training, for nodes that do not know them.

        Returns:
            What was read, by node; where `missing` is `drop` and the caller can go on, of those that answered.

        Raises:
            LostNodesError: naming the nodes without a usable answer, and what they said.
        """
        answers: dict[str, Any] = {}
        said: dict[str, str] = {}
        drops = may_drop and self.missing == "drop"
        limit = self.seconds if seconds is None else seconds
        waits = self.patience if self.missing == "wait" else limit
        open_packets, ends, pause = dict(packets), time.monotonic() + waits, PAUSES[0]
        while open_packets:
            came = self._call(open_packets, most, max(0.0, min(ends - time.monotonic(), limit)))
            for node, data in came.items():
                sizes = most.get(node, FACTS)
                if self._take(node, data, sizes.header, read, open_packets, answers, said, sessions or {}):
                    ends = max(ends, time.monotonic() + limit)  # it is asked anew, with the settings
            refused, is_late = [node in said for node in open_packets], time.monotonic() >= ends
            if not open_packets or (drops and (all(refused) or is_late)):
                break
            is_over = is_late or self._all_refuse(packets, open_packets, said)
            if is_over or (any(refused) and self.missing != "wait" and not drops):
                raise LostNodesError(_lost(open_packets, said, waits))
            if open_packets.keys() <= said.keys() & came.keys():  # no other node is at work, whose answer would be lost
                logged(f"{_told(open_packets, said)}; asking again in {pause:g} s")
                time.sleep(max(0.0, min(pause, ends - time.monotonic())))
                pause = min(2 * pause, PAUSES[1])
            elif not came:
                logged(f"still waiting for the nodes {', '.join(sorted(open_packets))}")
        if told := _told(open_packets, said):
            logged(f"{told}; going on without")
        return answers

    def _all_refuse(self, asked: Mapping[str, Packet], left: Mapping[str, Packet], said: Mapping[str, str]) -> bool:
        """Whether all nodes of the federation refuse the server's settings, so that waiting is of no use."""
        everyone = hasattr(self, "roster") and self.roster.facts.keys() <= asked.keys()
        return everyone and len(left) == len(asked) and all(said.get(node) in HOPELESS for node in left)

    def _call(self, packets: Mapping[str, Packet], most: Mapping[str, Most], seconds: float) -> dict[str, bytes]:
        made: dict[int, bytes] = {}
        for packet in packets.values():
            made.setdefault(id(packet), to_bytes(packet))
        data = {node: made[id(packet)] for node, packet in packets.items()}
        limits = {node: most.get(node, FACTS).bytes for node in packets}
        came = self.transport.call(data, most_bytes=limits, seconds=seconds)
        for node, packet in packets.items():
            kind = str(packet.facts["kind"])
            self.sent[kind] = self.sent.get(kind, 0) + len(data[node])
            self.received[kind] = self.received.get(kind, 0) + len(came.get(node, b""))
        return came

    def _take(
        self,
        node: str,
        data: bytes,
        most_header: int,
        read: Callable[[str, Packet], Any],
        open_packets: dict[str, Packet],
        answers: dict[str, Any],
        said: dict[str, str],
        sessions: Mapping[str, Packet],
    ) -> bool:
        """Take in what a node said, which may leave its question open; whether it asks for the settings."""
        try:
            answer = from_bytes(data, most_header)
            code = refusal_of(answer)
            if code is None:
                answers[node] = read(node, answer)
                del open_packets[node]
                return False
        except WireError as error:
            said[node] = f"sends what cannot be used: {error}"
            return False
        if code != "session":
            said[node] = f"says: {REFUSALS[code]}"
        elif node in sessions and open_packets[node] is not sessions[node]:
            open_packets[node] = sessions[node]
            return True
        else:
            said[node] = "asks for settings that it has been sent"
        return False


def _told(nodes: Iterable[str], said: Mapping[str, str]) -> str:
    return "; ".join(f"node {node} {said[node]}" for node in sorted(nodes) if node in said)


def _lost(open_packets: Iterable[str], said: Mapping[str, str], seconds: float) -> str:
    told = [f"{node} {said[node]}" for node in sorted(open_packets) if node in said]
    silent = [node for node in sorted(open_packets) if node not in said]
    if silent:
        told.append(f"no answer from {', '.join(silent)} within {seconds:g} s")
    return f"nodes are missing: {'; '.join(told)}; see to their machines and logs"
