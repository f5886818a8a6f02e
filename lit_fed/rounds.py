"""A federated round in plain PyTorch, used by Lightning's loop, tests and programs without Lightning.

    cohort -> phases -> blocks of clients -> their states -> client trainer -> messages, summed
           -> reduced over ranks -> server step -> commit
Between rounds, `lit_fed.serving` serves the clients; see there for an example.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lit_fed.clients.aggregation import PhaseAggregator, PhaseState, RoundState, UnreliablePhase, faults_in
from lit_fed.clients.base import ClientTrainer, Trained, TrainJob, plainly, sent_to
from lit_fed.clients.choose import choose_trainer
from lit_fed.clients.sequential import SequentialTrainer
from lit_fed.clients.store import ClientStore
from lit_fed.core import tree
from lit_fed.core.algorithm import Algorithm
from lit_fed.core.blocks import round_blocks
from lit_fed.core.context import Context
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.plan import steps_of
from lit_fed.core.reduce import as_shared
from lit_fed.core.task import Task
from lit_fed.core.types import (
    ClientBlock,
    ClientData,
    LocalWork,
    Phase,
    PhaseTraffic,
    Population,
    RoundRecord,
    Split,
    Tree,
)
from lit_fed.errors import ClientError, ConfigError, NotFiniteError
from lit_fed.wrappers.base import AlgorithmWrapper, innermost
from lit_fed.wrappers.mixture_start import with_start

__all__ = [
    "FederatedRounds", "InMemoryServer", "RoundRecord", "Server", "check_cohort", "fresh_optimizer", "idle",
    "in_memory", "start",
]  # fmt: skip


class FederatedRounds:
    """An algorithm with its server and its clients.

    Args:
        algorithm: the algorithm.
        terms: the context of all rounds; each phase fills in its name, round and learning rate.
        server: holds the shared state.
        choose: returns the client trainer for a device.

    Attributes:
        store: states of the seen clients; not set if only unseen clients are served.
        schedule_rounds: horizon of the learning-rate schedule; None: the number of rounds.
        selection: selects the clients of a round among candidates, see `lit_fed.serving.selected`; None: all of them.
        stored_mean: mean mixture weights of the seen clients, [M], where there is no store; None: unknown.
        reports: traffic of the candidates' reports ahead of the coming round; None: there were none.
        profile: makes the context in which an action is timed, from its name; in a run that of the trainer's profiler.
    """

    store: ClientStore
    profile: Callable[[str], AbstractContextManager[Any]] = nullcontext

    def __init__(
        self, algorithm: Algorithm, terms: Context, server: Server, choose: Callable[[torch.device], ClientTrainer]
    ) -> None:
        self.algorithm, self.terms, self.server, self._choose = algorithm, terms, server, choose
        self.name = type(innermost(algorithm)).__name__
        self.schedule_rounds: int | None = None
        self.stored_mean: Tensor | None = None
        self.selection: Any = None  # a rule of `--model.selection`, which its feature sets
        self.reports: PhaseTraffic | None = None
        self._round: RoundState | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the profiler, and the client trainer, which may hold connections or CUDA graphs; both are set."""
        return {name: value for name, value in self.__dict__.items() if name not in ("client_trainer", "profile")}

    @cached_property
    def client_trainer(self) -> ClientTrainer:
        """The client trainer, chosen on first use, since the choice depends on the device."""
        return self._choose(self.server.device)

    @property
    def shared(self) -> Tree:
        """The shared state; within a round, after its last phase."""
        return self.server.shared if self._round is None or self._round.shared is None else self._round.shared

    def context(self, phase: str, present: Tensor | None = None) -> Context:
        """The context of a phase; `present` [T] masks its clients."""
        round_idx, horizon = self.server.rounds_done, self.schedule_rounds or self.terms.num_rounds
        lr = self.terms.solver.lr_in(phase, round_idx, horizon).to(self.server.device)
        return self.terms._replace(
            lr=lr,
            round_idx=round_idx,
            phase=phase,
            present=present,
            horizon=self.terms.solver.schedule_rounds or horizon,
        )

    def initial_state(self, train: Split, client_id: int) -> dict[str, Tree]:
        """State of a client before its first round, with its optimizer state if that persists."""
        ctx, shared = self.context("init"), self.server.initial_shared
        data: Any = train.client(client_id) if self.algorithm.state_reads_data else _Anybody(self.name)
        state = self.algorithm.state_init(ctx, shared, data)
        if not ctx.solver.persist_optimizer:
            return {"state": state}
        if not hasattr(self, "_fresh_optimizer"):  # it is the same for all
            self._fresh_optimizer = fresh_optimizer(self.algorithm, ctx, shared, state, train.client(client_id))
        return {"state": state, "optimizer": self._fresh_optimizer}

    def new_store(self, train: Split, memory_bytes: float = math.inf) -> ClientStore:
        """A store of the clients' initial states; arguments as for `ClientStore`."""
        initial, alike = partial(self.initial_state, train), not self.algorithm.state_reads_data
        return ClientStore(initial, train.num_clients, memory_bytes, alike=alike)

    # ------------------------------------------------------------------ a round
    def round(self, train: Split, client_ids: Sequence[int] | None = None, per_block: int = 1024) -> RoundRecord:
        """One round with some clients, by default all; an id listed twice counts twice."""
        ids = np.arange(train.num_clients) if client_ids is None else np.asarray(client_ids, dtype=np.int64)
        self.discard()
        for block in self.blocks(ids, train, clients_per_block=per_block):
            list(self.train_block(block.to(self.server.device)))
            if block.ends_phase:
                self.end_phase()
        return self.commit()

    def blocks(self, client_ids: np.ndarray, train: Split, **division: int) -> list[ClientBlock]:
        """One rank's blocks of the next round with these clients [C]; `division` as for `round_blocks`.

        Raises:
            ConfigError: as `check_cohort`.
        """
        if self.algorithm.participation.needs_all_clients:
            check_cohort(self.name, client_ids, self.terms.num_clients)
        ids = torch.from_numpy(client_ids)
        phases = self.algorithm.phases(self.context("plan"), ids) or [Phase("train", ids, LocalWork())]
        return round_blocks(phases, train, batch_size=self.terms.batch_size, **division)

    def train_block(self, block: ClientBlock) -> Iterator[int]:
        """Run the clients of a block; yields the number of newly finished clients."""
        phase, ids, placeholder = self._phase_of(block), block.phase.client_ids, block.is_placeholder
        stepped = sent_to(~idle(phase.ctx, block.data, ids, block.phase.work), ids.device)  # nodes keep the samples
        block = block._replace(data=block.data.select(ids))
        whole = TrainJob(self.algorithm, phase.ctx, self.shared, block, None, None, phase.aggregator.forgives)
        for rows in self.store.portions(len(ids)):  # clients whose states fit into memory together
            kept = self.store.gather(ids[rows])
            job = whole.part(rows)._replace(states=kept["state"], optimizers=kept.get("optimizer"))
            for done in self.client_trainer.train(job):
                some, times = ids[rows][done.rows], block.multiplicity[rows][done.rows]
                if placeholder:
                    phase.aggregator.take(some, times, done.form if isinstance(done, Trained) else done)
                    continue
                taken = phase.aggregator.take(some, times, done, stepped[rows][done.rows])
                if isinstance(done, Trained) and len(some[taken]):
                    new = {"state": done.result.state, "optimizer": done.optimizers}
                    self.store.stage(some[taken], tree.index({name: new[name] for name in kept}, taken))
                yield len(some)

    def idle_clients(self, train: Split) -> str:
        """A notice about clients that never take a local step; "" if there are none.

        Raises:
            ConfigError: if all batches are too small for BatchNorm, or as `try_client`.
        """
        if self.terms.task.own is not None and len(train.x):
            self.try_client(train)
        ids = torch.arange(train.num_clients)
        works = [one.work for one in self.algorithm.phases(self.context("plan"), ids)]
        works = [one for one in works if one.is_training]
        if not works:
            return ""
        number = int(torch.stack([idle(self.terms, train, ids, work) for work in works]).all(0).sum())
        wants_steps, smallest = any(work.trains for work in works), self.terms.task.smallest_batch
        if number == len(ids) and wants_steps:
            sizes = self.terms.batch_sizes_of(ids.tolist())
            most = min(int(sizes.max()) if sizes.all() else self.terms.most_samples, self.terms.most_samples)
            raise ConfigError(
                f"no client can take a local step: BatchNorm needs {smallest} samples in a batch, and the largest has "
                f"{most}; give a --data.batch_size and client_batch_size of {smallest} or more, clients with more "
                "samples, or a network without BatchNorm"
            )
        why = f"BatchNorm needs {smallest} samples in a batch" if wants_steps else "no local epochs are asked for"
        said = f"{number:,} of {len(ids):,} clients can never take a local step, since {why}; they take no part in the "
        return f"{said}training loss" if number else ""

    def try_client(self, train: Split) -> None:
        """Let the client with most samples take a step of each phase, and drop the results.

        For networks with steps of their own: what cannot train is refused before the first round.

        Raises:
            ConfigError: saying what cannot be.
        """
        one = int(train.sizes.argmax())
        ids, plan = torch.tensor([one]), self.context("plan")
        state = tree.map_leaves(lambda leaf: leaf.unsqueeze(0), self.initial_state(train, one))
        phases = self.algorithm.phases(plan, torch.arange(plan.num_clients))
        for position, phase in enumerate(phases):
            few = phase._replace(client_ids=ids, work=phase.work.with_one_step, draws=None, absences=None)
            block = ClientBlock(few, torch.ones(1, dtype=torch.float64), train.select(ids)).to(self.server.device)
            job = TrainJob(self.algorithm, self.context(phase.name), self.shared, block, state["state"], None)
            try:
                with plainly():
                    list(self.client_trainer.train(job))
            except NotFiniteError:  # which a round says better
                continue
            except ClientError as error:
                if not position:  # later phases may need what the server makes of the first
                    raise ConfigError(f"a trial step of the client with most samples fails: {error}") from error

    @property
    def mean_mixture(self) -> Tensor | None:
        """Mean mixture weights of the seen clients, [M]; None where they are unknown, as on a client's machine."""
        store = getattr(self, "store", None)
        if not getattr(store, "has_mixtures", False):  # there is none, or it has a checkpoint's rows
            return self.stored_mean
        mean: Tensor = store.mixture_weights.mean(0)  # type: ignore[union-attr]
        return mean

    @property
    def without_samples(self) -> str:
        """What serves an unseen client without training samples, in words; "": it is refused."""
        if self.algorithm.adapt_work(self.context("adapt"), False) is None:
            return "the shared model"
        if self.algorithm.mean_mixture and (self.algorithm.hides_cohort or self.mean_mixture is None):
            return "equal weights of all components"
        return self.algorithm.without_samples

    def check_unseen(self, unseen: Population | None, *, seen: bool = False) -> None:
        """Refuse unseen clients without training samples if the algorithm adapts before serving.

        Args:
            unseen: the clients.
            seen: they took part in the training, and have states.

        Raises:
            ConfigError: naming the first of them.
        """
        if unseen is None or int(unseen.train.sizes.min()):
            return
        local = not seen and getattr(self.algorithm, "adapts_statistics", False)
        adapts = self.algorithm.adapt_work(self.context("adapt"), seen) is not None
        if local or (adapts and not self.algorithm.without_samples):
            name, how = unseen.names[int(unseen.train.sizes.argmin())], " with local BatchNorm" * local
            raise ConfigError(
                f"{'' if seen else 'un'}seen client {name!r} has no training samples, and {self.name}{how} adapts to "
                "those of each client before it serves it; add some with a label, or choose one that serves it "
                "without, such as FedEM"
            )

    def _phase_of(self, block: ClientBlock) -> PhaseState:
        """The phase of a block; the first block starts the phase, and the round if needed."""
        self._round = this = self._round or RoundState()
        if this.phase is None:
            named, device, reduce = block.phase, self.server.device, self.algorithm.message.reduce
            among = (reduce, block.slices, device, self.terms.num_clients)
            aggregator = (
                PhaseAggregator(*among) if named.absences is None
                else UnreliablePhase(*among, named.absences, this.unreliable)
            )  # fmt: skip
            ctx = self.context(named.name, aggregator.present)
            if named.draws is not None:
                ctx = ctx._replace(draws=named.draws.to(device))
            if named.absences is not None:
                ctx = ctx._replace(drawn_weight=named.absences.drawn_weight(block.data.sizes, ctx.weighting))
            this.phase = PhaseState(ctx, block, aggregator)
        return this.phase

    def end_phase(self) -> None:
        """Reduce messages over ranks, exchange new client states, and take the server step.

        The reduction is the algorithm's communication; exchanging states is bookkeeping.
        """
        this = self._round
        assert this is not None
        assert this.phase is not None
        ctx, block, aggregator = this.phase
        if isinstance(aggregator, UnreliablePhase):
            for placeholder in aggregator.placeholders(block):
                list(self.train_block(placeholder))
            aggregator.agree()
            ctx = ctx._replace(present=aggregator.present)
        (positions, counts, heard), asked = aggregator.heard, aggregator.asked
        with self.profile("[Federation]communication"):
            reduced, bits, means = aggregator.messages.reduce(positions, counts)
            self.store.exchange(*aggregator.kept)
        payloads = self.algorithm.num_payloads(ctx, self.shared, len(asked)) if len(asked) else 0
        up, down = bits.tolist()
        wait = getattr(block.phase.absences, "wait", None)
        this.traffic.append(PhaseTraffic(len(asked), block.phase.work.trains, payloads, up, down, wait))
        logged = () if ctx.task.own is None else ctx.task.own.names or ()  # perhaps by some clients only
        for name, (mean, of_weight) in means.items():
            if of_weight and not (name in logged and math.isnan(mean)):
                this.means.setdefault(name, []).append((mean, of_weight))
        steps = float(reduced.weight.sum()) or self.algorithm.participation.steps_on_empty_rounds
        shared = self.shared
        if isinstance(self.algorithm, AlgorithmWrapper) and len(asked):
            shared = self.algorithm.charge(ctx, shared, asked, bool(tree.leaves(reduced.value)))
        with self.profile("[Federation]server_step"):
            new = self.algorithm.server_step(ctx, shared, reduced, heard) if steps else shared
        this.shared, this.phase = as_shared(new, self.shared, self.name), None
        this.heard.append(heard)
        if isinstance(aggregator, UnreliablePhase):
            del aggregator.messages  # frees them
            this.unreliable.append(aggregator)

    def commit(self) -> RoundRecord:
        """Commit the staged shared and client states."""
        this, ctx = self._round, self.context("plan")
        assert this is not None
        assert this.phase is None, "the server takes a step in every phase"
        self.store.commit()  # before the server overwrites models of which client states may be views
        self.server.commit(this.shared)
        traffic = (*this.traffic,) if self.reports is None else (self.reports, *this.traffic)
        self._round = self.reports = None
        up, down = (sum(getattr(one, name) for one in traffic) for name in ("bits_up", "bits_down"))
        means = {name: parts[0][0] if len(parts) == 1 else _mean(parts) for name, parts in this.means.items()}
        return RoundRecord(
            ctx.round_idx, float(ctx.lr), torch.cat(this.heard).unique(), means, up, down, traffic,
            time.perf_counter() - this.started, faults_in(this.unreliable) if this.unreliable else None,
        )  # fmt: skip

    def discard(self) -> None:
        """Drop the staged state of an interrupted round."""
        self._round = None
        self.store.discard()


def _mean(parts: Sequence[tuple[float, float]]) -> float:
    """The mean of the means of several phases by their weights."""
    return sum(mean * weight for mean, weight in parts) / sum(weight for _, weight in parts)


def start(
    algorithm: Algorithm, task: Task, train: Split, *, solver: LocalSolver | None = None, client_trainer: str = "auto",
    **terms: Any,
) -> FederatedRounds:  # fmt: skip
    """A federation before its first round, in memory, on the device of its samples.

    Args:
        algorithm: the algorithm.
        task: network and loss.
        train: training samples of all clients.
        solver: the local solver.
        client_trainer: how clients run: `sequential`, `vectorized`, `debug` or `auto`.
        terms: other fields of `Context`, such as `batch_size`, `num_rounds`, `seed`.
    """
    solver, algorithm = solver or LocalSolver(), with_start(algorithm)
    sizes: dict[str, Any] = {
        "num_clients": train.num_clients,
        "total_samples": train.num_samples,
        "most_samples": int(train.sizes.max()),
        "sizes": train.sizes,
        "secret": None if (privacy := getattr(algorithm, "privacy", None)) is None else privacy.secret(),
    }
    if task.target.partly_labelled:
        sizes["total_samples"] = int(task.target.counted(train.y, train.y.new_ones(len(train.y))).sum())
    fixed: dict[str, Any] = {"seed": 0, "weighting": algorithm.participation.weighting, "phase": "init", "round_idx": 0}
    fixed |= {"num_rounds": 1, "batch_size": 0, "groups": None} | sizes | terms
    base = Context(task=task, solver=solver, lr=solver.lr_in("init", 0, fixed["num_rounds"]), **fixed)
    shared, task = algorithm.shared_init(base), task.with_end(train.x[:2].cpu())
    choose = partial(choose_trainer, client_trainer, task.network)
    return in_memory(algorithm, base._replace(task=task), shared, choose, train)


def in_memory(
    algorithm: Algorithm, terms: Context, shared: Tree, choose: Callable[[torch.device], ClientTrainer], train: Split,
    memory_bytes: float = math.inf,
) -> FederatedRounds:  # fmt: skip
    """A federation before its first round whose server is in memory, on the device of its samples.

    Args:
        algorithm: the algorithm.
        terms: the context of all rounds.
        shared: the initial shared state.
        choose: returns the client trainer for a device.
        train: training samples of all clients.
        memory_bytes: as of `ClientStore`.
    """
    device, task = train.x.device, terms.task
    task = replace(task, frozen={name: leaf.to(device) for name, leaf in task.frozen.items()})
    shared = tree.map_leaves(lambda leaf: leaf.to(device), shared)
    federation = FederatedRounds(algorithm, terms._replace(task=task), InMemoryServer(shared, device), choose)
    federation.store = federation.new_store(train, memory_bytes).to(device)
    return federation


def check_cohort(name: str, client_ids: np.ndarray, num_clients: int) -> None:
    """Refuse a cohort with missing or repeated clients, for an algorithm that needs all of them.

    Args:
        name: the algorithm's name, for the message.
        client_ids: the cohort of a round, [C].
        num_clients: number of clients.

    Raises:
        ConfigError: naming the algorithm and the number of sampled clients.
    """
    drawn, draws = len(np.unique(client_ids)), len(client_ids)
    if not drawn == draws == num_clients:
        repeats = f" in {draws} draws" if draws > drawn else ""
        raise ConfigError(
            f"{name} needs every client in every round, and {drawn} of {num_clients} are drawn{repeats}; leave out "
            "--data.client_fraction and --data.clients_per_round, and sample uniformly"
        )


class Server(Protocol):
    """Holds the shared state, in memory or as parameters of a module, and counts rounds."""

    @property
    def initial_shared(self) -> Tree:
        """The shared state before the first round."""

    @property
    def shared(self) -> Tree:
        """The shared state after the last complete round."""

    @property
    def rounds_done(self) -> int:
        """Complete rounds."""

    @property
    def device(self) -> torch.device:
        """Device of the shared state."""

    def commit(self, shared: Tree) -> None:
        """Set the shared state after another round."""


class InMemoryServer:
    """A server whose state is an attribute.

    Args:
        shared: the initial shared state.
        device: its device.
    """

    def __init__(self, shared: Tree, device: torch.device) -> None:
        self.initial_shared, self.shared, self.device = shared, shared, device
        self.rounds_done = 0

    def commit(self, shared: Tree) -> None:
        """Set the shared state after another round."""
        self.shared, self.rounds_done = shared, self.rounds_done + 1


class _Anybody:
    """Placeholder for the data of a client whose algorithm says that its state reads none; reading it is an error."""

    def __init__(self, algorithm: str) -> None:
        self.algorithm = algorithm

    def __getattr__(self, name: str) -> Any:
        raise ConfigError(
            f"{self.algorithm}.state_init reads data.{name}, so clients do not start alike; write "
            "`state_reads_data: ClassVar[bool] = True` in the class"
        )


def idle(ctx: Context, train: Split, client_ids: Tensor, work: LocalWork) -> Tensor:
    """Mask of the clients [C] without a step in this local work, [C] bool; none if it is no training."""
    sizes = train.sizes[train.positions(client_ids)].numpy()
    batches = ctx.batch_sizes_of(client_ids.tolist())
    return torch.from_numpy((steps_of(sizes, work, batches, ctx.task.smallest_batch) == 0) & work.is_training)


def fresh_optimizer(algorithm: Algorithm, ctx: Context, shared: Tree, state: Tree, data: ClientData) -> Tree:
    """The initial optimizer state in the algorithm's structure, from any client's initial state; None if unused."""
    losses = SequentialTrainer().losses(ctx, shared, algorithm, data)
    there = tree.map_leaves(lambda leaf: leaf.to(data.mask.device), state)
    return getattr(algorithm.client_init(ctx, shared, there, data, losses), "optimizer", None)
