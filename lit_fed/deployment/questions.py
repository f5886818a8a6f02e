"""What the server asks nodes: packets with all that an answer takes, each node's settings once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.types import Tree
from lit_fed.deployment.fleet import Fleet
from lit_fed.deployment.forms import Most, most_of
from lit_fed.deployment.session_facts import marks_of_start, session_name
from lit_fed.deployment.states import VersionStore
from lit_fed.deployment.wire import Packet
from lit_fed.rounds import FederatedRounds

__all__ = ["Questions"]


class Questions:
    """Asks the nodes of clients.

    Args:
        fleet: the nodes.
        rounds: the federation, whose store is a `VersionStore`.
        session: settings of the training and facts of its data, for JSON.
    """

    def __init__(self, fleet: Fleet, rounds: FederatedRounds, session: dict[str, Any]) -> None:
        self.fleet, self.rounds, self.session = fleet, rounds, session
        self._informed: set[str] = set()  # nodes that know the settings, unless their process is a new one

    def ask(
        self,
        ctx: Context,
        shared: Tree,
        ids: list[int],
        common: dict[str, Any],
        each: dict[str, dict[int, Any]],
        form: Tree,
        read: Callable[[Packet, list[int]], Any],
        may_drop: bool,
        seconds: float | None,
    ) -> dict[str, Any]:
        """The answers of the nodes of some clients.

        Args:
            ctx: what every client knows in the phase.
            shared: what the server knows.
            ids: the clients.
            common: facts for all of them.
            each: facts by client.
            form: of what comes back for a client.
            read: reads a node's answer about these of its clients, or raises `WireError`.
            may_drop: whether it goes on without an answer.
            seconds: how long an answer may take; None: as always.
        """
        rounds, store, roster = self.rounds, self.store, self.fleet.roster
        needed = store.needed(ids)
        common = common | {
            "run": int(store.run), "round": rounds.server.rounds_done,
            "horizon": rounds.schedule_rounds, "num_rounds": rounds.terms.num_rounds,
        }  # fmt: skip
        packets, sessions, of_node = {}, {}, {}
        most: dict[str, Most] = {}
        sent = {one: rounds.algorithm.sent(ctx, shared, one) for one in ids}
        same = _is_same(list(sent.values()))
        for node in dict.fromkeys(roster.node_of[one] for one in ids):
            mine = [one for one in ids if roster.node_of[one] == node]
            own = {key: [values[one] for one in mine] for key, values in each.items()}
            stay = None if needed is None else {str(one): needed[one] for one in mine if one in needed}
            facts = common | own | {"clients": mine, "needed": stay}
            trees = (
                {"shared": tree.leaves(sent[mine[0]])}
                if same
                else {f"shared/{one}": tree.leaves(sent[one]) for one in mine}
            )
            settings = self.session | {"ids": roster.ids[node], "start": self._start}
            packets[node] = Packet(facts | {"session": session_name(settings)}, trees)
            sessions[node] = Packet(packets[node].facts | {"settings": settings}, trees)
            most[node], of_node[node] = most_of(form, len(mine)), mine
        first = {node: packet for node, packet in sessions.items() if node not in self._informed}
        answers = self.fleet.ask(
            packets | first, most, lambda node, answer: read(answer, of_node[node]), may_drop=may_drop, seconds=seconds,
            sessions=sessions,
        )  # fmt: skip
        self._informed |= answers.keys()
        return answers

    @cached_property
    def _start(self) -> list[float]:
        return marks_of_start(self.rounds.algorithm, self.rounds.terms, self.rounds.server.initial_shared)

    @property
    def store(self) -> VersionStore:
        """The versions of the clients' states."""
        store = self.rounds.store
        assert isinstance(store, VersionStore)
        return store


def _is_same(sent: list[Tree]) -> bool:
    """Whether all clients are sent the same tensors."""
    first = [id(leaf) for leaf in tree.leaves(sent[0])]
    return all([id(leaf) for leaf in tree.leaves(one)] == first for one in sent[1:])
