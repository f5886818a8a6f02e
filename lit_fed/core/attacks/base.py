"""What an attack is: rows of attackers are replaced before the server looks at any."""

# Annotations are not postponed, so that the command line can read those of subclasses in other modules.
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.reduce import cast_like
from lit_fed.core.types import Tree

__all__ = ["Attack", "Intercepted", "own_changes", "replace_rows"]


class Intercepted(NamedTuple):
    """What m clients sent in a round, and who of them attacks."""

    values: Tree  # leaves [m, ...]
    of_old: Tree  # what the server knows of them, leaves [...]
    attacked: Tensor  # [m] bool
    seed: int
    round_idx: int
    stream: str  # phase, and what tells messages of one phase apart


class Attack(ABC):
    """Base of everything that `--model.attack` accepts.

    Subclasses are frozen dataclasses of settings. Attackers know what honest clients send, and act together.
    """

    @abstractmethod
    def strike(self, sent: Intercepted) -> Tree:
        """What the server gets: the values with other rows in the place of those of the attackers, leaves [m, ...].

        Raises:
            ConfigError: if the attack has no meaning with so many clients of which so many attack.
        """

    def check(self, num_messages: int, num_attackers: int) -> None:  # noqa: B027 - most have a meaning with any
        """Refuse numbers of clients with which the attack has no meaning.

        Args:
            num_messages: clients of a round, m.
            num_attackers: f of them.

        Raises:
            ConfigError: with both numbers.
        """


def replace_rows(sent: Intercepted, changes: Tree) -> Tree:
    """The values with attackers who send these changes.

    Args:
        sent: what clients sent.
        changes: of each attacker, leaves [f, ...], or of all of them, leaves [1, ...]; float64.
    """

    def leaf(value: Tensor, old: Tensor, change: Tensor) -> Tensor:
        if not value.is_floating_point():
            return value
        told = cast_like(old.double() + change, value)
        return value.index_put((sent.attacked.nonzero()[:, 0],), told.expand(int(sent.attacked.sum()), *old.shape))

    return tree.map_leaves(leaf, sent.values, sent.of_old, changes)


def own_changes(sent: Intercepted) -> Tree:
    """What attackers would send if they were honest, leaves [f, ...] float64."""
    return tree.map_leaves(
        lambda value, old: value[sent.attacked].double() - old.double() if value.is_floating_point()
        else torch.zeros_like(value[sent.attacked], dtype=torch.float64),
        sent.values, sent.of_old,
    )  # fmt: skip
