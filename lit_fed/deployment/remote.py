"""The server's client trainer for clients on nodes: it asks the nodes, and yields their answers in a block's order.

Accumulator, server step, commit, checkpoints and resume are those of every run. In place of a client's state the server
stores the version under which the client's node keeps it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from lit_fed.clients import PredictJob, SequentialTrainer, TrainJob
from lit_fed.clients.base import Failed, Trained, check_finite, not_finite
from lit_fed.clients.store import ClientStore
from lit_fed.clients.store_files import CheckpointIndex
from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.types import ClientResult, Message, Population, ServingBlock, Split, Tree
from lit_fed.deployment.messages import (
    SETS,
    SPLITS,
    Worked,
    kept_of_answer,
    marks_of_start,
    rows_of_answer,
    session_name,
    worked_of_answer,
)
from lit_fed.deployment.node_pool import Most, NodePool
from lit_fed.deployment.wire import Packet
from lit_fed.errors import ClientError, ConfigError, NotFiniteError, logged
from lit_fed.metrics.chosen import ChosenMetrics
from lit_fed.metrics.scores import ClientScores
from lit_fed.rounds import FederatedRounds
from lit_fed.system.readers import MOST_FLOAT
from lit_fed.wrappers.deltas import delta_of, reference_of

__all__ = ["RemoteTrainer", "VersionStore", "implausible_message", "implausible_rows"]

HEADER_BYTES = 65_536
"""Room for the header of an answer, beside the part that grows with its leaves."""

MOST_BITS = 2.0**53
"""Of a message: a whole number in float64."""


class VersionStore(ClientStore):
    """The version of each client's state, −1 for a client that has never trained.

    Versions never repeat, even after kills and restarts: each process of the server counts from a random number.
    """

    run: Tensor  # [] int64, by which the nodes name the run's folder of states
    versions: Tensor  # [T] int64
    holds_states = False

    def __init__(self, num_clients: int) -> None:
        super().__init__(lambda _: {"state": {"versions": torch.tensor(-1)}}, num_clients)
        self._trained.fill_(True)  # checkpoints hold the whole index, by which the nodes' files are found
        self.register_buffer("run", torch.tensor(secrets.randbits(62)))
        self._next = _first_version()
        self._checkpoints: CheckpointIndex | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Draw a new first version, since the pickling process may go on counting."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._next = _first_version()

    def next_version(self) -> int:
        """A version that no state has."""
        self._next += 1
        return self._next

    def open(self, folder: Path | None, root: Path, **_: Any) -> None:
        """Look for the checkpoints of the run, which need states of older versions."""
        self._checkpoints = None if folder is None else CheckpointIndex(folder)

    def needed(self, client_ids: list[int]) -> dict[int, list[int]] | None:
        """Versions of some clients that checkpoints or the current round refer to; None if unknown."""
        older = None if self._checkpoints is None else self._checkpoints.read()
        if older is None:
            return None
        client_ids = [one for one in client_ids if one < len(self.versions)]  # unseen ones have no state
        ids = torch.tensor(client_ids, dtype=torch.int64, device=self.versions.device)
        current = self.gather(ids)["state"]["versions"].cpu()
        indices = [*older, self.versions.cpu().numpy()]
        found = {one: {int(index[one]) for index in indices if one < len(index)} for one in client_ids}
        for one, version in zip(client_ids, current.tolist(), strict=True):
            found[one].add(version)
        return {one: sorted(version for version in versions if version >= 0) for one, versions in found.items()}


def _first_version() -> int:
    return secrets.randbits(30) << 32


class RemoteTrainer:
    """Asks the nodes of clients to train, measure or keep them.

    Args:
        pool: the nodes.
        rounds: the federation, whose store is a `VersionStore`.
        populations: seen and unseen clients.
        session: settings of the training and facts of its data, for JSON.
    """

    name = "remote"

    def __init__(
        self,
        pool: NodePool,
        rounds: FederatedRounds,
        populations: tuple[Population, Population | None],
        session: dict[str, Any],
    ) -> None:
        self.pool, self.rounds, self.populations, self.session = pool, rounds, populations, session
        self._informed: set[str] = set()  # nodes that know the settings, unless they were restarted
        self._forms: dict[str, Tree] = {}  # of a client's message and metrics, by the name of the phase
        self._kept = False

    def check(self, network: nn.Module) -> None:
        """Do nothing: the nodes check the network."""

    # ------------------------------------------------------------------ training
    def train(self, job: TrainJob) -> Iterator[Trained | Failed]:
        """Run a phase on the nodes of its clients; results come in the order of the block."""
        form = self._form(job)
        if job.block.is_placeholder:
            yield Trained(slice(0, 1), _versioned(form, -1), None)
            return
        self._kept = self.pool.over = False
        phase, version = job.block.phase, self._store.next_version()
        ids = phase.client_ids.tolist()
        # ε assumes a secret cohort where messages are clipped, and no algorithm allowed there reads `present`
        told = None if self.rounds.algorithm.hides_cohort else job.ctx.present
        common = {
            "kind": "train", "phase": phase.name, "version": version,
            "work": phase.work._asdict() | {"stages": [list(one) for one in phase.work.stages]},
            "present": [] if told is None else told.nonzero()[:, 0].tolist(),
            "draws": None if job.ctx.draws is None else job.ctx.draws.tolist(), "drawn_weight": job.ctx.drawn_weight,
        }  # fmt: skip
        each = {"versions": job.states["versions"].tolist(), "multiplicity": job.block.multiplicity.tolist()}
        deadline = phase.absences.deadline if phase.absences is not None and job.drops_failures else None
        answers = self._ask(
            job.ctx, job.shared, ids, common, each, form, lambda answer, mine: worked_of_answer(answer, mine, form),
            may_drop=job.drops_failures, seconds=deadline,
        )  # fmt: skip
        for row, client_id in enumerate(ids):
            done = self._taken(job, client_id, row, version, answers.get(self.pool.directory.node_of[client_id]))
            if isinstance(done, Failed) and not job.forgives(done.error):
                raise done.error
            yield done

    def _form(self, job: TrainJob) -> Tree:
        """The form of a client's message and metrics: those of a client with one sample and no local step."""
        if (name := job.block.phase.name) in self._forms:
            return self._forms[name]
        few, ids = job.block.data, torch.tensor([0], device=self._device)
        x, y = (like.new_zeros(1, *like.shape[1:]) for like in (few.x, few.y))
        split = Split(x, y, torch.tensor([0, 1]))
        first = job.algorithm.state_init(job.ctx, self.rounds.server.initial_shared, split.client(0))
        state = tree.map_leaves(lambda leaf: leaf.to(self._device).unsqueeze(0), first)
        phase, nothing = job.block.phase._replace(client_ids=ids), torch.zeros(1, dtype=torch.float64)
        block = job.block._replace(phase=phase, multiplicity=nothing, data=split)
        ghost = TrainJob(job.algorithm, job.ctx, job.shared, block, state, None)
        if (own := job.ctx.task.own) is not None:
            own.names = own.names or ()  # those that the nodes know, too
        done = next(iter(SequentialTrainer().train(ghost)))
        assert isinstance(done, Trained)
        form: Tree = tree.index((tuple(done.result.message), done.result.metrics), 0)
        return self._forms.setdefault(name, form)

    def _taken(self, job: TrainJob, client_id: int, row: int, version: int, answer: Worked | None) -> Trained | Failed:
        """The result of one client, from the answer of its node."""
        rows, ctx, stage = slice(row, row + 1), job.ctx, f"its node {self.pool.directory.node_of[client_id]}"
        if answer is None:
            return Failed(rows, ClientError(client_id, stage, ctx.round_idx, "gave no usable answer in time"))
        if (failure := answer.failed.get(client_id)) is not None:
            if failure.is_not_finite:
                return Failed(rows, not_finite(client_id, failure.stage, ctx, "its message or state"))
            return Failed(rows, ClientError(client_id, failure.stage, ctx.round_idx, f"{failure.kind}; see {stage}"))
        sent = tree.map_leaves(lambda leaf: leaf.to(self._device), answer.sent[client_id])
        result = _versioned(sent, version)
        try:
            check_finite(result, torch.tensor([client_id]), ctx)
        except NotFiniteError as error:
            return Failed(rows, error)
        count = int(self.populations[0].train.sizes[client_id])
        wrong = implausible_message(job.algorithm, ctx, job.shared, client_id, sent, count, self.pool.max_update_norm)
        if wrong:
            return Failed(rows, ClientError(client_id, stage, ctx.round_idx, wrong))
        return Trained(rows, tree.map_leaves(lambda leaf: leaf.to(self._device), result), None)

    def keep(self) -> None:
        """Let each node keep what serving its clients needs: the shared state as they are sent it, versions of states.

        Raises:
            LostNodesError: if a node that is needed does not answer.
        """
        seen, unseen = self.populations
        num_seen, num_unseen = seen.train.num_clients, 0 if unseen is None else unseen.train.num_clients
        versions = self._store.gather(torch.arange(num_seen, device=self._device))["state"]["versions"].tolist()
        answers = self._ask(
            self.rounds.context("adapt"), self.rounds.shared, list(range(num_seen + num_unseen)),
            {"kind": "keep", "phase": "adapt"}, {"versions": versions + [-1] * num_unseen}, torch.zeros(0),
            kept_of_answer,
        )  # fmt: skip
        if absent := sorted({*self.pool.directory.node_of.values()} - answers.keys()):
            logged(f"{', '.join(absent)} did not answer, and cannot serve clients after this training")
        self._kept = self.pool.over = True

    # ------------------------------------------------------------------ serving
    def predict(self, job: PredictJob) -> NoReturn:
        """Refuse: predictions stay on the nodes.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "predictions of a federation's clients stay on their nodes; run `lit-fed client predict` there"
        )

    def measure(
        self, block: ServingBlock, *, seen: bool, chosen: ChosenMetrics | None, sets: bool = False
    ) -> Iterator[tuple[Tensor, ClientScores]]:
        """Serve and measure clients on their nodes; their places [C] and results."""
        ids, rounds = block.client_ids.tolist(), self.rounds
        if not ids:
            return
        self.pool.over = False  # a test that fails is repeated with these nodes
        population = self.populations[0 if seen else 1]
        assert population is not None
        split = next(name for name in SPLITS if getattr(population, name).to(block.data.x.device) is block.data)
        versions = rounds.store.gather(block.client_ids)["state"]["versions"].tolist() if seen else [-1] * len(ids)
        asked = {"population": "seen" if seen else "unseen", "split": split, "sets": sets}
        common = {"kind": "measure", "phase": "adapt"} | asked
        names = SETS if sets else () if chosen is None else chosen.names
        width = 3 + len(names)
        answers = self._ask(
            rounds.context("adapt"), rounds.shared, ids, common, {"versions": versions},
            torch.zeros(width, dtype=torch.float64), lambda answer, mine: rows_of_answer(answer, mine, width),
        )  # fmt: skip
        rows = torch.zeros(len(ids), width, dtype=torch.float64)
        for node, found in answers.items():
            mine = [place for place, one in enumerate(ids) if self.pool.directory.node_of[one] == node]
            counts = getattr(population, split).sizes[population.train.positions(block.client_ids.cpu()[mine])]
            rows[mine] = self._believed(node, [ids[place] for place in mine], found, counts)
        self.pool.over = self._kept
        yield block.rows, ClientScores.of_rows(rows.to(self._device), names=names)

    def _believed(self, node: str, ids: list[int], rows: Tensor, counts: Tensor) -> Tensor:
        """The rows of a node, with zeros for clients whose row is implausible if nodes may be dropped.

        Raises:
            ClientError: naming the client, unless nodes may be dropped.
        """
        target = self.rounds.terms.task.target
        is_share, signed = target.metric == "accuracy", target.metric == "loss"
        partial = target.partly_labelled
        for place, wrong in implausible_rows(rows, counts, is_share=is_share, signed=signed, partial=partial).items():
            error = ClientError(ids[place], f"its node {node}", None, wrong)
            if self.pool.missing != "drop":
                raise error
            logged(f"{error}; it is left out of the measurement")
            rows[place] = 0
        return rows

    # ------------------------------------------------------------------ questions
    def _ask(
        self, ctx: Context, shared: Tree, ids: list[int], common: dict[str, Any], each: Mapping[str, list[Any]],
        form: Tree, read: Callable[[Packet, list[int]], Any], *, may_drop: bool = True, seconds: float | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """The answers of the nodes of some clients.

        Each question is complete, so any process of a node can answer it; only the settings are sent once.
        `each` holds lists of facts in the order of `ids`, `form` is that of a client's part of the answer, and `read`
        reads a node's answer about these of its clients, or raises `FormError`. See also `NodePool.ask`.
        """
        rounds, directory, needed = self.rounds, self.pool.directory, self._store.needed(ids)
        common = common | {
            "run": int(self._store.run), "round": rounds.server.rounds_done,
            "horizon": rounds.schedule_rounds, "num_rounds": rounds.terms.num_rounds,
        }  # fmt: skip
        packets, sessions, of_node = {}, {}, {}
        most: dict[str, Most] = {}
        sent = {one: rounds.algorithm.sent(ctx, shared, one) for one in ids}
        same = _is_same(list(sent.values()))
        places = {one: place for place, one in enumerate(ids)}
        for node in dict.fromkeys(directory.node_of[one] for one in ids):
            mine = [one for one in ids if directory.node_of[one] == node]
            own = {key: [values[places[one]] for one in mine] for key, values in each.items()}
            stay = None if needed is None else {str(one): needed[one] for one in mine if one in needed}
            facts = common | own | {"clients": mine, "needed": stay}
            names = {"shared": mine[0]} if same else {f"shared/{one}": one for one in mine}
            trees = {name: tree.leaves(sent[one]) for name, one in names.items()}
            own_ids = directory.ids[node]
            settings = self.session | {"ids": own_ids, "start": self._start, "solvers": self._solvers(own_ids)}
            packets[node] = Packet(facts | {"session": session_name(settings)}, trees)
            sessions[node] = Packet(packets[node].facts | {"settings": settings}, trees)
            most[node], of_node[node] = _most_of(form, len(mine)), mine
        first = {node: packet for node, packet in sessions.items() if node not in self._informed}
        answers = self.pool.ask(
            packets | first, most, lambda node, answer: read(answer, of_node[node]), may_drop=may_drop, seconds=seconds,
            sessions=sessions,
        )  # fmt: skip
        self._informed |= answers.keys()
        return answers

    def _solvers(self, ids: Mapping[str, int]) -> dict[str, dict[str, float]]:
        """Values of a node's clients for options of `BY_CLIENT`, by name; empty if they are common."""
        given, number = self.rounds.terms.of_clients, self.rounds.terms.num_clients
        of_name = {
            name: {option: float(one[idx]) for option, one in given.items()}
            for name, idx in ids.items()
            if idx < number
        }
        return of_name if given else {}

    @cached_property
    def _start(self) -> list[float]:
        return marks_of_start(self.rounds.algorithm, self.rounds.terms, self.rounds.server.initial_shared)

    @property
    def _store(self) -> VersionStore:
        store = self.rounds.store
        assert isinstance(store, VersionStore)
        return store

    @property
    def _device(self) -> torch.device:
        return self.rounds.server.device


def _is_same(sent: list[Tree]) -> bool:
    """Whether all clients are sent the same tensors."""
    first = [id(leaf) for leaf in tree.leaves(sent[0])]
    return all([id(leaf) for leaf in tree.leaves(one)] == first for one in sent[1:])


def _most_of(form: Tree, number: int) -> Most:
    """Maximum size of an answer with so many trees of a form."""
    leaves = tree.leaves(form)
    header = HEADER_BYTES + number * (256 + sum(64 + 24 * leaf.ndim for leaf in leaves))
    return Most(header + number * sum(leaf.numel() * leaf.element_size() for leaf in leaves), header)


def _versioned(message: Tree, version: int) -> ClientResult:
    """A client's message and metrics with an axis of clients, and in place of its state the version on its node."""
    sent, metrics = tree.map_leaves(lambda leaf: leaf.unsqueeze(0), message)
    return ClientResult(Message(*sent), {"versions": torch.tensor([version])}, metrics)


# ---------------------------------------------------------------------- numbers that a node cannot have computed
def implausible_message(
    algorithm: Any, ctx: Context, shared: Tree, client_id: int, sent: Tree, count: int, most_norm: float | None
) -> str:
    """The reason why a client's message and metrics are impossible; "" if there is none.

    `sent` is its message and metrics, without an axis of clients, `count` its training samples, as its node reported
    them at the start, and `most_norm` a bound on the norm of its update; None: that of float32.
    """
    message, metrics = Message(*sent[0]), sent[1]
    weight, most = float(message.weight), max(count, 1) if ctx.weighting == "samples" else 1
    if not 0 <= weight <= most:
        return f"its message has the weight {weight:g}, where at most {most} is possible"
    for bits in (message.bits_up, message.bits_down):
        if bits is not None and not 0 <= float(bits) <= MOST_BITS:
            return f"it reports {float(bits):g} bits"
    for name, value in metrics.items():
        if not float(value.double().abs()) <= MOST_FLOAT:
            return f"it reports {float(value):g} as {name}"
    norm = _norm(message.value)
    if not norm * norm <= MOST_FLOAT:
        return f"its message has the norm {norm:g}, whose square is no float32"
    if most_norm is None or not tree.leaves(message.value):
        return ""
    received = algorithm.received(ctx, algorithm.sent(ctx, shared, client_id), client_id)
    norm = _norm(delta_of(message.value, reference_of(algorithm, received, message.value)))
    too_long = f"its update has the norm {norm:g}, and --data.dataset.max_update_norm is {most_norm:g}"
    return "" if norm <= most_norm else too_long


def implausible_rows(
    rows: Tensor, counts: Tensor, *, is_share: bool, signed: bool = False, partial: bool = False
) -> dict[int, str]:
    """The reasons why measurements are impossible, by the place of the client.

    Args:
        rows: number of samples, Σ loss, Σ hits or squared errors, and other metrics, NaN where undefined, [C, 3 + K].
        counts: samples of each client, as its node reported them at the start, [C].
        is_share: hits are counted, at most one for each sample.
        signed: in their place stand losses, which may be negative.
        partial: samples without a label do not count.
    """
    found = {}
    for place, (row, count) in enumerate(zip(rows.tolist(), counts.tolist(), strict=True)):
        number, loss, score, *others = row
        if number != count and not (partial and 0 <= number < count):
            found[place] = f"it measured {number:g} samples, and its node told {count} at the start"
        elif not abs(loss) <= count * MOST_FLOAT:
            found[place] = f"it measured the loss {loss:g} in sum over {count} samples"
        elif not -signed * count * MOST_FLOAT <= score <= count * (1 + 1e-6 if is_share else MOST_FLOAT):
            found[place] = f"it measured {score:g} {'hits' if is_share else 'as squared error'} in {count} samples"
        elif any(MOST_FLOAT < abs(one) < float("inf") for one in others):
            found[place] = "a metric of it is no float32"
    return found


def _norm(value: Tree) -> float:
    """Euclidean norm over all leaves in float64."""
    parts = [torch.linalg.vector_norm(leaf.double()) for leaf in tree.leaves(value)]
    return float(torch.linalg.vector_norm(torch.stack(parts))) if parts else 0.0
