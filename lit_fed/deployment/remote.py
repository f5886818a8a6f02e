"""The server's client trainer where clients are on nodes: it asks them, and hands on their answers in a block's order.

Accumulator, server step, commit, checkpoints and resume are those of every run; what is kept of a client's state here
is the version under which its node keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from lit_fed.clients import PredictJob, SequentialTrainer, TrainJob
from lit_fed.clients.base import Failed, Trained, check_finite
from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.errors import ClientError, ConfigError, NotFiniteError
from lit_fed.core.types import ClientResult, Message, Population, ServingBlock, Split, Tree
from lit_fed.deployment.facts import SPLITS
from lit_fed.deployment.fleet import Fleet, LostNodesError
from lit_fed.deployment.node import session_name
from lit_fed.deployment.settings import marks_of_start
from lit_fed.deployment.states import VersionStore
from lit_fed.deployment.wire import Packet, WireError, in_form, most_bytes
from lit_fed.metrics.chosen import ChosenMetrics
from lit_fed.rounds import FederatedRounds

__all__ = ["RemoteTrainer"]


class _Forms(NamedTuple):
    """What an answer has to look like."""

    message: Tree  # message and metrics of one client
    state: Tree


class RemoteTrainer:
    """Clients on nodes.

    Args:
        fleet: the nodes.
        rounds: the federation, whose store is a `VersionStore`.
        populations: seen and unseen clients.
        session: settings of the training and facts of its data, for JSON.
    """

    name = "remote"

    def __init__(
        self,
        fleet: Fleet,
        rounds: FederatedRounds,
        populations: tuple[Population, Population | None],
        session: dict[str, Any],
    ) -> None:
        self.fleet, self.rounds, self.populations, self.session = fleet, rounds, populations, session
        self._informed: set[str] = set()  # nodes that know the settings, unless their process is a new one

    def check(self, network: nn.Module) -> None:
        """The nodes check."""

    # ------------------------------------------------------------------ training
    def train(self, job: TrainJob) -> Iterator[Trained | Failed]:
        """Run a phase on the nodes of its clients; results come in the order of the block."""
        form = self._form(job)
        if job.block.is_ghost:
            yield Trained(slice(0, 1), _as_rows(form, -1), None)
            return
        ids, store, phase = job.block.phase.client_ids.tolist(), self._store, job.block.phase
        version = store.next_version()
        present = [] if job.ctx.present is None else job.ctx.present.nonzero()[:, 0].tolist()
        common = {
            "kind": "train", "phase": phase.name, "work": phase.work._asdict(), "version": version, "present": present,
            "draws": None if job.ctx.draws is None else job.ctx.draws.tolist(), "drawn_weight": job.ctx.drawn_weight,
        }  # fmt: skip
        each = {
            "versions": dict(zip(ids, job.states["versions"].tolist(), strict=True)),
            "multiplicity": dict(zip(ids, job.block.multiplicity.tolist(), strict=True)),
        }
        faults = self.rounds.faults
        deadline = None if faults is None or not job.drops_failures else faults.deadline
        answers = self._ask(job.ctx, job.shared, ids, common, each, form.message, job.drops_failures, deadline)
        for row, client_id in enumerate(ids):
            done = self._taken(job, client_id, row, version, form, answers.get(self.fleet.roster.node_of[client_id]))
            if isinstance(done, Failed) and not job.forgives(done.error):
                raise done.error
            yield done

    def _taken(
        self, job: TrainJob, client_id: int, row: int, version: int, form: _Forms, answer: Packet | None
    ) -> Trained | Failed:
        """What one client's node answered."""
        rows, node = slice(row, row + 1), self.fleet.roster.node_of[client_id]
        kind, stage, reason = "error", f"its node {node}", "did not answer in time"
        if answer is not None:
            failed = answer.facts.get("failed")
            told = failed.get(str(client_id)) if isinstance(failed, dict) else None
            try:
                if told is None:
                    leaves = [leaf.to(self._device) for leaf in answer.trees.get(str(client_id), [])]
                    result = _as_rows(form._replace(message=in_form(leaves, form.message)), version)
                    check_finite(result, torch.tensor([client_id]), job.ctx)
                    return Trained(rows, tree.map_leaves(lambda leaf: leaf.to(self._device), result), None)
                kind, stage, reason = (str(one)[:2000] for one in told)
            except NotFiniteError as error:
                return Failed(rows, error)
            except (WireError, ValueError) as error:
                reason = f"sends what cannot be used: {error}"
        which = NotFiniteError if kind == "not finite" else ClientError
        return Failed(rows, which(client_id, stage, job.ctx.round_idx, reason))

    def _form(self, job: TrainJob) -> _Forms:
        """What an answer has to look like: that of a client with one sample that takes no step."""
        facts, ctx = job.block.data, job.ctx
        client_id = torch.tensor([0], device=self._device)
        split = Split(
            facts.x.new_zeros(1, *facts.x.shape[1:]), facts.y.new_zeros(1, *facts.y.shape[1:]), torch.tensor([0, 1])
        )
        state = tree.map_leaves(
            lambda leaf: leaf.to(self._device).unsqueeze(0),
            job.algorithm.state_init(ctx, self.rounds.server.initial_shared, split.client(0)),
        )
        block = job.block._replace(
            phase=job.block.phase._replace(client_ids=client_id),
            multiplicity=torch.zeros(1, dtype=torch.float64),
            data=split,
        )
        ghost = TrainJob(job.algorithm, ctx, job.shared, block, state, None, job.batch_size)
        done = next(iter(SequentialTrainer().train(ghost)))
        assert isinstance(done, Trained)
        message = tree.index((tuple(done.result.message), done.result.metrics), 0)
        return _Forms(message, tree.index(done.result.state, 0))

    # ------------------------------------------------------------------ serving
    def predict(self, job: PredictJob) -> NoReturn:
        """Nothing: predictions stay with the clients.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "predictions of a federation's clients stay on their nodes; run `lit-fed personalize --ckpt_path "
            "last.ckpt` where the samples are"
        )

    def measure(
        self, block: ServingBlock, *, seen: bool, chosen: ChosenMetrics | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Let clients be served and measured on their nodes; their places [C] and rows of sums, [C, 3 + K]."""
        ids, rounds = block.client_ids.tolist(), self.rounds
        ctx, shared = rounds.context("adapt"), rounds.shared
        if not ids:
            return
        population = self.populations[0 if seen else 1]
        split = next(name for name in SPLITS if getattr(population, name).to(block.data.x.device) is block.data)
        versions = rounds.store.gather(block.client_ids)["state"]["versions"].tolist() if seen else [-1] * len(ids)
        common = {"kind": "measure", "phase": "adapt", "population": "seen" if seen else "unseen", "split": split}
        width = 3 + (0 if chosen is None else len(chosen))
        form = torch.zeros(len(ids), width, dtype=torch.float64)
        each = {"versions": dict(zip(ids, versions, strict=True))}
        answers = self._ask(ctx, shared, ids, common, each, form, may_drop=True, seconds=None)
        rows = torch.zeros(len(ids), width, dtype=torch.float64)
        for node, answer in answers.items():
            mine = [place for place, one in enumerate(ids) if self.fleet.roster.node_of[one] == node]
            try:
                rows[mine] = in_form(answer.trees.get("rows", []), [form[: len(mine)]])[0]
            except WireError as error:
                raise LostNodesError(f"node {node} sends measurements that cannot be used: {error}") from error
        yield block.rows, rows.to(self._device)

    # ------------------------------------------------------------------ packets
    def _ask(
        self,
        ctx: Context,
        shared: Tree,
        ids: list[int],
        common: dict[str, Any],
        each: dict[str, dict[int, Any]],
        form: Tree,
        may_drop: bool,
        seconds: float | None,
    ) -> dict[str, Packet]:
        """Ask the nodes of some clients."""
        rounds, store, roster = self.rounds, self._store, self.fleet.roster
        needed = store.needed(ids)
        common = common | {
            "run": int(store.run), "round": rounds.server.rounds_done,
            "horizon": rounds.schedule_rounds, "num_rounds": rounds.terms.num_rounds,
        }  # fmt: skip
        packets, sessions, most = {}, {}, {}
        sent = {one: rounds.algorithm.sent(ctx, shared, one) for one in ids}
        same = _is_same(list(sent.values()))
        for node in dict.fromkeys(roster.node_of[one] for one in ids):
            mine = [one for one in ids if roster.node_of[one] == node]
            own = {key: [values[one] for one in mine] for key, values in each.items()}
            stay = None if needed is None else {str(one): needed[one] for one in mine if one in needed}
            facts = common | own | {"clients": mine, "needed": stay}
            trees = (
                {"shared": tree.leaves(sent[mine[0]])}
                if same
                else {f"shared/{one}": tree.leaves(sent[one]) for one in mine}
            )
            settings = self.session | {"ids": roster.ids[node], "start": self._start}
            packets[node] = Packet(facts | {"session": session_name(settings)}, trees)
            sessions[node] = Packet(packets[node].facts | {"settings": settings}, trees)
            most[node] = most_bytes(form, len(mine))
        first = {node: packet for node, packet in sessions.items() if node not in self._informed}
        answers = self.fleet.ask(packets | first, most, may_drop=may_drop, seconds=seconds, sessions=sessions)
        self._informed |= answers.keys()
        return answers

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


def _as_rows(form: _Forms, version: int) -> ClientResult:
    """A client's result with an axis of clients, and the version of its state in the state's place."""
    message, metrics = tree.map_leaves(lambda leaf: leaf.unsqueeze(0), form.message)
    return ClientResult(Message(*message), {"versions": torch.tensor([version])}, metrics)


def _is_same(sent: list[Tree]) -> bool:
    """Whether all clients are sent the same tensors."""
    first = [id(leaf) for leaf in tree.leaves(sent[0])]
    return all([id(leaf) for leaf in tree.leaves(one)] == first for one in sent[1:])
