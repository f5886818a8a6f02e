"""Attackers whose training samples are poisoned."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from lit_fed.core.seeds import generator
from lit_fed.core.types import Population, Split
from lit_fed.data.poison.base import Alter
from lit_fed.data.populations.drawn_clients import Draw, DrawnSplit

__all__ = ["poisoned"]


def poisoned(seen: Population, alter: Alter, seed: int, name: str) -> Population:
    """The clients of the training, with altered training samples of those that attack.

    Args:
        seen: the clients; they say who attacks.
        alter: what a poison prepared.
        seed: of the data; each attacker has a stream of its own.
        name: of the poison with its settings, which becomes a part of what samples drawn on demand depend on.
    """
    assert seen.attackers is not None
    train = seen.train
    if isinstance(train, DrawnSplit):
        numbers = train.numbers[seen.attackers]
        draw = partial(_draw, train.draw, frozenset(numbers.tolist()), alter, seed)
        origin = f"{train.origin}, {name} at {numbers.tolist()}"
        return seen._replace(
            train=DrawnSplit(draw, train.sizes, train.x, train.y, origin, train.numbers, train.first_id)
        )
    x, y = train.x.clone(), train.y.clone()
    for attacker in seen.attackers.tolist():
        rows = slice(*train.offsets[attacker : attacker + 2].tolist())
        x[rows], y[rows] = alter(x[rows], y[rows], _stream(seed, attacker))
    return seen._replace(train=Split(x, y, train.offsets, train.first_id, train.ids))


def _draw(draw: Draw, attackers: frozenset[int], alter: Alter, seed: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """The samples of a client, altered if it attacks."""
    x, y = draw(number)
    if number not in attackers:
        return x, y
    held, labels = alter(torch.from_numpy(x), torch.from_numpy(y), _stream(seed, number))
    return held.numpy(), labels.numpy()


def _stream(seed: int, number: int) -> np.random.Generator:
    return generator(seed, 0, number, "poison")
