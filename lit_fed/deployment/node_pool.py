"""The nodes of a federation: the directory of their clients, and questions to them with timeouts and retries."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

import lit_fed
from lit_fed.deployment.messages import (
    POPULATIONS,
    REFUSALS,
    SPLITS,
    ClientFacts,
    NodeFacts,
    facts_of_answer,
    refusal_of,
)
from lit_fed.deployment.transport import Transport
from lit_fed.deployment.wire import MOST_HEADER, Packet, from_bytes, to_bytes
from lit_fed.errors import ConfigError, LostNodesError, logged
from lit_fed.system.readers import FormError

__all__ = ["ClientDirectory", "Missing", "Most", "NodePool"]

Missing = Literal["wait", "stop", "drop"]

HOPELESS = [f"says: {REFUSALS[code]}" for code in ("settings", "start")]
"""Refusals of the server's settings."""

PAUSES = (1.0, 30.0)
"""Seconds before a node is asked again after an unusable answer, at first and at most; the pause doubles each time."""


class Most(NamedTuple):
    """Maximum size of an answer."""

    bytes: int  # on the wire
    header: int  # bytes of its unpacked header


FACTS = Most(2**24, MOST_HEADER)
"""Of facts about the clients of a node."""


class ClientDirectory(NamedTuple):
    """All clients of a federation: their numbers, and the node of each."""

    names: dict[str, list[str]]  # of the seen and the unseen clients, sorted; unseen ones are numbered after the seen
    facts: dict[str, NodeFacts]  # by node
    node_of: dict[int, str]  # by the number of a client
    ids: dict[str, dict[str, int]]  # for each node the numbers of its clients by name

    @classmethod
    def of(cls, facts: Mapping[str, NodeFacts]) -> ClientDirectory:
        """Number the clients of some nodes; the numbers depend on the clients' names only.

        Raises:
            ConfigError: if a name is on two nodes, samples differ in type or shape, or there are no seen clients.
        """
        if not facts:
            raise ConfigError("no node tells of clients that can be trained; see to the nodes' logs")
        for wrong in _conflicts(facts).values():
            raise ConfigError(wrong)
        names: dict[str, list[str]] = {kind: [] for kind in POPULATIONS}
        for one in facts.values():
            for name, client in one.clients.items():
                names[client.population].append(name)
        names = {kind: sorted(some) for kind, some in names.items()}
        if not names["seen"]:
            raise ConfigError(
                f"the nodes {', '.join(facts)} have no clients to train; put .npz files into the folder `seen` of one "
                "node at least"
            )
        numbers = {name: one for one, name in enumerate(names["seen"] + names["unseen"])}
        ids = {node: {name: numbers[name] for name in one.clients} for node, one in facts.items()}
        return cls(names, dict(facts), {one: node for node, some in ids.items() for one in some.values()}, ids)

    def sizes(self, population: str, split: str) -> Tensor:
        """Samples of each client of a population in a split, [T] int64."""
        return torch.tensor([one.sizes[SPLITS.index(split)] for one in self._clients(population)])

    @property
    def num_classes(self) -> int | None:
        """One more than the largest training label of all seen clients; None where labels are not classes."""
        found = [one.largest_label for one in self._clients("seen") if one.largest_label is not None]
        return max(2, 1 + max(found)) if found else None

    def _clients(self, population: str) -> list[ClientFacts]:
        known = {name: one for some in self.facts.values() for name, one in some.clients.items()}
        return [known[name] for name in self.names[population]]


class NodePool:
    """All nodes of a federation.

    Args:
        transport: carries bytes to nodes and back.
        missing: see `RemoteClients`, as are the others.
        seconds: timeout of a phase.
        patience: timeout of the first questions, in seconds.
        max_update_norm: bound on the norm of a client's update.
        most_classes: bound on the number of classes.

    Attributes:
        directory: the clients of all nodes; set by `meet`.
        over: the training is finished, so nodes may end when the server does.
        sent: bytes sent to nodes so far, by the kind of the question; `received`: likewise of their answers.
    """

    directory: ClientDirectory

    def __init__(
        self, transport: Transport, *, missing: Missing, seconds: float, patience: float,
        max_update_norm: float | None = None, most_classes: int = 1000,
    ) -> None:  # fmt: skip
        self.transport, self.missing, self.seconds, self.patience = transport, missing, seconds, patience
        self.max_update_norm, self.most_classes = max_update_norm, most_classes
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.over = False

    def end(self) -> None:
        """Close the transport when the server's process ends."""
        self.transport.close(over=self.over)

    def meet(self, num_nodes: int) -> None:
        """Wait for the nodes and ask for their clients; a node that conflicts with others is asked again, or left out.

        Raises:
            ConfigError: if too few nodes come in time, or naming a node that conflicts with the others.
            LostNodesError: naming the nodes that do not answer.
        """
        told: dict[str, NodeFacts] = {}
        nodes = self.transport.wait_for(num_nodes, self.patience)
        version, ends, pause = lit_fed.__version__, time.monotonic() + self.patience, PAUSES[0]
        while nodes:
            questions = dict.fromkeys(nodes, Packet({"kind": "facts", "version": version}))
            told |= self.ask(
                questions, {}, lambda _, answer: facts_of_answer(answer, version, self.most_classes), may_drop=True
            )
            told = dict(sorted(told.items()))
            wrong = _conflicts(told)
            nodes = list(wrong)
            if wrong and self.missing == "drop":
                logged(f"{'; '.join(dict.fromkeys(wrong.values()))}; going on without {', '.join(nodes)}")
                told = {node: one for node, one in told.items() if node not in wrong}
                break
            if wrong:
                reason = wrong[nodes[0]]
                if self.missing == "stop" or time.monotonic() + pause > ends:
                    raise ConfigError(reason)
                logged(f"{reason}, and start it again; asking again in {pause:g} s")
                time.sleep(pause)
                pause = min(2 * pause, PAUSES[1])
        self.directory = ClientDirectory.of(told)

    def ask(
        self, packets: Mapping[str, Packet], most: Mapping[str, Most], read: Callable[[str, Packet], Any], *,
        may_drop: bool, seconds: float | None = None, sessions: Mapping[str, Packet] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """The answers of some nodes. An unreadable answer counts as none.

        Args:
            packets: the question to each of them.
            most: size of the answer that each may give; by default that of facts.
            read: reads the answer of a node, or raises `FormError`.
            may_drop: whether the caller can go on without an answer.
            seconds: timeout of an answer; None: that of the pool.
            sessions: the same questions with the settings of the training, for nodes that do not know them.

        Returns:
            The results of `read`, by node. Nodes without an answer are absent if the caller and `missing` allow it.

        Raises:
            LostNodesError: naming the nodes without a usable answer, and their messages.
        """
        drops = may_drop and self.missing == "drop"
        limit = self.seconds if seconds is None else seconds
        waits = self.patience if self.missing == "wait" else limit
        asked, ends, pause = _Asked(dict(packets), sessions or {}), time.monotonic() + waits, PAUSES[0]
        while left := asked.left:
            came = self._call(left, most, max(0.0, min(ends - time.monotonic(), limit)))
            for node, data in came.items():
                if asked.take(node, data, most.get(node, FACTS).header, read):
                    ends = max(ends, time.monotonic() + limit)  # it is asked again, with the settings
            refused, is_late = [node in asked.said for node in left], time.monotonic() >= ends
            hopeless = len(left) == len(packets) and self._all_refuse(asked)
            if not left or (drops and not hopeless and (all(refused) or is_late)):
                break
            if hopeless or is_late or (any(refused) and self.missing != "wait" and not drops):
                raise LostNodesError(asked.lost(waits))
            if left.keys() <= asked.said.keys() & came.keys():  # no other node is at work, whose answer would be lost
                logged(f"{asked.told()}; asking again in {pause:g} s")
                time.sleep(max(0.0, min(pause, ends - time.monotonic())))
                pause = min(2 * pause, PAUSES[1])
            elif not came:
                logged(f"still waiting for the nodes {', '.join(sorted(left))}")
        if told := asked.told():
            logged(f"{told}; going on without")
        return asked.answers

    def _all_refuse(self, asked: _Asked) -> bool:
        """Whether all nodes of the federation refuse the server's settings: rounds without any node train nothing."""
        everyone = hasattr(self, "directory") and self.directory.facts.keys() <= asked.left.keys()
        return everyone and all(asked.said.get(node) in HOPELESS for node in asked.left)

    def _call(self, packets: Mapping[str, Packet], most: Mapping[str, Most], seconds: float) -> dict[str, bytes]:
        made: dict[int, bytes] = {}
        for packet in packets.values():
            made.setdefault(id(packet), to_bytes(packet))
        data = {node: made[id(packet)] for node, packet in packets.items()}
        limits = {node: most.get(node, FACTS).bytes for node in packets}
        came = self.transport.call(data, most_bytes=limits, seconds=seconds)
        for node, packet in packets.items():
            self.sent[packet.facts["kind"]] += len(data[node])
            self.received[packet.facts["kind"]] += len(came.get(node, b""))
        return came


@dataclass
class _Asked:
    """Nodes that were asked: their open questions, answers, and the problems with the latest answers in words."""

    left: dict[str, Packet]
    sessions: Mapping[str, Packet]
    answers: dict[str, Any] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)

    def take(self, node: str, data: bytes, most_header: int, read: Callable[[str, Packet], Any]) -> bool:
        """Process an answer, which may leave the question open; whether the node asks for the settings."""
        try:
            answer = from_bytes(data, most_header)
            code = refusal_of(answer)
            if code is None:
                self.answers[node] = read(node, answer)
                del self.left[node]
                return False
        except FormError as error:
            self.said[node] = f"sends what cannot be used: {error}"
            return False
        if code != "session":
            self.said[node] = f"says: {REFUSALS[code]}"
        elif node in self.sessions and self.left[node] is not self.sessions[node]:
            self.left[node] = self.sessions[node]
            return True
        else:
            self.said[node] = "asks for settings that it has been sent"
        return False

    def told(self) -> str:
        """The problems of the nodes whose questions are open."""
        return "; ".join(f"node {one}" for one in self._problems())

    def lost(self, seconds: float) -> str:
        """The same with the nodes that did not answer at all, as an error."""
        told, silent = self._problems(), sorted(self.left.keys() - self.said.keys())
        if silent:
            told.append(f"no answer from {', '.join(silent)} within {seconds:g} s")
        return f"nodes are missing: {'; '.join(told)}; see to their machines and logs"

    def _problems(self) -> list[str]:
        return [f"{node} {self.said[node]}" for node in sorted(self.left) if node in self.said]


# ---------------------------------------------------------------------- nodes that conflict
def _conflicts(facts: Mapping[str, NodeFacts]) -> dict[str, str]:
    """Nodes that conflict with the others, and why.

    Type and shape of samples must be those of the majority. Among nodes that name the same client, the one in conflict
    with the most others is wrong; if there is no such node, all of them are excluded.
    """
    kinds = Counter(_kind_of(one) for one in facts.values())
    usual = max(kinds, key=kinds.__getitem__, default="")  # ties go to the first
    wrong = {}
    for node, one in facts.items():
        if _kind_of(one) != usual:
            first = next(other for other, its in facts.items() if _kind_of(its) == usual)
            wrong[node] = _difference(node, one, first, facts[first])
    claims: dict[str, list[str]] = {}
    for node, one in facts.items():
        for name in one.clients if node not in wrong else ():
            claims.setdefault(name, []).append(node)
    shared = _on_several(claims, wrong)
    while shared:
        others: dict[str, set[str]] = {}
        for nodes in shared.values():
            for node in nodes:
                others.setdefault(node, set()).update(nodes)
        most = max(map(len, others.values()))
        for name, nodes in shared.items():
            for node in (one for one in nodes if len(others[one]) == most):
                wrong[node] = (
                    f"client {name!r} stands on the nodes {' and '.join(claims[name])}; rename its file on one of them"
                )
        shared = _on_several(shared, wrong)
    return wrong


def _on_several(claims: Mapping[str, list[str]], wrong: Iterable[str]) -> dict[str, list[str]]:
    """Clients that several nodes name, ignoring nodes already found wrong."""
    left = {name: [node for node in nodes if node not in wrong] for name, nodes in claims.items()}
    return {name: nodes for name, nodes in left.items() if len(nodes) > 1}


def _kind_of(one: NodeFacts) -> str:
    return f"{one.types} {one.stored == 'uint8'} {one.inputs}"


def _difference(node: str, one: NodeFacts, first: str, usual: NodeFacts) -> str:
    """The difference between samples of a node and the usual ones."""
    if one.inputs != usual.inputs:
        return (
            f"inputs on node {node} are {one.inputs or 'one array x'}, but on node {first} "
            f"{usual.inputs or 'one array x'}; store the same on all nodes, with sequences padded to one length"
        )
    for which, of in one.types.items():
        here, there = (f"{kind} of shape {shape}" for kind, shape in (of, usual.types[which]))
        if here != there:
            return (
                f"samples of {which} on node {node} are {here}, but on node {first} {there}; store all clients with "
                "one type and sample shape"
            )
    return (
        f"inputs on node {node} are stored as {one.stored}, but on node {first} as {usual.stored}; store those of all "
        "clients with one type, since uint8 is scaled to 0..1 and other types are not"
    )
