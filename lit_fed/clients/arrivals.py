"""What has come in from the clients of a phase, and who of them was lost on the way."""

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

__all__ = ["Arrivals", "PhaseUnderWay", "Places", "RoundUnderWay", "faults_in", "heard_in"]

NOT_FINITE, FAILED = 1, 2
"""How ranks tell each other of a client that failed."""


class Places(NamedTuple):
    """Some clients of a phase, and where their rows stand on the ranks."""

    positions: Tensor  # [C] for each row, rank after rank in the order in which clients run, its place among them
    counts: list[int]  # rows of each rank
    client_ids: Tensor  # [C] of all ranks, ascending, each once


class Arrivals:
    """Messages of one rank in a phase. Nothing is taken in from clients that are lost, and from those that fail.

    Args:
        reduce: how messages are added up.
        slices: ids of each rank's clients, in the order in which they run.
        absences: whose messages get lost; None: nobody's.
        num_clients: T.
        device: where the messages are.
        before: phases of the round that have ended; who failed there takes no part any more.
    """

    def __init__(
        self,
        reduce: Literal["sum", "stack"],
        slices: Sequence[Tensor],
        absences: Absences | None,
        num_clients: int,
        device: torch.device,
        before: Sequence[Arrivals] = (),
    ) -> None:
        self.messages = Accumulator(reduce)
        self.absences, self.num_clients, self.device = absences, num_clients, device
        self.forgives = absences is not None and absences.forgives
        self.errors: list[ClientError] = []
        self._last_error: ClientError | None = None
        self._slices = [one.to(device) for one in slices]
        self._failed = torch.zeros(0, dtype=torch.int64, device=device)
        self.non_finite = self.broken = self._failed
        self._gone = torch.cat([self._failed, *(one._failed for one in before)])
        self._lost = torch.cat([self._gone, self._failed if absences is None else absences.lost.to(device)])
        self._idle = self._failed

    def without_steps(self, client_ids: Tensor) -> None:
        """Note clients [c] that take no local step, though the phase asks for some: what they measure is of nothing."""
        self._idle = torch.cat([self._idle, client_ids.to(self.device)])

    def take(self, client_ids: Tensor, multiplicity: Tensor, done: Trained | Failed, ghost: bool) -> slice | Tensor:
        """Take in what some clients [c] returned; their places [c] whose new states are to be kept.

        Args:
            client_ids: the clients, [c].
            multiplicity: how often each counts, [c] float64.
            done: what they returned, or how one failed.
            ghost: whether the form of the message alone counts.
        """
        if isinstance(done, Failed):
            self._last_error = done.error
            if not ghost and done.error.client_id not in self._gone:
                self.errors.append(done.error)
            return slice(0, 0)
        sent = done.result.message, done.result.metrics
        if ghost:
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

    def ghosts(self, block: ClientBlock) -> Iterator[ClientBlock]:
        """Where all clients of this rank failed, ghosts to be run until the form of the messages is known.

        Args:
            block: one of the phase.

        Raises:
            ClientError: if no client at all can even begin: then it is not one client that is wrong.
        """
        for client_id in range(self.num_clients):
            if not self.messages.is_empty:
                return
            alone = block.phase._replace(client_ids=torch.tensor([client_id], device=self.device))
            yield block._replace(phase=alone, multiplicity=torch.zeros_like(block.multiplicity[:1]))
        if self.messages.is_empty and self._last_error is not None:
            raise self.errors[0] if self.errors else self._last_error

    def agree(self) -> None:
        """Tell all ranks which clients failed on any of them, where clients may."""
        if not self.forgives:
            return
        found = torch.zeros(self.num_clients, dtype=torch.int64, device=self.device)
        for error in self.errors:
            found[error.client_id] = NOT_FINITE if isinstance(error, NotFiniteError) else FAILED
        found = all_reduce(found)
        self._failed = found.nonzero()[:, 0]
        self.non_finite, self.broken = ((found == code).nonzero()[:, 0] for code in (NOT_FINITE, FAILED))

    def reduce(self) -> tuple[Reduced, list[float], dict[str, tuple[float, float]]]:
        """What the server sees, bits up and down, and means of metrics with their weights; the messages are let go."""
        positions, counts, _ = self.heard
        reduced, bits, means = self.messages.reduce(positions, counts)
        self.messages = Accumulator(self.messages.kind)
        return reduced, bits.tolist(), means

    # ------------------------------------------------------------------ who is where
    @property
    def asked(self) -> Tensor:
        """Clients that were asked to work, on all ranks, [C] ascending."""
        return torch.cat(self._slices).sort().values

    @property
    def wait(self) -> float | None:
        """How long the server waited for their work; None: until the slowest was done."""
        return None if self.absences is None else self.absences.wait

    @property
    def heard(self) -> Places:
        """Clients whose messages count."""
        return self._without(torch.cat([self._failed, self._lost]))

    @property
    def present(self) -> Tensor:
        """Of all clients those whose messages count, [T] bool."""
        present = torch.zeros(self.num_clients, dtype=torch.bool, device=self.device)
        present[self.heard.client_ids] = True
        return present

    @property
    def kept(self) -> Places:
        """Clients whose new states are kept."""
        return self._without(torch.cat([self._failed, self._gone if self._keeps_states else self._lost]))

    @property
    def _keeps_states(self) -> bool:
        return self.absences is not None and self.absences.keeps_states

    def _without(self, gone: Tensor) -> Places:
        parts = [one[~torch.isin(one, gone)] for one in self._slices] if len(gone) else self._slices
        whole = torch.cat(parts)
        client_ids = whole.sort().values
        return Places(torch.searchsorted(client_ids, whole), [len(one) for one in parts], client_ids)


class PhaseUnderWay(NamedTuple):
    """A phase under way."""

    ctx: Context
    block: ClientBlock  # its first
    arrivals: Arrivals  # what has come in so far


@dataclass
class RoundUnderWay:
    """What has happened of a round so far: none of it is committed, so a round that is cut off leaves no trace."""

    started: float = field(default_factory=time.perf_counter)
    shared: Tree = None  # after the last phase that ended
    phase: PhaseUnderWay | None = None  # under way
    traffic: list[PhaseTraffic] = field(default_factory=list)
    ended: list[Arrivals] = field(default_factory=list)  # of the phases that ended
    means: RunningMeans = field(default_factory=RunningMeans)


def heard_in(phases: Sequence[Arrivals]) -> Tensor:
    """Clients whose messages counted in a round that has ended, [C] ascending, each once."""
    found: Tensor = torch.cat([one.heard.client_ids for one in phases]).unique()
    return found


def faults_in(phases: Sequence[Arrivals]) -> RoundFaults | None:
    """Who was missed in the phases of a round that has ended; None if no client could be."""
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
