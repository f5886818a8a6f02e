"""Aggregation of a phase: messages received, clients that failed, messages lost."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lit_fed.clients.base import Failed, Trained
from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.reduce import Accumulator, RunningMeans, all_reduce
from lit_fed.core.types import Absences, ClientBlock, PhaseTraffic, Reduced, RoundFaults, Tree
from lit_fed.errors import ClientError, NotFiniteError

__all__ = ["PhaseAggregator", "PhaseState", "Places", "RoundState", "faults_in", "heard_in"]

NOT_FINITE, FAILED = 1, 2
"""Codes by which ranks exchange failures of clients."""


class Places(NamedTuple):
    """Some clients of a phase and the positions of their rows on the ranks."""

    positions: Tensor  # [C] position of each row, rank after rank in the order in which clients run
    counts: list[int]  # rows of each rank
    client_ids: Tensor  # [C] of all ranks, ascending, without duplicates


class PhaseAggregator:
    """Messages of one rank in a phase; those of failed clients and lost messages are excluded.

    Args:
        reduce: how messages are reduced.
        slices: ids of each rank's clients, in the order in which they run.
        absences: clients whose messages are lost; None: none.
        num_clients: T.
        device: device of the messages.
        before: earlier phases of the round; clients that failed there are excluded.
    """

    def __init__(
        self, reduce: Literal["sum", "stack"], slices: Sequence[Tensor], absences: Absences | None, num_clients: int,
        device: torch.device, before: Sequence[PhaseAggregator] = (),
    ) -> None:  # fmt: skip
        self.messages = Accumulator(reduce)
        self.absences, self.num_clients, self.device = absences, num_clients, device
        self.forgives = absences is not None and absences.forgives
        self._keeps_states = absences is not None and absences.keeps_states
        self.errors: list[ClientError] = []
        self._last_error: ClientError | None = None
        self._slices = [one.to(device) for one in slices]
        self._failed = torch.zeros(0, dtype=torch.int64, device=device)
        self.non_finite = self.broken = self._failed
        self._gone = torch.cat([self._failed, *(one._failed for one in before)])
        self._lost = torch.cat([self._gone, self._failed if absences is None else absences.lost.to(device)])
        self._idle = self._failed

    def without_steps(self, client_ids: Tensor) -> None:
        """Exclude clients [c] that take no local step from training metrics."""
        self._idle = torch.cat([self._idle, client_ids.to(self.device)])

    def take(
        self, client_ids: Tensor, multiplicity: Tensor, done: Trained | Failed, placeholder: bool
    ) -> slice | Tensor:
        """Add the results of some clients [c]; returns the positions [c] whose new states are kept.

        Args:
            client_ids: the clients, [c].
            multiplicity: how often each counts, [c] float64.
            done: their results, or the failure of one.
            placeholder: whether only the structure of the message counts.
        """
        if isinstance(done, Failed):
            self._last_error = done.error
            if not placeholder and done.error.client_id not in self._gone:
                self.errors.append(done.error)
            return slice(0, 0)
        sent = done.result.message, done.result.metrics
        if placeholder:
            message, metrics = tree.zeros_like(sent)
            self.messages.add(message, multiplicity, metrics)
            return slice(0, 0)
        stepped = ~torch.isin(client_ids, self._idle) if len(self._idle) else None
        if not len(self._lost):
            self.messages.add(sent[0], multiplicity, sent[1], stepped=stepped)
            return slice(None)
        lost, gone = torch.isin(client_ids, self._lost), torch.isin(client_ids, self._gone)
        self.messages.add(sent[0], multiplicity.masked_fill(lost, 0), sent[1], ~gone, stepped)
        return (~(gone if self._keeps_states else lost)).nonzero()[:, 0]

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

    def reduce(self) -> tuple[Reduced, list[float], dict[str, tuple[float, float]]]:
        """Reduced messages, bits up and down, and means of metrics with their weights; frees the messages."""
        positions, counts, _ = self.heard
        reduced, bits, means = self.messages.reduce(positions, counts)
        self.messages = Accumulator(self.messages.kind)
        return reduced, bits.tolist(), means

    # ------------------------------------------------------------------ sets of clients
    @property
    def asked(self) -> Tensor:
        """Clients of the phase on all ranks, [C] ascending."""
        return torch.cat(self._slices).sort().values

    @property
    def wait(self) -> float | None:
        """Time the server waited for their work; None: until the slowest finished."""
        return None if self.absences is None else self.absences.wait

    @property
    def heard(self) -> Places:
        """Clients whose messages count."""
        return self._without(torch.cat([self._failed, self._lost]))

    @property
    def present(self) -> Tensor:
        """Mask of the clients whose messages count, [T] bool."""
        present = torch.zeros(self.num_clients, dtype=torch.bool, device=self.device)
        present[self.heard.client_ids] = True
        return present

    @property
    def kept(self) -> Places:
        """Clients whose new states are kept."""
        return self._without(torch.cat([self._failed, self._gone if self._keeps_states else self._lost]))

    def _without(self, gone: Tensor) -> Places:
        parts = [one[~torch.isin(one, gone)] for one in self._slices] if len(gone) else self._slices
        whole = torch.cat(parts)
        client_ids = whole.sort().values
        return Places(torch.searchsorted(client_ids, whole), [len(one) for one in parts], client_ids)


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
    ended: list[PhaseAggregator] = field(default_factory=list)  # of the phases that ended
    means: RunningMeans = field(default_factory=RunningMeans)


def heard_in(phases: Sequence[PhaseAggregator]) -> Tensor:
    """Clients whose messages counted in a finished round, [C] ascending, without duplicates."""
    found: Tensor = torch.cat([one.heard.client_ids for one in phases]).unique()
    return found


def faults_in(phases: Sequence[PhaseAggregator]) -> RoundFaults | None:
    """Dropouts, late clients and failures of a finished round; None if faults are off."""
    missed = [one.absences for one in phases if one.absences is not None]
    if not missed:
        return None
    return RoundFaults(
        sum(one.num_dropped for one in missed),
        sum(one.num_late for one in missed),
        tuple(client_id for one in phases for client_id in one.non_finite.tolist()),
        tuple(client_id for one in phases for client_id in one.broken.tolist()),
        not any(len(one.heard.client_ids) for one in phases),
        tuple(str(error) for one in phases for error in one.errors),
    )
