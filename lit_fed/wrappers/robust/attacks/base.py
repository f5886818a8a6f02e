"""Interface of attacks: they replace the attackers' rows ahead of the server's step."""

# Annotations are not postponed, so that the command line can read those of subclasses in other modules.
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.reduce import cast_like
from lit_fed.core.types import Chosen, Tree
from lit_fed.errors import check_settings

__all__ = ["Attack", "Intercepted"]


class Intercepted(NamedTuple):
    """The messages of m clients in a round, and the attackers among them."""

    values: Tree  # leaves [m, ...]
    reference: Tree  # reference values at the server, leaves [...]
    attacked: Tensor  # [m] bool
    client_ids: Tensor  # [m] int64
    seed: int
    round_idx: int
    stream: str  # phase, and the part of its messages

    @property
    def own(self) -> Tree:
        """Honest changes of the attackers, leaves [f, ...] float64."""
        return self._changes(self.attacked)

    @property
    def honest(self) -> Tree:
        """Changes of the honest clients, leaves [m - f, ...] float64.

        If none takes part, attackers use their own changes instead: leaves [f, ...].
        """
        return self.own if self.attacked.all() else self._changes(~self.attacked)

    def _changes(self, rows: Tensor) -> Tree:
        """Changes in the messages of some clients; 0 for integers, which no attack falsifies."""

        def leaf(value: Tensor, old: Tensor) -> Tensor:
            some = value[rows].double()
            return some - old.double() if value.is_floating_point() else torch.zeros_like(some)

        return tree.map_leaves(leaf, self.values, self.reference)

    def sending(self, changes: Tree) -> Tree:
        """The values if attackers send these changes, leaves [f, ...], or [1, ...] for all; integers are unchanged.

        Args:
            changes: float64.
        """
        places = self.attacked.nonzero()[:, 0]

        def leaf(value: Tensor, old: Tensor, change: Tensor) -> Tensor:
            if not value.is_floating_point():
                return value
            told = cast_like(old.double() + change, value)
            return value.index_put((places,), told.expand(len(places), *old.shape))

        return tree.map_leaves(leaf, self.values, self.reference, changes)


class Attack(ABC):
    """Base of everything that `--model.attack` accepts.

    Subclasses are frozen dataclasses of settings. Attackers know the honest messages, and act together. They falsify
    floating numbers, not counters or the choice of models: if clients choose some of M models, attackers act on each
    model among the clients that sent it.
    """

    ranges: ClassVar[dict[str, str]] = {}
    """The ranges of an attack's settings, for `check_settings`."""

    def __post_init__(self) -> None:
        check_settings(self, self.ranges, "--model.attack")

    @abstractmethod
    def changes(self, sent: Intercepted) -> Tree:
        """The changes that attackers send; there is at least one attacker.

        Returns:
            Leaves [f, ...] in the order of the attackers' rows, or [1, ...] if all of them send the same; float64.
        """

    def strike(self, sent: Intercepted) -> Tree:
        """The values that the server receives, with the attackers' rows replaced, leaves [m, ...].

        Args:
            sent: the messages; for `Chosen`, the server's reference has all M models.
        """
        if isinstance(sent.values, Chosen):
            return self._strike_chosen(sent, sent.values)
        return sent.sending(self.changes(sent)) if sent.attacked.any() else sent.values

    def _strike_chosen(self, sent: Intercepted, values: Chosen) -> Chosen:
        """Attack each of the M models among the clients that sent it; unsent models stay 0."""
        models = tree.map_leaves(torch.clone, values.models)
        for place in range(values.taken.shape[1]):
            takers = values.taken[:, place] > 0
            some = sent._replace(
                values=tree.map_leaves(lambda leaf, here=takers, at=place: leaf[here, at], values.models),
                reference=tree.index(sent.reference.models, place), attacked=sent.attacked[takers],
                client_ids=sent.client_ids[takers], stream=f"{sent.stream}/{place}",
            )  # fmt: skip
            for leaf, told in zip(tree.leaves(models), tree.leaves(self.strike(some)), strict=True):
                leaf[takers, place] = told
        return Chosen(models, values.taken)

    def check(self, num_messages: int, num_attackers: int) -> None:  # noqa: B027 - most have a meaning with any
        """Refuse numbers of clients for which the attack is undefined.

        Args:
            num_messages: clients of a round, m.
            num_attackers: f of them.

        Raises:
            ConfigError: with both numbers.
        """
