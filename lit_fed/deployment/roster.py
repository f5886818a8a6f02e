"""All clients of a federation: which number each of them gets, and on which node it lives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.core.errors import ConfigError
from lit_fed.deployment.facts import POPULATIONS, SPLITS, ClientFacts, NodeFacts

__all__ = ["Roster"]


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
        where: dict[str, str] = {}
        first, (_, types, stored, _) = next(iter(facts.items()))
        for node, one in facts.items():
            for name in one.clients:
                if name in where:
                    raise ConfigError(
                        f"client {name!r} stands on the nodes {where[name]} and {node}; rename its file on one of them"
                    )
                where[name] = node
            for which, of in one.types.items():
                here, there = (f"{kind} of shape {shape}" for kind, shape in (of, types[which]))
                if here != there:
                    raise ConfigError(
                        f"samples of {which} on node {node} are {here}, but on node {first} {there}; store all clients "
                        "with one type and sample shape"
                    )
            if (one.stored == "uint8") != (stored == "uint8"):
                raise ConfigError(
                    f"inputs on node {node} are stored as {one.stored}, but on node {first} as {stored}; store those "
                    "of all clients with one type, since uint8 is scaled to 0..1 and other types are not"
                )
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


def _of_kind(facts: Mapping[str, NodeFacts], kind: str) -> list[str]:
    return [name for one in facts.values() for name, client in one.clients.items() if client.population == kind]
