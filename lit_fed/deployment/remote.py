"""The server's client trainer where clients are on nodes: it asks them, and hands on their answers in a block's order.

Accumulator, server step, commit, checkpoints and resume are those of every run; what is kept of a client's state here
is the version under which its node keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from lit_fed.clients import PredictJob, TrainJob
from lit_fed.clients.base import Failed, Trained, check_finite
from lit_fed.core import tree
from lit_fed.core.errors import ClientError, ConfigError, NotFiniteError, logged
from lit_fed.core.types import Population, ServingBlock, Tree
from lit_fed.deployment.facts import SPLITS
from lit_fed.deployment.fleet import Fleet, LostNodesError
from lit_fed.deployment.forms import answer_form, in_form, versioned
from lit_fed.deployment.questions import Questions
from lit_fed.deployment.wire import Packet, WireError
from lit_fed.metrics.chosen import ChosenMetrics
from lit_fed.rounds import FederatedRounds
from lit_fed.wrappers.client_privacy import clips_messages

__all__ = ["RemoteTrainer"]


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
        self.rounds, self.populations, self.roster = rounds, populations, fleet.roster
        self.questions, self._kept = Questions(fleet, rounds, session), False

    def check(self, network: nn.Module) -> None:
        """The nodes check."""

    # ------------------------------------------------------------------ training
    def train(self, job: TrainJob) -> Iterator[Trained | Failed]:
        """Run a phase on the nodes of its clients; results come in the order of the block."""
        form = answer_form(job, self.rounds.server.initial_shared, self._device)
        if job.block.is_ghost:
            yield Trained(slice(0, 1), versioned(form, -1), None)
            return
        self._kept = self.questions.fleet.over = False
        ids, store, phase = job.block.phase.client_ids.tolist(), self.questions.store, job.block.phase
        version = store.next_version()
        # ε counts on it that nobody knows who else takes part, and no algorithm that it allows asks for that
        told = None if clips_messages(self.rounds.algorithm) else job.ctx.present
        present = [] if told is None else told.nonzero()[:, 0].tolist()
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
        answers = self.questions.ask(job.ctx, job.shared, ids, common, each, form, job.drops_failures, deadline)
        for row, client_id in enumerate(ids):
            done = self._taken(job, client_id, row, version, form, answers.get(self.roster.node_of[client_id]))
            if isinstance(done, Failed) and not job.forgives(done.error):
                raise done.error
            yield done

    def _taken(
        self, job: TrainJob, client_id: int, row: int, version: int, form: Tree, answer: Packet | None
    ) -> Trained | Failed:
        """What one client's node answered."""
        rows, node = slice(row, row + 1), self.roster.node_of[client_id]
        kind, stage, reason = "error", f"its node {node}", "did not answer in time"
        if answer is not None:
            failed = answer.facts.get("failed")
            told = failed.get(str(client_id)) if isinstance(failed, dict) else None
            try:
                if told is None:
                    leaves = [leaf.to(self._device) for leaf in answer.trees.get(str(client_id), [])]
                    result = versioned(in_form(leaves, form), version)
                    check_finite(result, torch.tensor([client_id]), job.ctx)
                    return Trained(rows, tree.map_leaves(lambda leaf: leaf.to(self._device), result), None)
                kind, stage, reason = (str(one)[:2000] for one in told)
            except NotFiniteError as error:
                return Failed(rows, error)
            except (WireError, ValueError) as error:
                reason = f"sends what cannot be used: {error}"
        which = NotFiniteError if kind == "not finite" else ClientError
        return Failed(rows, which(client_id, stage, job.ctx.round_idx, reason))

    def keep(self) -> None:
        """Let each node keep what serving its clients takes: the shared state as they are sent it, versions of states.

        Raises:
            LostNodesError: if a node that is needed does not answer.
        """
        (seen, unseen), store = self.populations, self.questions.store
        num_seen, num_unseen = seen.train.num_clients, 0 if unseen is None else unseen.train.num_clients
        versions = store.gather(torch.arange(num_seen, device=self._device))["state"]["versions"].tolist()
        each = {"versions": dict(enumerate(versions + [-1] * num_unseen))}
        common, form = {"kind": "keep", "phase": "adapt"}, torch.zeros(0)
        ctx, ids = self.rounds.context("adapt"), list(range(num_seen + num_unseen))
        answers = self.questions.ask(ctx, self.rounds.shared, ids, common, each, form, may_drop=True, seconds=None)
        if absent := sorted({*self.roster.node_of.values()} - answers.keys()):
            logged(f"{', '.join(absent)} did not answer, and cannot serve clients after this training")
        self._kept = self.questions.fleet.over = True

    # ------------------------------------------------------------------ serving
    def predict(self, job: PredictJob) -> NoReturn:
        """Nothing: predictions stay with the clients.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "predictions of a federation's clients stay on their nodes; run `lit-fed client predict` there"
        )

    def measure(
        self, block: ServingBlock, *, seen: bool, chosen: ChosenMetrics | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Let clients be served and measured on their nodes; their places [C] and rows of sums, [C, 3 + K]."""
        ids, rounds = block.client_ids.tolist(), self.rounds
        ctx, shared = rounds.context("adapt"), rounds.shared
        if not ids:
            return
        self.questions.fleet.over = False  # a test that fails is made again, with these nodes
        population = self.populations[0 if seen else 1]
        split = next(name for name in SPLITS if getattr(population, name).to(block.data.x.device) is block.data)
        versions = rounds.store.gather(block.client_ids)["state"]["versions"].tolist() if seen else [-1] * len(ids)
        common = {"kind": "measure", "phase": "adapt", "population": "seen" if seen else "unseen", "split": split}
        width = 3 + (0 if chosen is None else len(chosen))
        form = torch.zeros(len(ids), width, dtype=torch.float64)
        each = {"versions": dict(zip(ids, versions, strict=True))}
        answers = self.questions.ask(ctx, shared, ids, common, each, form, may_drop=True, seconds=None)
        rows = torch.zeros(len(ids), width, dtype=torch.float64)
        for node, answer in answers.items():
            mine = [place for place, one in enumerate(ids) if self.roster.node_of[one] == node]
            try:
                rows[mine] = in_form(answer.trees.get("rows", []), [form[: len(mine)]])[0]
            except WireError as error:
                raise LostNodesError(f"node {node} sends measurements that cannot be used: {error}") from error
        self.questions.fleet.over = self._kept
        yield block.rows, rows.to(self._device)

    @property
    def _device(self) -> torch.device:
        return self.rounds.server.device
