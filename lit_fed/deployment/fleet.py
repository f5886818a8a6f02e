"""Asking nodes: who answers in time, who does not, and what becomes of a question then."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Literal

from lit_fed.core.errors import logged
from lit_fed.deployment.roster import Roster
from lit_fed.deployment.transport import Transport
from lit_fed.deployment.wire import Packet, WireError, from_bytes, to_bytes

__all__ = ["Fleet", "LostNodesError", "Missing"]

Missing = Literal["wait", "stop", "drop"]

FACTS_BYTES = 64 * 2**20
"""What a node may say of its clients and their samples."""


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

    Attributes:
        roster: the clients of all nodes; set once they have told of them.
        over: the training is finished, so nodes may end when the server does.
        sent: bytes that went to nodes so far, by the kind of the question; `received`: likewise those that came.
    """

    roster: Roster

    def __init__(self, transport: Transport, *, missing: Missing, seconds: float, patience: float) -> None:
        self.transport, self.missing, self.seconds, self.patience = transport, missing, seconds, patience
        self.sent: dict[str, int] = {}
        self.received: dict[str, int] = {}
        self.over = False

    def end(self) -> None:
        """Let go of the nodes when the server's process ends."""
        self.transport.close(over=self.over)

    def ask_all(self, nodes: Iterable[str], packet: Packet) -> dict[str, Packet]:
        """The answers of nodes that are all asked the same, and all needed."""
        return self.ask(dict.fromkeys(nodes, packet), {}, may_drop=False)

    def ask(
        self,
        packets: Mapping[str, Packet],
        most: Mapping[str, int],
        *,
        may_drop: bool,
        seconds: float | None = None,
        sessions: Mapping[str, Packet] | None = None,
    ) -> dict[str, Packet]:
        """The answers of some nodes.

        Args:
            packets: what each of them is asked.
            most: bytes that the answer of each may take; by default those of facts.
            may_drop: whether the caller can go on without an answer.
            seconds: how long an answer may take; None: as always.
            sessions: the same questions with the settings of the training, for nodes that do not know them.

        Returns:
            Answers by node; where `missing` is `drop` and the caller can go on, those that came.

        Raises:
            LostNodesError: naming the nodes without a usable answer, and what they said.
        """
        answers: dict[str, Packet] = {}
        said: dict[str, str] = {}
        drops = may_drop and self.missing == "drop"
        limit = self.seconds if seconds is None else seconds
        waits = self.patience if self.missing == "wait" else limit
        open_packets, ends = dict(packets), time.monotonic() + waits
        while open_packets:
            came = self._call(open_packets, most, max(0.0, min(ends - time.monotonic(), limit)))
            for node, data in came.items():
                if self._take(node, data, open_packets, answers, said, sessions or {}):
                    ends = max(ends, time.monotonic() + limit)  # it is asked anew, with the settings
            refused = [node in said for node in open_packets]
            if not open_packets or (drops and (all(refused) or time.monotonic() >= ends)):
                break
            if (any(refused) and not drops) or time.monotonic() >= ends:
                raise LostNodesError(_lost(open_packets, said, waits))
            if not came:
                logged(f"still waiting for the nodes {', '.join(sorted(open_packets))}")
        return answers

    def _call(self, packets: Mapping[str, Packet], most: Mapping[str, int], seconds: float) -> dict[str, bytes]:
        made: dict[int, bytes] = {}
        for packet in packets.values():
            made.setdefault(id(packet), to_bytes(packet))
        data = {node: made[id(packet)] for node, packet in packets.items()}
        limits = {node: most.get(node, FACTS_BYTES) for node in packets}
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
        open_packets: dict[str, Packet],
        answers: dict[str, Packet],
        said: dict[str, str],
        sessions: Mapping[str, Packet],
    ) -> bool:
        """Take in what a node said, which may leave its question open; whether it asks for the settings."""
        try:
            answer = from_bytes(data)
        except WireError as error:
            said[node] = f"sends {error}"
            return False
        if "refused" in answer.facts:
            said[node] = f"says: {answer.facts['refused']}"[:2000]
        elif "needs" in answer.facts and node in sessions and open_packets[node] is not sessions[node]:
            open_packets[node] = sessions[node]
            return True
        elif "needs" in answer.facts:
            said[node] = "asks for settings that it has been sent"
        else:
            answers[node] = answer
            del open_packets[node]
        return False


def _lost(open_packets: Iterable[str], said: Mapping[str, str], seconds: float) -> str:
    told = [f"{node} {said[node]}" for node in sorted(open_packets) if node in said]
    silent = [node for node in sorted(open_packets) if node not in said]
    if silent:
        told.append(f"no answer from {', '.join(silent)} within {seconds:g} s")
    return f"nodes are missing: {'; '.join(told)}; see to their machines and logs"
