"""What a node tells of its data, and what is checked of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lit_fed.deployment.typed import keyed, list_of, one_of, optional, record, text, whole
from lit_fed.deployment.wire import TYPES, WireError

__all__ = ["MOST_CLASSES", "MOST_CLIENTS", "POPULATIONS", "SPLITS", "ClientFacts", "NodeFacts", "read_facts"]

SPLITS = ("train", "val", "test")
POPULATIONS = ("seen", "unseen")

MOST_LETTERS = 200
"""Of the name of a client."""

MOST_CLIENTS = 2**17
"""Clients of one node."""

MOST_CLASSES = 2**17
"""Classes of a training: the last layer of the network has a row for each."""

MOST_SAMPLES = 2**31
"""Samples of one client's split."""

MOST_VALUES = 2**28
"""Numbers of one sample."""

NAME = text(MOST_LETTERS, ".+")
SIZE = whole(0, MOST_SAMPLES)
CLIENT = list_of(lambda value, _: value, 3, 3)
SAMPLE = list_of(lambda value, _: value, 2, 2)
SHAPE = list_of(whole(1, 2**31 - 1), 8)


class ClientFacts(NamedTuple):
    """What the server hears of a client's samples."""

    population: str
    sizes: tuple[int, int, int]  # samples of each split
    largest_label: int | None  # of the training samples, where labels are classes

    def plain(self) -> list[Any]:
        """These facts for JSON."""
        return [self.population, list(self.sizes), self.largest_label]


class NodeFacts(NamedTuple):
    """What the server hears of a node."""

    clients: dict[str, ClientFacts]  # by name
    types: dict[str, tuple[str, list[int]]]  # for `x` and `y` type and shape of a sample
    stored: str  # the type in which inputs are stored: uint8 is scaled
    digest: str  # changes when the samples do, and says nothing else: an HMAC with a key that stays on the node

    def plain(self) -> dict[str, Any]:
        """These facts for JSON."""
        clients = {name: one.plain() for name, one in self.clients.items()}
        return {
            "clients": clients,
            "types": {name: list(one) for name, one in self.types.items()},
            "stored": self.stored,
            "digest": self.digest,
        }

    @property
    def empty_x(self) -> Tensor:
        """Inputs of no sample, [0, ...]."""
        return self._empty("x")

    @property
    def empty_y(self) -> Tensor:
        """Labels of no sample, [0] or [0, L]."""
        return self._empty("y")

    def _empty(self, which: str) -> Tensor:
        kind, shape = self.types[which]
        return torch.zeros(0, *shape, dtype=TYPES[kind])


def read_facts(plain: Any) -> NodeFacts:
    """The inverse of `NodeFacts.plain`.

    Raises:
        WireError: if they are something else.
    """
    reader = record(
        {
            "clients": keyed(NAME, _client, MOST_CLIENTS), "types": record({"x": _type, "y": _type}),
            "stored": text(16, "[a-z0-9]*"), "digest": text(128, "[0-9a-f]+"),
        }
    )  # fmt: skip
    facts = NodeFacts(**reader(plain, "facts"))
    classes = TYPES[facts.types["y"][0]].is_floating_point
    if any((one.largest_label is None) != classes for one in facts.clients.values()):
        raise WireError("facts.clients is not of labels of the type that facts.types says")
    return facts


def _client(value: Any, place: str) -> ClientFacts:
    population, sizes, largest_label = CLIENT(value, place)
    sizes = list_of(SIZE, len(SPLITS), len(SPLITS))(sizes, f"{place}: sizes")
    label = optional(whole(0, MOST_CLASSES - 1))(largest_label, f"{place}: a largest label")
    return ClientFacts(one_of(*POPULATIONS)(population, f"{place}: a population"), tuple(sizes), label)


def _type(value: Any, place: str) -> tuple[str, list[int]]:
    kind, shape = SAMPLE(value, place)
    kind, shape = one_of(*TYPES)(kind, place), SHAPE(shape, place)
    if torch.Size(shape).numel() > MOST_VALUES:
        raise WireError(f"{place} is not of at most {MOST_VALUES} numbers")
    return kind, shape
