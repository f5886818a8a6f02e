"""What a poison is: training samples of attackers are altered before anybody sees them."""

# Annotations are not postponed, so that the command line can read those of subclasses in other modules.
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from torch import Tensor

from lit_fed.core.targets import Target
from lit_fed.core.types import Population
from lit_fed.errors import ConfigError

__all__ = ["Alter", "Poison", "check_classes_of"]

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
