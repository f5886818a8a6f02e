"""A client's machine: its samples and its states never leave it.

It answers packets. Each of them is complete, but for the settings of the training, which are sent once and kept beside
the states; so a process may be killed at any time and another one answers the same packet again.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import sys
import traceback
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import lit_fed
from lit_fed import serving
from lit_fed.clients import TrainJob
from lit_fed.clients.base import Failed
from lit_fed.clients.session import ModelSettings, Session
from lit_fed.core import tree
from lit_fed.core.errors import ClientError, ConfigError, NotFiniteError
from lit_fed.core.machine.files import write_atomically
from lit_fed.core.server import InMemoryServer
from lit_fed.core.types import ClientBlock, LocalWork, Phase, Population, ServingBlock, Split, Tree
from lit_fed.data.data_sets.client_folder import check_alike, read_clients, to_population
from lit_fed.data.populations.splits import cut_validation
from lit_fed.deployment.facts import POPULATIONS, SPLITS, ClientFacts, NodeFacts
from lit_fed.deployment.settings import check_start, facts_from_json, marks_of_start, settings_from_json
from lit_fed.deployment.states import NodeStates, node_key
from lit_fed.deployment.wire import TYPES, Packet, WireError, from_bytes, in_form, to_bytes
from lit_fed.metrics.selection import choose_metrics
from lit_fed.rounds import FederatedRounds

__all__ = ["Node"]


class Node:
    """Answers what a server asks of the clients of one machine.

    Args:
        root: folder with `seen/*.npz`, and `unseen/*.npz` of clients that are served and never train, as of
            `ClientFolder`.
        states: folder for the states of clients, and for the key of this node's digests.
        trusted: modules whose classes the server may ask for beside those of lit_fed.
        settings: of the training, where server and node are given them by programs; None: the server sends them.

    Raises:
        ConfigError: naming what is wrong with the files.
    """

    def __init__(
        self, root: str | Path, states: str | Path, trusted: Sequence[str] = (), settings: ModelSettings | None = None
    ) -> None:
        self.root, self.states = Path(root).expanduser(), Path(states).expanduser()
        self._trusted, self._settings = tuple(trusted), settings
        clients = {kind: read_clients(self.root / kind) for kind in POPULATIONS if (self.root / kind).is_dir()}
        if not clients:
            raise ConfigError(
                f"{self.root}: no folder `seen` or `unseen` with a .npz file for each client; correct --data.root"
            )
        check_alike([one for some in clients.values() for one in some])
        self.populations = {kind: to_population(some) for kind, some in clients.items()}
        self._training: _Training | None = None

    def handle(self, data: bytes) -> bytes:
        """The answer to a packet; what goes wrong is an answer too, which says nothing of the samples."""
        try:
            packet = from_bytes(data)
            return to_bytes(self._answer(packet))
        except (WireError, ConfigError) as error:
            return to_bytes(Packet({"refused": str(error)}))
        except ClientError as error:
            sys.stderr.write(f"lit_fed: {error}\n")
            return to_bytes(Packet({"refused": f"{error.stage} of client {error.client_id} cannot be used"}))
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            said = f"{type(error).__name__}; the log of the node says more"
            return to_bytes(Packet({"refused": said}))

    def _answer(self, packet: Packet) -> Packet:
        kind = packet.facts.get("kind")
        if kind == "facts":
            return Packet({"version": lit_fed.__version__, "facts": self.facts.plain()})
        if kind not in ("train", "measure"):
            raise WireError(f"the server asks for {str(kind)[:20]!r}, which this version does not know")
        training = self._session_of(packet.facts)
        if training is None:
            return Packet({"needs": "session"})
        return training.train(packet) if kind == "train" else training.measure(packet)

    # ------------------------------------------------------------------ what the server may know of the data
    @cached_property
    def facts(self) -> NodeFacts:
        """Names, sizes, types, largest labels, and a digest that is keyed by this node's secret."""
        clients, digest = {}, hmac.new(node_key(self.states), digestmod=hashlib.blake2b)
        for kind, population in self.populations.items():
            splits = [getattr(population, name) for name in SPLITS]
            for split in splits:
                for tensor in (split.offsets, split.x, split.y):
                    digest.update(np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8).data)
            for position, name in enumerate(population.names):
                labels = population.train.client(position).y
                largest = None if labels.is_floating_point() else int(labels.max())
                sizes = tuple(int(split.sizes[position]) for split in splits)
                clients[name] = ClientFacts(kind, sizes, largest)  # type: ignore[arg-type] # three of them
        some = next(iter(self.populations.values())).train
        types = {which: _type_of(getattr(some, which)) for which in ("x", "y")}
        return NodeFacts(clients, types, digest.hexdigest()[:32])

    # ------------------------------------------------------------------ trainings
    def _session_of(self, facts: dict[str, Any]) -> _Training | None:
        """The training that a packet is about; None if the server has to send its settings first."""
        name, folder = str(facts["session"]), self.states / f"{int(facts['run']):x}"
        if self._training is not None and (self._training.name, self._training.states.folder) == (name, folder):
            return self._training
        kept, sent = folder / "session.json", facts.get("settings")
        if sent is None and kept.is_file():
            sent = json.loads(kept.read_text())
        if sent is None or session_name(sent) != name:
            return None
        settings = self._settings
        if settings is None:
            if sent["model"] is None:
                raise ConfigError("the server is a program that sends no settings; give `Node` those of its module")
            settings = settings_from_json(sent["model"], self._trusted)
        self._training = _Training(name, sent, settings, self.populations, folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, json.dumps(sent))
        return self._training


class _Training:
    """A training under way, as this node sees it.

    Args:
        name: of its session.
        sent: the session as the server sends it.
        settings: of the training.
        populations: the clients of this node.
        folder: for their states.
    """

    def __init__(
        self, name: str, sent: dict[str, Any], settings: ModelSettings, populations: dict[str, Population], folder: Path
    ) -> None:
        self.name = name
        facts = facts_from_json(sent["facts"])
        session = Session.of(settings, facts)
        check_start(sent["start"], marks_of_start(session.algorithm, session.terms, session.shared))
        self.server = InMemoryServer(session.terms.task, session.shared, torch.device("cpu"))
        self.rounds = FederatedRounds(session.algorithm, session.terms, self.server, session.choose)
        self.chosen = choose_metrics(settings.metrics, facts.target)
        self.splits = _numbered(populations, sent["ids"], sent["val_fraction"], sent["data_seed"])
        everyone = {
            sent["ids"][name]: self.splits[kind]["train"] for kind, one in populations.items() for name in one.names
        }
        self.states = NodeStates(folder, lambda one: self.rounds.initial_state(everyone[one], one), min(everyone))
        self.rounds.store = self.states  # type: ignore[assignment] # the part of it that serving needs

    def _prepare(self, packet: Packet) -> tuple[list[int], dict[int, Tree]]:
        """Take over what the server says of the round; the clients, and what each of them is sent."""
        facts, server = packet.facts, self.server
        server.rounds_done = facts["round"]
        self.rounds.schedule_rounds = facts["horizon"]
        self.rounds.terms = self.rounds.terms._replace(num_rounds=facts["num_rounds"])
        clients = [int(one) for one in facts["clients"]]
        self.states.versions = dict(zip(clients, facts["versions"], strict=True))
        if facts["needed"] is not None:
            self.states.sweep({int(one): versions for one, versions in facts["needed"].items()})
        ctx, algorithm = self.rounds.context(facts["phase"]), self.rounds.algorithm
        sent = {}
        for one in clients:
            leaves = packet.trees["shared" if "shared" in packet.trees else f"shared/{one}"]
            form = algorithm.sent(ctx, server.initial_shared, one)
            sent[one] = algorithm.received(ctx, in_form(leaves, form, shapes=False), one)
        return clients, sent

    def train(self, packet: Packet) -> Packet:
        """The work of a phase: messages go back, states stay."""
        facts, (clients, sent) = packet.facts, self._prepare(packet)
        answers: dict[str, list[Tensor]] = {}
        failures: dict[str, list[str]] = {}
        for some in _alike(clients, sent):
            for client_id, done in self._run(facts, some, sent[some[0]]):
                if isinstance(done, ClientError):
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
        facts, (clients, sent) = packet.facts, self._prepare(packet)
        splits, width = self.splits[facts["population"]], 3 + len(self.chosen)
        rows = torch.zeros(len(clients), width, dtype=torch.float64)
        places = {one: place for place, one in enumerate(clients)}
        for some in _alike(clients, sent):
            self.server.shared = sent[some[0]]
            ids, where = torch.tensor(some), torch.tensor([places[one] for one in some])
            block = ServingBlock(ids, where, splits[facts["split"]], splits["train"])
            measured = serving.measure(self.rounds, block, seen=facts["population"] == "seen", chosen=self.chosen)
            for positions, values in measured:
                rows[positions] = torch.cat([values[:, :3], values[:, values.shape[1] - len(self.chosen) :]], dim=1)
        return Packet({"clients": clients}, {"rows": [rows]})


def session_name(sent: dict[str, Any]) -> str:
    """By what the packets of a training name its settings."""
    return hashlib.blake2b(json.dumps(sent, sort_keys=True).encode(), digest_size=16).hexdigest()


def _numbered(
    populations: dict[str, Population], ids: dict[str, int], val_fraction: float, seed: int
) -> dict[str, dict[str, Split]]:
    """The splits of this node's clients, by population, under the numbers that the server has given them."""
    found: dict[str, dict[str, Split]] = {}
    for kind, population in populations.items():
        missing = [name for name in population.names if name not in ids]
        if missing:
            raise ConfigError(f"the server has no number for client {missing[0]!r}; start its command again")
        numbers = torch.tensor([ids[name] for name in population.names])
        if val_fraction:
            population = cut_validation(population, val_fraction, seed, numbers.tolist())
        found[kind] = {
            name: Split(one.x, one.y, one.offsets, ids=numbers)
            for name, one in ((name, getattr(population, name)) for name in SPLITS)
        }
    return found


def _alike(clients: list[int], sent: dict[int, Tree]) -> list[list[int]]:
    """Clients in their order, those together that are sent the same."""
    if len({id(sent[one]) for one in clients}) == 1:
        return [clients]
    return [[one] for one in clients]


def _told(error: ClientError) -> list[str]:
    """What the server hears of a client that failed: our own words, and of other errors their kind alone."""
    reason = error.reason if isinstance(error, NotFiniteError) else type(error.__cause__).__name__
    return ["not finite" if isinstance(error, NotFiniteError) else "error", error.stage, reason]


def _type_of(samples: Tensor) -> tuple[str, list[int]]:
    kind = str(samples.dtype).removeprefix("torch.")
    assert kind in TYPES
    return kind, list(samples.shape[1:])
