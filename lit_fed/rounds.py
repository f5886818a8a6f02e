"""A federated round, in plain PyTorch: Lightning's loop, the tests and programs without Lightning run this file.

    cohort -> phases -> blocks of clients -> their states -> client trainer -> messages, added up
           -> reduced over ranks -> server step -> commit
Between rounds, `lit_fed.serving` serves the clients; an example stands there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_fed.algorithms.base import Algorithm
from lit_fed.clients import ClientTrainer, SequentialTrainer, TrainJob, choose_trainer
from lit_fed.clients.store import ClientStore
from lit_fed.core import tree
from lit_fed.core.blocks import round_blocks
from lit_fed.core.context import Context
from lit_fed.core.demands import check_cohort
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.reduce import Accumulator, RunningMeans, as_shared
from lit_fed.core.server import InMemoryServer, Server
from lit_fed.core.task import Task
from lit_fed.core.types import ClientBlock, LocalWork, Phase, PhaseTraffic, RoundRecord, Split, Tree
from lit_fed.wrappers.around import innermost

__all__ = ["Federation", "RoundRecord", "start"]


@dataclass
class _Phase:
    """What has come in from the clients of a phase so far."""

    ctx: Context
    work: LocalWork
    slices: tuple[Tensor, ...]  # ids of each rank's clients
    client_ids: Tensor  # of all ranks, ascending, each once
    messages: Accumulator


@dataclass
class _Round:
    """What has happened of a round so far: none of it is committed, so a round that is cut off leaves no trace."""

    started: float = field(default_factory=time.perf_counter)
    shared: Tree = None  # after the last phase that ended
    phase: _Phase | None = None  # under way
    traffic: list[PhaseTraffic] = field(default_factory=list)
    client_ids: list[Tensor] = field(default_factory=list)
    means: RunningMeans = field(default_factory=RunningMeans)


class Federation:
    """An algorithm with its server and its clients.

    Args:
        algorithm: the algorithm.
        terms: what every client knows and no round changes; a phase fills in its name, the round and the rate.
        server: keeps the shared state.
        choose: the client trainer for a device.

    Attributes:
        store: the states of the seen clients; not set where only unseen clients are served.
        schedule_rounds: rounds that the learning rate's schedule is laid out for, where they are not all rounds.
    """

    store: ClientStore

    def __init__(
        self, algorithm: Algorithm, terms: Context, server: Server, choose: Callable[[torch.device], ClientTrainer]
    ) -> None:
        self.algorithm, self.terms, self.server, self._choose = algorithm, terms, server, choose
        self.name = type(innermost(algorithm)).__name__
        self.schedule_rounds: int | None = None
        self._round: _Round | None = None

    @cached_property
    def client_trainer(self) -> ClientTrainer:
        """Runs the clients; chosen when it is first needed, since the choice depends on the device."""
        return self._choose(self.server.device)

    @property
    def shared(self) -> Tree:
        """The shared state: within a round as the last phase left it."""
        return self.server.shared if self._round is None or self._round.shared is None else self._round.shared

    def context(self, phase: str, present: Tensor | None = None) -> Context:
        """What every client of a phase knows; `present` says which clients [T] take part in it."""
        round_idx, horizon = self.server.rounds_done, self.schedule_rounds or self.terms.num_rounds
        lr = self.terms.solver.lr_in(phase, round_idx, horizon).to(self.server.device)
        return self.terms._replace(task=self.server.task, lr=lr, round_idx=round_idx, phase=phase, present=present)

    def initial_state(self, train: Split, client_id: int) -> dict[str, Tree]:
        """What a client keeps before its first round: its state, and its optimizer's if that persists."""
        ctx, shared, data = self.context("init"), self.server.initial_shared, train.client(client_id)
        state = self.algorithm.state_init(ctx, shared, data)
        if not ctx.solver.persist_optimizer:
            return {"state": state}
        if client_id == 0:  # a fresh optimizer is the same for all: its shape is the algorithm's affair
            losses = SequentialTrainer().losses(ctx, shared, self.algorithm, data)
            self._fresh_optimizer = getattr(
                self.algorithm.client_init(ctx, shared, state, data, losses), "optimizer", None
            )
        return {"state": state, "optimizer": self._fresh_optimizer}

    # ------------------------------------------------------------------ a round
    def round(self, train: Split, client_ids: Sequence[int] | None = None, per_block: int = 1024) -> RoundRecord:
        """One round with some clients, by default all; one that stands twice counts twice."""
        ids = np.arange(train.num_clients) if client_ids is None else np.asarray(client_ids, dtype=np.int64)
        self.discard()
        for block in self.blocks(ids, train, clients_per_block=per_block):
            list(self.train_block(block.to(self.server.device)))
            if block.ends_phase:
                self.end_phase()
        return self.commit()

    def blocks(self, client_ids: np.ndarray, train: Split, **division: int) -> list[ClientBlock]:
        """One rank's blocks of the coming round with these clients [C]; `division` as of `round_blocks`.

        Raises:
            ConfigError: if the algorithm needs another cohort.
        """
        check_cohort(self.algorithm, self.name, client_ids, self.terms.num_clients)
        ids = torch.from_numpy(client_ids)
        phases = self.algorithm.phases(self.context("plan"), ids) or [Phase("train", ids, LocalWork())]
        return round_blocks(phases, train, batch_size=self.terms.batch_size, **division)

    def train_block(self, block: ClientBlock) -> Iterator[int]:
        """Run the clients of a block; yields how many more of them are done, as they are."""
        phase, ids = self._phase_of(block), block.phase.client_ids
        block, kept, ghost = block._replace(data=block.data.select(ids)), self.store.gather(ids), block.is_ghost
        job = TrainJob(
            self.algorithm, phase.ctx, self.shared, block, kept["state"], kept.get("optimizer"), self.terms.batch_size
        )
        for rows, result, optimizers in self.client_trainer.train(job):
            sent = result.message, block.multiplicity[rows], result.metrics
            phase.messages.add(*(tree.zeros_like(sent) if ghost else sent))  # of a ghost the form alone counts
            if not ghost:
                new = {"state": result.state, "optimizer": optimizers}
                self.store.stage(ids[rows], {name: new[name] for name in self.store.template})
                yield len(ids[rows])

    def _phase_of(self, block: ClientBlock) -> _Phase:
        """The phase of a block; its first block begins it, and perhaps a round."""
        self._round = self._round or _Round()
        if self._round.phase is None:
            client_ids = torch.cat(block.slices).sort().values.to(self.server.device)
            present = torch.zeros(self.terms.num_clients, dtype=torch.bool, device=client_ids.device)
            ctx = self.context(block.phase.name, present.index_fill_(0, client_ids, True))
            messages = Accumulator(self.algorithm.reduce)
            if block.phase.draws is not None:
                ctx = ctx._replace(draws=block.phase.draws.to(client_ids.device))
            self._round.phase = _Phase(ctx, block.phase.work, block.slices, client_ids, messages)
        return self._round.phase

    def end_phase(self) -> None:
        """Reduce the messages over ranks, give every rank the new client states, and take the server's step.

        The reduction is the only communication that the algorithm knows of; exchanging states is bookkeeping.
        """
        this = self._round
        assert this is not None
        assert this.phase is not None
        phase, ids, work = this.phase, this.phase.client_ids, this.phase.work
        positions = torch.searchsorted(ids, torch.cat(phase.slices).to(ids.device))
        counts = [len(one) for one in phase.slices]
        reduced, bits, means = phase.messages.reduce(positions, counts)
        self.store.exchange(positions, counts, ids)
        payloads = self.algorithm.num_payloads(phase.ctx, self.shared, len(ids)) if len(ids) else 0
        this.traffic.append(PhaseTraffic(len(ids), bool(work.epochs or work.steps), payloads, *bits.tolist()))
        this.client_ids.append(ids)
        weight = float(reduced.weight.sum())
        for name, value in zip(phase.messages.metric_names, means.tolist(), strict=True):
            this.means.add(name, value, weight)
        new = self.shared
        if weight or self.algorithm.steps_on_empty_rounds:
            new = self.algorithm.server_step(phase.ctx, self.shared, reduced, ids)
        this.shared, this.phase = as_shared(new, self.shared, self.name), None

    def commit(self) -> RoundRecord:
        """Write the staged shared and client states; from here on the round has happened."""
        this, ctx = self._round, self.context("plan")
        assert this is not None
        assert this.phase is None, "the server takes a step in every phase"
        self.server.commit(this.shared)
        self.store.commit()
        self._round = None
        up, down = (sum(getattr(one, name) for one in this.traffic) for name in ("bits_up", "bits_down"))
        return RoundRecord(
            ctx.round_idx, float(ctx.lr), torch.cat(this.client_ids).unique(), this.means.means, up, down,
            tuple(this.traffic), time.perf_counter() - this.started,
        )  # fmt: skip

    def discard(self) -> None:
        """Forget what an interrupted round left."""
        self._round = None
        self.store.discard()


def start(
    algorithm: Algorithm,
    task: Task,
    train: Split,
    *,
    solver: LocalSolver | None = None,
    client_trainer: str = "auto",
    **terms: Any,
) -> Federation:
    """A federation before its first round, in memory, where the samples of its clients lie.

    Args:
        algorithm: the algorithm.
        task: network and loss.
        train: training samples of all clients.
        solver: how clients train.
        client_trainer: how clients are run: `sequential`, `vectorized`, `debug` or `auto`.
        terms: other fields of `Context`, such as `batch_size`, `num_rounds`, `seed`.
    """
    device, solver = train.x.device, solver or LocalSolver()
    task = replace(task, frozen={name: leaf.to(device) for name, leaf in task.frozen.items()})
    sizes = {"num_clients": train.num_clients, "total_samples": train.num_samples}
    sizes["most_samples"] = int(train.sizes.max())
    fixed = {"seed": 0, "weighting": algorithm.default_weighting, "phase": "init", "round_idx": 0} | sizes | terms
    base = Context(task=task, solver=solver, lr=solver.lr_in("init", 0, terms.get("num_rounds", 1)).to(device), **fixed)
    shared = tree.map_leaves(lambda leaf: leaf.to(device), algorithm.shared_init(base))
    task = task.with_end(train.x[:2].cpu())
    choose = partial(choose_trainer, client_trainer, task.network)
    federation = Federation(algorithm, base._replace(task=task), InMemoryServer(task, shared, device), choose)
    federation.store = ClientStore(partial(federation.initial_state, train), train.num_clients).to(device)
    return federation
