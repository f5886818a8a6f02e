"""What a node tells of its data, and what is checked of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lit_fed.deployment.wire import TYPES, WireError

__all__ = ["POPULATIONS", "SPLITS", "ClientFacts", "NodeFacts", "read_facts"]

SPLITS = ("train", "val", "test")
POPULATIONS = ("seen", "unseen")

MOST_LETTERS = 200
"""Of the name of a client."""


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


def read_facts(plain: Mapping[str, Any]) -> NodeFacts:
    """The inverse of `NodeFacts.plain`.

    Raises:
        WireError: if they are something else.
    """
    try:
        clients = {_name(name): _client(*one) for name, one in plain["clients"].items()}
        types = {which: _type(*plain["types"][which]) for which in ("x", "y")}
        stored, digest = plain["stored"], plain["digest"]
    except WireError:
        raise
    except Exception as error:  # whatever a made-up structure makes of these lines
        raise WireError("its facts cannot be read") from error
    if not (isinstance(digest, str) and len(digest) <= 128 and digest.isalnum()):
        raise WireError("its digest is none")
    if not (isinstance(stored, str) and len(stored) <= 16 and stored.isalnum()):
        raise WireError("what it says of its samples makes no sense")
    return NodeFacts(clients, types, stored, digest)


def _name(name: str) -> str:
    if not 0 < len(name) <= MOST_LETTERS or not name.isprintable():
        raise WireError(f"the name of a client has {len(name)} letters, or some that cannot be printed")
    return name


def _client(population: str, sizes: list[int], largest_label: int | None) -> ClientFacts:
    whole = all(type(size) is int and 0 <= size < 2**40 for size in sizes) and len(sizes) == len(SPLITS)
    label = largest_label is None or (type(largest_label) is int and 0 <= largest_label < 2**31)
    if population not in POPULATIONS or not whole or not label:
        raise WireError("what it says of a client makes no sense")
    return ClientFacts(population, (sizes[0], sizes[1], sizes[2]), largest_label)


def _type(kind: str, shape: list[int]) -> tuple[str, list[int]]:
    if kind not in TYPES or len(shape) > 8 or not all(type(one) is int and 0 < one < 2**31 for one in shape):
        raise WireError("what it says of its samples makes no sense")
    return kind, shape
