"""Clients on nodes, as a data set: it knows how many samples each of them has, and holds none."""

from __future__ import annotations

import atexit
import time
from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

import lit_fed
from lit_fed.core.reduce import num_ranks
from lit_fed.core.types import Population, Split
from lit_fed.data.data_sets.base import ClientDataSet
from lit_fed.data.populations.drawn_clients import DrawnSplit
from lit_fed.deployment.facts import SPLITS, NodeFacts
from lit_fed.deployment.fleet import PAUSES, Fleet, Missing
from lit_fed.deployment.messages import facts_of_answer
from lit_fed.deployment.roster import Roster, conflicts
from lit_fed.deployment.transport import Transport
from lit_fed.deployment.wire import Packet
from lit_fed.errors import ConfigError, logged

__all__ = ["RemoteClients", "RemoteSplit"]


class RemoteSplit(DrawnSplit):
    """Sizes of a split whose samples are elsewhere.

    Attributes:
        is_cut: whether validation samples are taken out of it, which the nodes do by themselves.
    """

    samples_per_block = None  # type: ignore[assignment] # nothing is brought into memory

    def __init__(
        self, sizes: Tensor, x: Tensor, y: Tensor, origin: str, first_id: int = 0, *, is_cut: bool = False
    ) -> None:
        super().__init__(_refuse_to_draw, sizes, x, y, origin, first_id=first_id)
        self.is_cut = is_cut

    def select(self, client_ids: Tensor) -> Split:
        """The samples of these clients that are here: none."""
        ids = client_ids.cpu().unique()
        return Split(self.x, self.y, torch.zeros(len(ids) + 1, dtype=torch.int64), self.first_id, ids)

    def rows(self, rows_of: Callable[[int], np.ndarray], sizes: Tensor) -> RemoteSplit:
        """The split of the same clients with some of their samples."""
        return RemoteSplit(sizes, self.x, self.y, self.origin, self.first_id, is_cut=True)

    def subset(self, positions: Tensor) -> DrawnSplit:
        """Nothing: who is seen is decided on the nodes.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "--data.unseen_fraction keeps clients out of the training, and those of a federation are on their nodes; "
            "leave it at 0, and put the files of unseen clients into the folder `unseen` of their node"
        )

    def _copy(self, device: torch.device) -> RemoteSplit:
        return RemoteSplit(
            self.sizes, self.x.to(device), self.y.to(device), self.origin, self.first_id, is_cut=self.is_cut
        )


def _refuse_to_draw(number: int) -> tuple[np.ndarray, np.ndarray]:
    raise ConfigError(f"the samples of client {number} are on its node; this command needs them here")


class RemoteClients(ClientDataSet):
    """Base of data sets whose clients are on nodes; subclasses are frozen dataclasses that know how to reach them."""

    is_remote: ClassVar[bool] = True

    missing: Missing
    seconds: float
    patience: float
    max_update_norm: float | None = None

    @abstractmethod
    def connect(self) -> Transport:
        """What carries bytes to the nodes and back."""

    @abstractmethod
    def expected(self) -> int:
        """How many nodes there are to be."""

    @cached_property
    def fleet(self) -> Fleet:
        """The nodes and their clients; reached when they are first needed.

        Raises:
            ConfigError: if they do not come in time, are of another version, or what they have does not go together.
        """
        if num_ranks() > 1:
            raise ConfigError(
                f"{type(self).__name__} has one server, and the run several ranks; give --trainer.devices 1"
            )
        transport = self.connect()
        fleet = Fleet(
            transport, missing=self.missing, seconds=self.seconds, patience=self.patience,
            max_update_norm=self.max_update_norm,
        )  # fmt: skip
        atexit.register(fleet.end)
        nodes = transport.wait_for(self.expected(), self.patience)
        fleet.roster = Roster.of(self._told(fleet, nodes))
        return fleet

    def _told(self, fleet: Fleet, nodes: list[str]) -> dict[str, NodeFacts]:
        """What the nodes say of their clients; one that does not go with the others is asked again, or left out.

        Raises:
            ConfigError: naming a node that does not go with the others, where it is needed.
            LostNodesError: naming the nodes that do not answer.
        """
        told: dict[str, NodeFacts] = {}
        version, ends, pause = lit_fed.__version__, time.monotonic() + self.patience, PAUSES[0]
        while True:
            questions = dict.fromkeys(nodes, Packet({"kind": "facts", "version": version}))
            told |= fleet.ask(questions, {}, lambda _, answer: facts_of_answer(answer, version), may_drop=True)
            told = dict(sorted(told.items()))
            wrong = conflicts(told)
            nodes = list(wrong)
            if wrong and self.missing == "drop":
                logged(f"{'; '.join(dict.fromkeys(wrong.values()))}; going on without {', '.join(nodes)}")
                return {node: one for node, one in told.items() if node not in wrong}
            if not wrong:
                return told
            reason = wrong[nodes[0]]
            if self.missing == "stop" or time.monotonic() + pause > ends:
                raise ConfigError(reason)
            logged(f"{reason}, and start it again; asking again in {pause:g} s")
            time.sleep(pause)
            pause = min(2 * pause, PAUSES[1])

    @property
    def num_classes(self) -> int | None:  # type: ignore[override] # the base promises one number for the whole class
        """One more than the largest training label on any node; None where labels are no classes."""
        return self.fleet.roster.num_classes

    def load(self) -> tuple[Population, Population | None]:
        """The sizes of all clients' splits."""
        roster = self.fleet.roster
        some = next(iter(roster.facts.values()))
        origin = " ".join(sorted(one.digest for one in roster.facts.values()))
        found: list[Population | None] = []
        for kind, names in roster.names.items():
            splits = [RemoteSplit(roster.sizes(kind, name), some.empty_x, some.empty_y, origin) for name in SPLITS]
            population = Population(splits[0], splits[1], splits[2], names, stored_type=some.stored)
            found.append(population if names else None)
        assert found[0] is not None
        return found[0], found[1]
