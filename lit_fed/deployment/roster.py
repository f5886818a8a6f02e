"""All clients of a federation: which number each of them gets, and on which node it lives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.deployment.facts import POPULATIONS, SPLITS, ClientFacts, NodeFacts
from lit_fed.errors import ConfigError

__all__ = ["Roster", "conflicts"]


class Roster(NamedTuple):
    """All clients of a federation: their numbers, and on which node each of them lives."""

    names: dict[str, list[str]]  # of the seen and the unseen clients, sorted; unseen ones are numbered after the seen
    facts: dict[str, NodeFacts]  # by node
    node_of: dict[int, str]  # by the number of a client
    ids: dict[str, dict[str, int]]  # for each node the numbers of its clients by name

    @classmethod
    def of(cls, facts: Mapping[str, NodeFacts]) -> Roster:
        """Number the clients of some nodes; the numbers do not depend on who lives where.

        Raises:
            ConfigError: if a name stands on two nodes, samples differ in type or shape, or nobody is to be trained.
        """
        if not facts:
            raise ConfigError("no node tells of clients that can be trained; see to the nodes' logs")
        for wrong in conflicts(facts).values():
            raise ConfigError(wrong)
        where = {name: node for node, one in facts.items() for name in one.clients}
        names = {kind: sorted(_of_kind(facts, kind)) for kind in POPULATIONS}
        if not names["seen"]:
            raise ConfigError(
                f"the nodes {', '.join(facts)} have no clients to train; put .npz files into the folder `seen` of one "
                "node at least"
            )
        numbers = {name: one for one, name in enumerate(names["seen"] + names["unseen"])}
        ids = {node: {name: numbers[name] for name in one.clients} for node, one in facts.items()}
        return cls(names, dict(facts), {numbers[name]: node for name, node in where.items()}, ids)

    def sizes(self, population: str, split: str) -> Tensor:
        """Samples of each client of a population in a split, [T] int64."""
        return torch.tensor([self.of_client(name).sizes[SPLITS.index(split)] for name in self.names[population]])

    def of_client(self, name: str) -> ClientFacts:
        """What is known of a client."""
        return next(one.clients[name] for one in self.facts.values() if name in one.clients)

    @property
    def num_classes(self) -> int | None:
        """One more than the largest training label of all seen clients; None where labels are no classes."""
        largest = [self.of_client(name).largest_label for name in self.names["seen"]]
        found = [one for one in largest if one is not None]
        return max(2, 1 + max(found)) if found else None


def conflicts(facts: Mapping[str, NodeFacts]) -> dict[str, str]:
    """Nodes that do not go with the others, and why.

    Samples are of the type and shape that most nodes have. Of nodes that name the same client, the one that does so
    with the most others is wrong; where no node does so with more, none of them can be believed.

    Args:
        facts: by node.
    """
    kinds = Counter(_kind_of(one) for one in facts.values())
    usual = max(kinds, key=kinds.__getitem__, default="")  # of equally many the first
    wrong = {}
    for node, one in facts.items():
        if _kind_of(one) != usual:
            first = next(other for other, its in facts.items() if _kind_of(its) == usual)
            wrong[node] = _difference(node, one, first, facts[first])
    claims: dict[str, list[str]] = {}
    for node, one in facts.items():
        for name in one.clients if node not in wrong else ():
            claims.setdefault(name, []).append(node)
    shared = {name: nodes for name, nodes in claims.items() if len(nodes) > 1}
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
        left = {name: [node for node in nodes if node not in wrong] for name, nodes in shared.items()}
        shared = {name: nodes for name, nodes in left.items() if len(nodes) > 1}
    return wrong


def _kind_of(one: NodeFacts) -> str:
    return f"{one.types} {one.stored == 'uint8'}"


def _difference(node: str, one: NodeFacts, first: str, usual: NodeFacts) -> str:
    """How samples of a node differ from the usual ones."""
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


def _of_kind(facts: Mapping[str, NodeFacts], kind: str) -> list[str]:
    return [name for one in facts.values() for name, client in one.clients.items() if client.population == kind]
