"""Aggregation of a phase: messages received, clients that failed, messages lost."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lit_fed.clients.base import Failed, Trained
from lit_fed.core.context import Context
from lit_fed.core.reduce import Accumulator, all_reduce
from lit_fed.core.types import Absences, ClientBlock, PhaseTraffic, RoundFaults, Tree
from lit_fed.errors import ClientError, NotFiniteError

__all__ = ["PhaseAggregator", "PhaseState", "Places", "RoundState", "UnreliablePhase", "faults_in"]

NOT_FINITE, FAILED = 1, 2
"""Codes by which ranks exchange failures of clients."""


class Places(NamedTuple):
    """Some clients of a phase and the positions of their rows on the ranks."""

    positions: Tensor  # [C] position of each row, rank after rank in the order in which clients run
    counts: list[int]  # rows of each rank
    client_ids: Tensor  # [C] of all ranks, ascending, without duplicates

    @classmethod
    def of(cls, slices: Sequence[Tensor]) -> Places:
        """The places of all clients of each rank, given in the order in which they run."""
        whole = torch.cat([*slices])
        client_ids = whole.sort().values
        return cls(torch.searchsorted(client_ids, whole), [len(one) for one in slices], client_ids)


class PhaseAggregator:
    """Messages of one rank in a phase whose clients all answer; see `UnreliablePhase` for others.

    Args:
        reduce: how messages are reduced.
        slices: ids of each rank's clients, in the order in which they run.
        device: device of the messages.
        num_clients: T.

    Attributes:
        asked: clients of the phase on all ranks, [C] ascending.
        heard: clients whose messages count.
        kept: clients whose new states are kept.
    """

    forgives = False

    def __init__(
        self, reduce: Literal["sum", "stack"], slices: Sequence[Tensor], device: torch.device, num_clients: int
    ) -> None:  # fmt: skip
        self.messages, self.num_clients, self.device = Accumulator(reduce), num_clients, device
        self.heard = self.kept = Places.of([one.to(device) for one in slices])
        self.asked = self.heard.client_ids

    @property
    def present(self) -> Tensor:
        """Mask of the clients whose messages count, [T] bool."""
        there = torch.zeros(self.num_clients, dtype=torch.bool, device=self.device)
        return there.index_fill_(0, self.heard.client_ids, True)

    def take(
        self, client_ids: Tensor, multiplicity: Tensor, done: Trained | Failed, stepped: Tensor | None = None
    ) -> slice | Tensor:
        """Add the results of some clients [c]; returns the positions [c] whose new states are kept.

        Args:
            client_ids: the clients, [c].
            multiplicity: how often each counts, [c] float64; all 0 for a placeholder, whose structure alone counts.
            done: their results, or the failure of one.
            stepped: clients that took local steps, [c] bool; None: all.
        """
        assert isinstance(done, Trained)
        self.messages.add(done.result.message, multiplicity, done.result.metrics, stepped=stepped)
        return slice(None)


class UnreliablePhase(PhaseAggregator):
    """A phase in which messages of failed clients and lost messages do not count.

    Args:
        reduce: how messages are reduced.
        slices: ids of each rank's clients, in the order in which they run.
        device: device of the messages.
        num_clients: T.
        absences: clients whose messages are lost.
        before: earlier phases of the round; clients that failed there are excluded.
    """

    def __init__(
        self, reduce: Literal["sum", "stack"], slices: Sequence[Tensor], device: torch.device, num_clients: int,
        absences: Absences, before: Sequence[UnreliablePhase] = (),
    ) -> None:  # fmt: skip
        super().__init__(reduce, slices, device, num_clients)
        self.absences, self.forgives = absences, absences.forgives
        self.errors: list[ClientError] = []
        self._last_error: ClientError | None = None
        self._slices = [one.to(device) for one in slices]
        self.non_finite = self.broken = self._failed = torch.zeros(0, dtype=torch.int64, device=device)
        self._gone = torch.cat([self._failed, *(one._failed for one in before)])
        self._lost = torch.cat([self._gone, absences.lost.to(device)])
        self._settle()

    def _settle(self) -> None:
        """Find out whose messages count and whose states are kept."""
        self.heard = self._without(torch.cat([self._failed, self._lost]))
        self.kept = self._without(torch.cat([self._failed, self._gone if self.absences.keeps_states else self._lost]))

    def _without(self, gone: Tensor) -> Places:
        return Places.of([one[~torch.isin(one, gone)] for one in self._slices])

    def take(
        self, client_ids: Tensor, multiplicity: Tensor, done: Trained | Failed, stepped: Tensor | None = None
    ) -> slice | Tensor:
        """As `PhaseAggregator.take`, without the clients whose messages are lost."""
        if isinstance(done, Failed):
            self._last_error = done.error
            if multiplicity.any() and done.error.client_id not in self._gone:
                self.errors.append(done.error)
            return slice(0, 0)
        lost, gone = torch.isin(client_ids, self._lost), torch.isin(client_ids, self._gone)
        sent, received = done.result, ~gone if len(self._lost) else None
        self.messages.add(sent.message, multiplicity.masked_fill(lost, 0), sent.metrics, received, stepped)
        return (~(gone if self.absences.keeps_states else lost)).nonzero()[:, 0]

    def placeholders(self, block: ClientBlock) -> Iterator[ClientBlock]:
        """Ghosts to run if all clients of this rank failed, until the structure of messages is known.

        Args:
            block: a block of the phase.

        Raises:
            ClientError: if every client fails: then the cause is not one client.
        """
        for client_id in range(self.num_clients):
            if not self.messages.is_empty:
                return
            alone = block.phase._replace(client_ids=torch.tensor([client_id], device=self.device))
            yield block._replace(phase=alone, multiplicity=torch.zeros_like(block.multiplicity[:1]))
        if self.messages.is_empty and self._last_error is not None:
            raise self.errors[0] if self.errors else self._last_error

    def agree(self) -> None:
        """Exchange failed clients between ranks, if failures are forgiven."""
        if not self.forgives:
            return
        found = torch.zeros(self.num_clients, dtype=torch.int64, device=self.device)
        for error in self.errors:
            found[error.client_id] = NOT_FINITE if isinstance(error, NotFiniteError) else FAILED
        found = all_reduce(found)
        self._failed = found.nonzero()[:, 0]
        self.non_finite, self.broken = ((found == code).nonzero()[:, 0] for code in (NOT_FINITE, FAILED))
        self._settle()


class PhaseState(NamedTuple):
    """A phase that has begun."""

    ctx: Context
    block: ClientBlock  # its first
    aggregator: PhaseAggregator  # so far


@dataclass
class RoundState:
    """State of an unfinished round; nothing is committed, so an interrupted round leaves no trace."""

    started: float = field(default_factory=time.perf_counter)
    shared: Tree = None  # after the last phase that ended
    phase: PhaseState | None = None  # under way
    traffic: list[PhaseTraffic] = field(default_factory=list)
    heard: list[Tensor] = field(default_factory=list)  # clients whose messages counted in the phases that ended
    unreliable: list[UnreliablePhase] = field(default_factory=list)  # phases that ended, if faults are on
    means: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # of each metric by phase, and its weight


def faults_in(phases: Sequence[UnreliablePhase]) -> RoundFaults:
    """Dropouts, late clients and failures of a finished round."""
    return RoundFaults(
        sum(one.absences.num_dropped for one in phases),
        sum(one.absences.num_late for one in phases),
        tuple(client_id for one in phases for client_id in one.non_finite.tolist()),
        tuple(client_id for one in phases for client_id in one.broken.tolist()),
        not any(len(one.heard.client_ids) for one in phases),
        tuple(str(error) for one in phases for error in one.errors),
    )
