"""Interface of data poisoning, and the choice of attackers."""

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

__all__ = ["Alter", "Poison", "check_classes_of", "draw_attackers", "poisoned"]

Alter: TypeAlias = Callable[[Tensor, Tensor, np.random.Generator], tuple[Tensor, Tensor]]
"""(inputs [n, ...], labels [n] or [n, L], the attacker's generator) -> replacements of the same shapes."""


class Poison(ABC):
    """Base of everything that `--data.poison` accepts.

    Subclasses are frozen dataclasses of settings. Only training samples are poisoned, so an attacker's whole local work
    sees poisoned samples; attackers are evaluated on their original samples.
    """

    @abstractmethod
    def prepare(self, seen: Population, target: Target, dataset: str) -> Alter:
        """Return the function that alters an attacker's samples.

        Args:
            seen: the training clients with their original samples.
            target: the prediction target.
            dataset: name of the data set.

        Raises:
            ConfigError: if these samples cannot be poisoned in this way.
        """


def check_classes_of(poison: Poison, target: Target, dataset: str) -> None:
    """Raise a `ConfigError` unless labels are classes."""
    if target.continuous or target.vectors or target.ignored is not None:
        raise ConfigError(
            f"--data.poison {type(poison).__name__} changes classes, the labels of {dataset} are {target.name}; "
            "choose data with classes, or leave it out"
        )


def draw_attackers(wanted: float, num_clients: int, seed: int) -> Tensor:
    """Sample the attackers uniformly; fixed positions would share a class if samples are sorted by label.

    Args:
        wanted: number of attackers, or their share (rounded) if below 1.
        num_clients: training clients T.
        seed: seed of the data.

    Returns:
        Their ids, ascending [A] int64.

    Raises:
        ConfigError: if there are too few clients, or the number is not whole.

    Example:
        >>> draw_attackers(4, 20, seed=0).tolist()
        [2, 12, 17, 18]
    """
    if not 0 <= wanted < num_clients or (wanted > 1 and wanted != int(wanted)):
        raise ConfigError(
            f"--data.attackers is {wanted:g}, {num_clients} clients train; give a whole number below that, or a "
            "share below 1"
        )
    number = round(wanted * num_clients) if wanted < 1 else int(wanted)
    drawn = generator(seed, 0, 0, "attackers").choice(num_clients, number, replace=False)
    return torch.from_numpy(np.sort(drawn))


def poisoned(seen: Population, alter: Alter, seed: int, name: str) -> Population:
    """The training clients with the attackers' training samples altered.

    Args:
        seen: the clients, with `attackers`.
        alter: from `Poison.prepare`.
        seed: seed of the data; each attacker has its own stream.
        name: the poison with its settings; enters the origin of on-demand samples, and so the fingerprint.
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
    x, y = draw(number)
    if number not in attackers:
        return x, y
    held, labels = alter(torch.from_numpy(x), torch.from_numpy(y), _stream(seed, number))
    return held.numpy(), labels.numpy()


def _stream(seed: int, number: int) -> np.random.Generator:
    return generator(seed, 0, number, "poison")
