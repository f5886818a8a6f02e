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
from lit_fed.clients.base import Failed, Trained, check_finite, not_finite
from lit_fed.core import tree
from lit_fed.core.types import Population, ServingBlock
from lit_fed.deployment.facts import SPLITS
from lit_fed.deployment.fleet import Fleet
from lit_fed.deployment.forms import answer_form, versioned
from lit_fed.deployment.messages import Worked, kept_of_answer, rows_of_answer, worked_of_answer
from lit_fed.deployment.plausible import implausible_message, implausible_rows
from lit_fed.deployment.questions import Questions
from lit_fed.errors import ClientError, ConfigError, NotFiniteError, logged
from lit_fed.metrics.chosen import ChosenMetrics
from lit_fed.rounds import FederatedRounds
from lit_fed.wrappers.privacy.client_level import clips_messages

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
        if job.block.is_placeholder:
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
        deadline = phase.absences.deadline if phase.absences is not None and job.drops_failures else None
        answers = self.questions.ask(
            job.ctx, job.shared, ids, common, each, form, lambda answer, mine: worked_of_answer(answer, mine, form),
            job.drops_failures, deadline,
        )  # fmt: skip
        for row, client_id in enumerate(ids):
            done = self._taken(job, client_id, row, version, answers.get(self.roster.node_of[client_id]))
            if isinstance(done, Failed) and not job.forgives(done.error):
                raise done.error
            yield done

    def _taken(self, job: TrainJob, client_id: int, row: int, version: int, answer: Worked | None) -> Trained | Failed:
        """What one client's node answered."""
        rows, ctx, stage = slice(row, row + 1), job.ctx, f"its node {self.roster.node_of[client_id]}"
        if answer is None:
            return Failed(rows, ClientError(client_id, stage, ctx.round_idx, "gave no usable answer in time"))
        if (failure := answer.failed.get(client_id)) is not None:
            if failure.is_not_finite:
                return Failed(rows, not_finite(client_id, failure.stage, ctx, "its message or state"))
            return Failed(rows, ClientError(client_id, failure.stage, ctx.round_idx, f"{failure.kind}; see {stage}"))
        sent = tree.map_leaves(lambda leaf: leaf.to(self._device), answer.sent[client_id])
        result = versioned(sent, version)
        try:
            check_finite(result, torch.tensor([client_id]), ctx)
        except NotFiniteError as error:
            return Failed(rows, error)
        count = int(self.populations[0].train.sizes[client_id])
        norm = self.questions.fleet.max_update_norm
        wrong = implausible_message(job.algorithm, ctx, job.shared, client_id, sent, count, norm)
        if wrong:
            return Failed(rows, ClientError(client_id, stage, ctx.round_idx, wrong))
        return Trained(rows, tree.map_leaves(lambda leaf: leaf.to(self._device), result), None)

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
        answers = self.questions.ask(
            ctx, self.rounds.shared, ids, common, each, form, kept_of_answer, may_drop=True, seconds=None
        )
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
        assert population is not None
        split = next(name for name in SPLITS if getattr(population, name).to(block.data.x.device) is block.data)
        versions = rounds.store.gather(block.client_ids)["state"]["versions"].tolist() if seen else [-1] * len(ids)
        common = {"kind": "measure", "phase": "adapt", "population": "seen" if seen else "unseen", "split": split}
        width = 3 + (0 if chosen is None else len(chosen))
        form = torch.zeros(width, dtype=torch.float64)
        each = {"versions": dict(zip(ids, versions, strict=True))}
        answers = self.questions.ask(
            ctx, shared, ids, common, each, form, lambda answer, mine: rows_of_answer(answer, mine, width),
            may_drop=True, seconds=None,
        )  # fmt: skip
        rows = torch.zeros(len(ids), width, dtype=torch.float64)
        for node, found in answers.items():
            mine = [place for place, one in enumerate(ids) if self.roster.node_of[one] == node]
            counts = getattr(population, split).sizes[population.train.positions(block.client_ids.cpu()[mine])]
            rows[mine] = self._believed(node, [ids[place] for place in mine], found, counts)
        self.questions.fleet.over = self._kept
        yield block.rows, rows.to(self._device)

    def _believed(self, node: str, ids: list[int], rows: Tensor, counts: Tensor) -> Tensor:
        """The rows of a node; where a client's cannot be true, the run ends, or goes on without it.

        Raises:
            ClientError: naming the client, unless nodes may be missing.
        """
        is_share = self.rounds.terms.task.target.metric == "accuracy"
        for place, wrong in implausible_rows(rows, counts, is_share=is_share).items():
            error = ClientError(ids[place], f"its node {node}", None, wrong)
            if self.questions.fleet.missing != "drop":
                raise error
            logged(f"{error}; it is left out of the measurement")
            rows[place] = 0
        return rows

    @property
    def _device(self) -> torch.device:
        return self.rounds.server.device
