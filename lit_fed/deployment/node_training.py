"""A training under way, as a node sees it: the clients' functions run on their samples, and their states stay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lit_fed import serving
from lit_fed.clients import TrainJob
from lit_fed.clients.base import Failed
from lit_fed.clients.session import ModelSettings, Session
from lit_fed.core import tree
from lit_fed.core.seeds import Secret
from lit_fed.core.types import ClientBlock, LocalWork, Phase, ServingBlock, Tree
from lit_fed.deployment.forms import in_form
from lit_fed.deployment.node_data import NodeData
from lit_fed.deployment.session_facts import check_start, facts_from_json, marks_of_start
from lit_fed.deployment.states import NodeStates, node_key
from lit_fed.deployment.wire import Packet, WireError, digest_of_question
from lit_fed.errors import ClientError, NotFiniteError, logged
from lit_fed.metrics.selection import choose_metrics
from lit_fed.rounds import FederatedRounds, InMemoryServer

__all__ = ["NodeTraining"]


class NodeTraining:
    """A training under way, as this node sees it.

    Args:
        name: of its session.
        sent: the session as the server sends it.
        settings: of the training.
        data: the clients of this node.
        folder: for their states; the folder above it holds the node's key.
    """

    def __init__(self, name: str, sent: dict[str, Any], settings: ModelSettings, data: NodeData, folder: Path) -> None:
        self.name, self.sent = name, sent
        facts = facts_from_json(sent["facts"])
        data.check_types(facts)
        session = Session.of(settings, facts, device := torch.device("cpu"))
        is_private = settings.privacy is not None and settings.privacy.noise_seed is None
        steps = repr(session.algorithm), repr(session.terms.solver)  # which a server that is a program does not send
        self.secret = Secret(node_key(folder.parent)).for_("noise", name, *steps) if is_private else None
        check_start(sent["start"], marks_of_start(session.algorithm, session.terms, session.shared))
        self.server = InMemoryServer(session.terms.task, session.shared, device)
        self.rounds = FederatedRounds(session.algorithm, session.terms, self.server, session.choose)
        self.chosen = choose_metrics(settings.metrics, facts.target)
        self.splits = data.numbered(sent["ids"], sent["val_fraction"], sent["data_seed"])
        own = {kind: {sent["ids"][name]: name for name in one.names} for kind, one in data.populations.items()}
        train = {one: self.splits[kind]["train"] for kind, names in own.items() for one in names}
        self.names = {one: name for names in own.values() for one, name in names.items()}
        self.states = NodeStates(folder, lambda one: self.rounds.initial_state(train[one], one), self.names)
        self.rounds.store = self.states  # type: ignore[assignment] # the part of it that serving needs

    def prepare(self, question: Packet) -> tuple[list[int], dict[int, Tree]]:
        """Take over what the server says of the round; the clients, and what each of them is sent.

        Raises:
            WireError: if the question is not of this training.
        """
        facts, server = question.facts, self.server
        clients = facts["clients"]
        names = ["shared"] if "shared" in question.trees else [f"shared/{one}" for one in clients]
        if question.trees.keys() != set(names):
            raise WireError("the question is without the shared state of its clients")
        server.rounds_done = facts["round"]
        self.rounds.schedule_rounds = facts["horizon"]
        self.rounds.terms = self.rounds.terms._replace(num_rounds=facts["num_rounds"])
        ctx, algorithm = self.rounds.context(facts["phase"]), self.rounds.algorithm
        sent: dict[int, Tree] = {}
        for one, name in zip(clients, names, strict=False):
            form = algorithm.sent(ctx, server.initial_shared, one)
            sent[one] = algorithm.received(ctx, in_form(question.trees[name], form, shapes=False), one)
        if names == ["shared"]:  # in one tree, so that the clients may be trained together
            sent = dict.fromkeys(clients, sent[clients[0]])
        self.states.versions = dict(zip(clients, facts["versions"], strict=True))
        if facts["needed"] is not None:
            self.states.sweep(facts["needed"])
        return clients, sent

    def check(self, facts: dict[str, Any]) -> None:
        """Compare the clients of a question with those of this training.

        Raises:
            WireError: if they are others.
        """
        total, population = self.rounds.terms.num_clients, facts.get("population", "seen")
        mine = self.names.keys() if facts["kind"] == "keep" else set(self._numbers(population))
        if not mine >= set(facts["clients"]) or not self.names.keys() >= (facts["needed"] or {}).keys():
            raise WireError("the question is of clients that are not on this node")
        if any(one >= total for one in facts.get("present", ())) or len(facts.get("draws") or [0] * total) != total:
            raise WireError("the question is of more or fewer clients than the training has")

    def _numbers(self, population: str) -> list[int]:
        return self.splits[population]["train"].ids.tolist() if population in self.splits else []  # type: ignore[union-attr]

    def train(self, packet: Packet) -> Packet:
        """The work of a phase: messages go back, states stay."""
        self.check(facts := packet.facts)
        clients, sent = self.prepare(packet)
        if self.secret is not None:  # the same noise under another question could be subtracted from its answer
            self.rounds.terms = self.rounds.terms._replace(secret=self.secret.for_(digest_of_question(packet)))
        answers: dict[str, list[Tensor]] = {}
        failures: dict[str, list[str]] = {}
        for some in _alike(clients, sent):
            for client_id, done in self._run(facts, some, sent[some[0]]):
                if isinstance(done, ClientError):
                    logged(f"{self.names[client_id]}: {done}")
                    failures[str(client_id)] = _told(done)
                else:
                    answers[str(client_id)] = done
        return Packet({"clients": clients, "failed": failures}, answers)

    def _run(self, facts: dict[str, Any], clients: list[int], shared: Tree) -> list[tuple[int, Any]]:
        """What some clients that are sent the same make of it: leaves of message and metrics, or an error."""
        ids, terms = torch.tensor(clients), self.rounds.terms
        multiplicity = dict(zip(facts["clients"], facts["multiplicity"], strict=True))
        counts = torch.tensor([multiplicity[one] for one in clients], dtype=torch.float64)
        present = torch.zeros(terms.num_clients, dtype=torch.bool)
        present[torch.tensor(facts["present"], dtype=torch.int64)] = True
        ctx = self.rounds.context(facts["phase"], present)._replace(drawn_weight=facts["drawn_weight"])
        if facts["draws"] is not None:
            ctx = ctx._replace(draws=torch.tensor(facts["draws"]))
        block = ClientBlock(
            Phase(facts["phase"], ids, LocalWork(**facts["work"])), counts, self.splits["seen"]["train"]
        )
        kept = self.states.gather(ids)
        job = TrainJob(
            self.rounds.algorithm, ctx, shared, block, kept["state"], kept.get("optimizer"), terms.batch_size,
            drops_failures=True,
        )  # fmt: skip
        found: list[tuple[int, Any]] = []
        for done in self.rounds.client_trainer.train(job):
            rows = range(*done.rows.indices(len(clients)))
            if isinstance(done, Failed):
                found += [(clients[row], done.error) for row in rows]
                continue
            new = {"state": done.result.state, "optimizer": done.optimizers}
            for place, row in enumerate(rows):
                state = tree.index({name: new[name] for name in kept}, place)
                self.states.write(clients[row], facts["version"], state)
                answer = tree.index((tuple(done.result.message), done.result.metrics), place)
                found.append((clients[row], tree.leaves(answer)))
        return found

    def measure(self, packet: Packet) -> Packet:
        """Serve clients and measure them: sums go back, predictions and mixture weights stay."""
        self.check(facts := packet.facts)
        clients, sent = self.prepare(packet)
        rows = self.measured(clients, sent, facts["population"], facts["split"])
        told = torch.cat([rows[:, :3], rows[:, rows.shape[1] - len(self.chosen) :]], dim=1)
        return Packet({"clients": clients}, {"rows": [told]})

    def measured(self, clients: list[int], sent: dict[int, Tree], population: str, split: str) -> Tensor:
        """Rows of clients of one population that are served and measured, [C, 3 + M + K] as of `serving.measure`.

        Args:
            clients: their numbers.
            sent: what each of them is sent.
            population: `seen` or `unseen`.
            split: what they are measured on.
        """
        found = [
            rows
            for block in self.blocks(clients, sent, population, split)
            for _, rows in serving.measure(self.rounds, block, seen=population == "seen", chosen=self.chosen)
        ]
        return torch.cat(found)

    def blocks(self, clients: list[int], sent: dict[int, Tree], population: str, split: str) -> Iterator[ServingBlock]:
        """Clients in their order, those together that are sent the same; this is the shared state while one is served.

        Args:
            clients: their numbers.
            sent: what each of them is sent.
            population: `seen` or `unseen`.
            split: what is predicted.
        """
        splits = self.splits[population]
        for some in _alike(clients, sent):
            self.server.shared = sent[some[0]]
            yield ServingBlock(torch.tensor(some), torch.arange(len(some)), splits[split], splits["train"])


def _alike(clients: list[int], sent: dict[int, Tree]) -> list[list[int]]:
    """Clients in their order, those together that are sent the same."""
    if len({id(sent[one]) for one in clients}) == 1:
        return [clients]
    return [[one] for one in clients]


def _told(error: ClientError) -> list[str]:
    """What the server hears of a client that failed: names alone, whose texts are its own."""
    kind = "not finite" if isinstance(error, NotFiniteError) else "error"
    return [kind, error.stage, type(error.__cause__ or error).__name__]
