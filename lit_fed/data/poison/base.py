"""What a poison is: training samples of attackers are altered before anybody sees them."""

# Annotations are not postponed, so that the command line can read those of subclasses in other modules.
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from lit_fed.core.seeds import generator
from lit_fed.core.targets import Target
from lit_fed.core.types import Population, Split
from lit_fed.data.populations.drawn_clients import Draw, DrawnSplit
from lit_fed.errors import ConfigError

__all__ = [
    "Alter",
    "Poison",
    "check_classes_of",
    "draw_attackers",
    "poisoned",
]

Alter: TypeAlias = Callable[[Tensor, Tensor, np.random.Generator], tuple[Tensor, Tensor]]
"""Of one attacker inputs [n, ...], labels [n] or [n, L] and a stream of its own: what takes their place."""


class Poison(ABC):
    """Base of everything that `--data.poison` accepts.

    Subclasses are frozen dataclasses of settings. Only training samples are poisoned, so that a client's local work,
    its E-step among it, meets nothing else; attackers are measured on what was true.
    """

    @abstractmethod
    def prepare(self, seen: Population, target: Target, dataset: str) -> Alter:
        """What alters the samples of an attacker.

        Args:
            seen: clients of the training, with samples that nobody has poisoned yet.
            target: what is predicted.
            dataset: name of the data set.

        Raises:
            ConfigError: if such samples cannot be poisoned in this way.
        """


def check_classes_of(poison: Poison, target: Target, dataset: str) -> None:
    """Refuse labels that are no classes.

    Args:
        poison: the poison.
        target: what is predicted.
        dataset: name of the data set.

    Raises:
        ConfigError: naming the poison, the data set and its labels.
    """
    if target.continuous or target.vectors:
        raise ConfigError(
            f"--data.poison {type(poison).__name__} changes classes, and the labels of {dataset} are {target.name}; "
            "take data with classes, or leave it out"
        )


def draw_attackers(wanted: float, num_clients: int, seed: int) -> Tensor:
    """Draw the clients that attack; never the last ones, who would all be of one class where samples are sorted.

    Args:
        wanted: how many, or their share if it is below 1; a share is rounded.
        num_clients: clients of the training, T.
        seed: of the data.

    Returns:
        Their ids, ascending [A] int64.

    Raises:
        ConfigError: if there are not so many clients, or it is no number of clients.

    Example:
        >>> draw_attackers(4, 20, seed=0).tolist()
        [2, 12, 17, 18]
    """
    if not 0 <= wanted < num_clients or (wanted > 1 and wanted != int(wanted)):
        raise ConfigError(
            f"--data.attackers is {wanted:g}, and {num_clients} clients train; give a whole number below that, or a "
            "share below 1"
        )
    number = round(wanted * num_clients) if wanted < 1 else int(wanted)
    drawn = generator(seed, 0, 0, "attackers").choice(num_clients, number, replace=False)
    return torch.from_numpy(np.sort(drawn))


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
        draw = partial(_draw_poisoned, train.draw, frozenset(numbers.tolist()), alter, seed)
        origin = f"{train.origin}, {name} at {numbers.tolist()}"
        return seen._replace(
            train=DrawnSplit(draw, train.sizes, train.x, train.y, origin, train.numbers, train.first_id)
        )
    x, y = train.x.clone(), train.y.clone()
    for attacker in seen.attackers.tolist():
        rows = slice(*train.offsets[attacker : attacker + 2].tolist())
        x[rows], y[rows] = alter(x[rows], y[rows], _stream(seed, attacker))
    return seen._replace(train=Split(x, y, train.offsets, train.first_id, train.ids))


def _draw_poisoned(
    draw: Draw, attackers: frozenset[int], alter: Alter, seed: int, number: int
) -> tuple[np.ndarray, np.ndarray]:
    """The samples of a client, altered if it attacks."""
    x, y = draw(number)
    if number not in attackers:
        return x, y
    held, labels = alter(torch.from_numpy(x), torch.from_numpy(y), _stream(seed, number))
    return held.numpy(), labels.numpy()


def _stream(seed: int, number: int) -> np.random.Generator:
    return generator(seed, 0, number, "poison")
