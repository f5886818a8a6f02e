"""A node's part of a training: its samples, the states of its clients, and their work; samples and states stay here.

The server knows only versions of states, and names them in every question. So a node has no memory that a killed
process could lose, and a server that resumes from an older checkpoint finds the older states.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_fed import serving
from lit_fed.clients import TrainJob
from lit_fed.clients.base import Failed
from lit_fed.clients.store_files import ClientFiles
from lit_fed.core import tree
from lit_fed.core.conformal import covered_and_size
from lit_fed.core.networks.start import digest_of
from lit_fed.core.seeds import Secret
from lit_fed.core.segmentation import flat_masks
from lit_fed.core.types import SPLITS as ALL_SPLITS
from lit_fed.core.types import ClientBlock, LocalWork, Phase, Population, ServingBlock, Split, Stage, Tree
from lit_fed.data.data_sets.client_folder import read_clients, to_population
from lit_fed.data.data_sets.hugging_face import HuggingFace
from lit_fed.data.data_sets.texts import Texts
from lit_fed.data.facts import TEXTS_FORM, TrainingFacts
from lit_fed.data.populations.build import build_populations, select_clients
from lit_fed.data.populations.splits import cut_part
from lit_fed.deployment.messages import SETS, SPLITS, ClientFacts, NodeFacts, facts_from_json, marks_of_start
from lit_fed.deployment.wire import TYPES, Packet, checked_tree, digest_of_question
from lit_fed.errors import ClientError, ConfigError, NotFiniteError, logged
from lit_fed.metrics.scores import ClientScores
from lit_fed.metrics.selection import choose_metrics
from lit_fed.rounds import FederatedRounds, InMemoryServer
from lit_fed.session import Session
from lit_fed.settings import ModelSettings
from lit_fed.system.files import whole_file
from lit_fed.system.readers import FormError, record

__all__ = ["NodeData", "NodeStates", "NodeTraining", "node_key"]

KEY_FILE = "key"
TEXTS_FILE = "texts.json"
KEY_BYTES = 32

SAME_START = 1e-3
"""Relative tolerance for means of numbers that two machines draw from one seed; other models differ by far more."""


class NodeData:
    """The samples of a node's clients; folders as of `Node`.

    Attributes:
        populations: seen and unseen clients.
        texts: how texts became their inputs; None: they are arrays.
    """

    def __init__(self, root: Path, states: Path) -> None:
        self._states, self.texts = states, _texts_in(root)
        if self.texts is not None:
            self.populations = _read_texts(root, self.texts)
            return
        clients = read_clients(root)
        if not clients:
            raise ConfigError(
                f"{root}: no folder `seen` or `unseen` with a .npz file for each client; correct --data.root"
            )
        self.populations = {kind: to_population(some) for kind, some in clients.items()}

    @cached_property
    def facts(self) -> NodeFacts:
        """Facts for the server: names, sizes, types, largest labels, and a digest keyed by this node's secret."""
        clients, digest = {}, hmac.new(node_key(self._states), digestmod=hashlib.blake2b)
        for kind, population in self.populations.items():
            splits = [getattr(population, name) for name in SPLITS]
            for split in splits:
                for tensor in (split.offsets, split.x, split.y):
                    digest.update(np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8).data)
            for position, name in enumerate(population.names):
                labels = population.train.client(position).y
                largest = None if labels.is_floating_point() or not len(labels) else int(labels.max())
                train, val, test = (int(split.sizes[position]) for split in splits)
                clients[name] = ClientFacts(kind, (train, val, test), largest)
        some = next(iter(self.populations.values()))
        return NodeFacts(clients, self.types, some.stored_type, digest.hexdigest()[:32], some.inputs)

    @property
    def types(self) -> dict[str, tuple[str, list[int]]]:
        """Type and shape of a sample, for `x` and `y`."""
        some, names = next(iter(self.populations.values())).train, {kind: name for name, kind in TYPES.items()}
        return {which: (names[one.dtype], list(one.shape[1:])) for which, one in (("x", some.x), ("y", some.y))}

    def check_types(self, facts: TrainingFacts) -> None:
        """Refuse a training on samples of another type or shape, naming both in a `ConfigError`."""
        wanted = {
            "x": (facts.input_type, list(facts.input_shape)),
            "y": ("float32" if facts.target.continuous else "int64", list(facts.label_shape)),
        }
        for which, found in self.types.items():
            if found != wanted[which]:
                here, there = (f"{kind} of shape {shape}" for kind, shape in (found, wanted[which]))
                raise ConfigError(f"--data.root: samples of {which} are {here}, those of the training were {there}")
        inputs = next(iter(self.populations.values())).inputs
        if inputs != facts.inputs:
            raise ConfigError(f"--data.root: the inputs are {inputs}, those of the training were {facts.inputs}")

    def keep_only(self, names: Collection[str]) -> list[str]:
        """Keep only these clients; returns the names of the others; `ConfigError` if none is left."""
        left_out = []
        for kind, population in list(self.populations.items()):
            positions = [place for place, name in enumerate(population.names) if name in names]
            left_out += [name for name in population.names if name not in names]
            del self.populations[kind]
            if positions:
                self.populations[kind] = select_clients(population, np.array(positions))
        if not self.populations:
            raise ConfigError("--data.root: no client in it took part in the training; give the node's folder")
        return left_out

    def numbered(
        self, ids: dict[str, int], val_fraction: float, calibration_fraction: float, seed: int
    ) -> dict[str, dict[str, Split]]:
        """The splits of this node's clients by population, with the server's number of each client.

        Raises:
            ConfigError: if numbers are not in the order of names.
        """
        found: dict[str, dict[str, Split]] = {}
        for kind, population in self.populations.items():
            numbers = torch.tensor([ids[name] for name in population.names])
            if bool((numbers.diff() <= 0).any()):
                raise ConfigError("the server's numbers of clients are not in the order of their names")
            if val_fraction:
                population = cut_part(population, "val", val_fraction, seed, numbers.tolist())
            if calibration_fraction:
                population = cut_part(population, "calibration", calibration_fraction, seed, numbers.tolist())
            found[kind] = {
                name: Split(one.x, one.y, one.offsets, ids=numbers)
                for name, one in zip(ALL_SPLITS, population.splits, strict=False)
            }
        return found


def _texts_in(root: Path) -> Texts | None:
    """How a node's clients of texts become tokens, from the file `texts.json`; None without it."""
    path = root / TEXTS_FILE
    if not path.is_file():
        return None
    defaults = HuggingFace(path=str(root)).texts
    assert defaults is not None
    try:
        return defaults._replace(**record(TEXTS_FORM, may_miss=tuple(TEXTS_FORM))(json.loads(path.read_text()), "it"))
    except (ValueError, FormError) as error:
        raise ConfigError(f"{path}: {error}; give an object with some of {', '.join(TEXTS_FORM)}") from error


def _read_texts(root: Path, texts: Texts) -> dict[str, Population]:
    """The clients of `seen` and `unseen`; a fifth of the texts of each is tested, unless files name splits."""
    seen, unseen = build_populations(HuggingFace(path=str(root), **texts._asdict()))
    if seen.class_names is not None:
        raise ConfigError(f"{root}: labels are texts, which other nodes may number otherwise; write whole numbers")
    found = {"seen": seen, "unseen": unseen}
    kind = str(seen.train.x.numpy().dtype)
    return {name: one._replace(stored_type=kind) for name, one in found.items() if one is not None}


class NodeStates:
    """The states of a node's clients, in a file for each version of each state; replaces a `ClientStore`.

    Args:
        folder: folder of this run, created when the first state is written.
        initial: a client's initial state by its number.
        names: names of this node's clients by their numbers; the files are named after them.

    Attributes:
        versions: the versions that `gather` reads; −1: the initial state.
        kept: versions by which clients are served after the training; they are never deleted.
    """

    def __init__(self, folder: Path, initial: Callable[[int], dict[str, Tree]], names: Mapping[int, str]) -> None:
        self.folder, self._initial, self._names = folder, initial, names
        self.template = initial(min(names))  # the form of all
        leaves = [str(position) for position, _ in enumerate(tree.items(self.template))]
        self.files = ClientFiles(leaves, names.__getitem__) if leaves else None
        if self.files is not None:
            self.files.folder = folder
        self.versions: Mapping[int, int] = {}
        self.kept: Mapping[int, int] = {}

    def gather(self, client_ids: Tensor) -> dict[str, Tree]:
        """States [C, ...] of some clients; a `ClientError` names the file that is missing or damaged."""
        return tree.stack([self.read(one) for one in client_ids.tolist()])  # type: ignore[no-any-return]

    def read(self, client_id: int) -> dict[str, Tree]:
        """As `gather`, for one client and without an axis of clients."""
        version = self.versions[client_id]
        if version < 0 or self.files is None:
            return self._initial(client_id)
        wanted, leaves = tree.leaves(self.template), self.files.read(client_id, version)
        for leaf, one in zip(leaves, wanted, strict=True):
            if leaf.shape != one.shape or leaf.dtype != one.dtype:
                raise self.files.unreadable(client_id, version, f"it is {leaf.dtype} of shape {list(leaf.shape)}")
        return tree.rebuild(self.template, leaves)  # type: ignore[no-any-return]

    def write(self, client_id: int, version: int, state: dict[str, Tree]) -> None:
        """Write a state without an axis of clients; a repeated question finds its own.

        Raises:
            FormError: if another state has this version: no question changes what an earlier one has read.
        """
        if self.files is None:
            return
        leaves = tree.leaves(state)
        if self.files.exists(client_id, version):
            held = self.files.read(client_id, version)
            if not all(torch.equal(one, leaf.cpu()) for one, leaf in zip(held, leaves, strict=True)):
                raise FormError("the question gives a new state the version of another one")
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self.files.write(client_id, version, leaves)

    def sweep(self, needed: Mapping[int, list[int]]) -> None:
        """Delete the versions of some clients that no checkpoint needs; `needed` lists those that stay."""
        stay = {self._names[one]: {str(version) for version in versions} for one, versions in needed.items()}
        for one in needed.keys() & self.kept.keys():
            stay[self._names[one]].add(str(self.kept[one]))
        for path in self.folder.glob("*.*.pt"):
            name, _, version = path.stem.rpartition(".")
            if name in stay and version not in stay[name]:
                path.unlink(missing_ok=True)


def node_key(folder: Path) -> bytes:
    """The secret key of a node's digests and noise; created at the first call."""
    path = folder / KEY_FILE
    if path.is_file():
        return path.read_bytes()
    folder.mkdir(parents=True, exist_ok=True)
    key = secrets.token_bytes(KEY_BYTES)
    with whole_file(path, private=True) as file:
        file.write(key)
    return key


def _of_clients(solvers: dict[str, dict[str, float]], ids: dict[str, int], num_clients: int) -> dict[str, Tensor]:
    """`Context.of_clients` from the values of a node's clients by name; those of other clients are unused."""
    found: dict[str, Tensor] = {}
    for name, own in solvers.items():
        for option, value in own.items():
            found.setdefault(option, torch.ones(num_clients, dtype=torch.float64))[ids[name]] = value
    return found


class NodeTraining:
    """The clients' side of a training on this node, from the session as the server sends it, under its name.

    `folder` is for the clients' states; the folder above it holds the node's key.

    Raises:
        ConfigError: if data and settings do not match, or models start elsewhere than the server's.
    """

    def __init__(self, name: str, sent: dict[str, Any], settings: ModelSettings, data: NodeData, folder: Path) -> None:
        self.name, self.sent = name, sent
        facts = facts_from_json(sent["facts"], settings.target)
        data.check_types(facts)
        session = Session.of(settings, facts, device := torch.device("cpu"))
        if (own := session.terms.task.own) is not None:
            own.names = own.names or ()  # those that the server knows, too
        is_private = any(one.node_secret() for one in settings.features)
        steps = repr(session.algorithm), repr(session.terms.solver)  # not in `name` if the server is a program
        self.secret = None
        if is_private:  # other samples, other noise
            self.secret = Secret(node_key(folder.parent)).for_("noise", name, *steps, data.facts.digest)
        _check_start(sent["start"], marks_of_start(session.algorithm, session.terms, session.shared))
        self.server = InMemoryServer(session.shared, device)
        terms = session.terms._replace(of_clients=_of_clients(sent["solvers"], sent["ids"], facts.num_clients))
        self.rounds = FederatedRounds(session.algorithm, terms, self.server, session.choose)
        self.chosen, self.coverage = choose_metrics(settings.metrics, facts.target), settings.conformal
        fractions = sent["val_fraction"], sent.get("calibration_fraction", 0.0)
        splits = data.numbered(sent["ids"], *fractions, sent["data_seed"])
        self.splits = {kind: {name: flat_masks(one) for name, one in each.items()} for kind, each in splits.items()}
        self._own = {kind: {sent["ids"][name]: name for name in one.names} for kind, one in data.populations.items()}
        train = {one: self.splits[kind]["train"] for kind, names in self._own.items() for one in names}
        self.names = {one: name for names in self._own.values() for one, name in names.items()}
        self.states = NodeStates(folder, lambda one: self.rounds.initial_state(train[one], one), self.names)
        self.rounds.store = self.states  # type: ignore[assignment] # the part of it that serving needs

    def prepare(self, question: Packet) -> tuple[list[int], dict[int, Tree]]:
        """Set round, versions and shared state from a question; its clients, and the shared state as each receives it.

        Raises:
            FormError: if the question is not of this training.
        """
        facts, server = question.facts, self.server
        clients = facts["clients"]
        names = ["shared"] if "shared" in question.trees else [f"shared/{one}" for one in clients]
        if question.trees.keys() != set(names):
            raise FormError("the question is without the shared state of its clients")
        server.rounds_done = facts["round"]
        self.rounds.schedule_rounds = facts["horizon"]
        self.rounds.terms = self.rounds.terms._replace(num_rounds=facts["num_rounds"])
        ctx, algorithm = self.rounds.context(facts["phase"]), self.rounds.algorithm
        sent: dict[int, Tree] = {}
        for one, name in zip(clients, names, strict=False):
            form = algorithm.sent(ctx, server.initial_shared, one)
            sent[one] = algorithm.received(ctx, checked_tree(question.trees[name], form, shapes=False), one)
        if names == ["shared"]:  # one object, so that the clients may be trained together
            sent = dict.fromkeys(clients, sent[clients[0]])
        self.states.versions = dict(zip(clients, facts["versions"], strict=True))
        if facts["needed"] is not None:
            self.states.sweep(facts["needed"])
        return clients, sent

    def check(self, facts: dict[str, Any]) -> None:
        """Check that the clients of a question are those of this training; `FormError` if they are not."""
        total, population = self.rounds.terms.num_clients, facts.get("population", "seen")
        mine = self.names if facts["kind"] == "keep" else self._own.get(population, {})
        if not mine.keys() >= set(facts["clients"]) or not self.names.keys() >= (facts["needed"] or {}).keys():
            raise FormError("the question is of clients that are not on this node")
        if any(one >= total for one in facts.get("present", ())) or len(facts.get("draws") or [0] * total) != total:
            raise FormError("the question is of more or fewer clients than the training has")

    def train(self, packet: Packet) -> Packet:
        """Run the clients' work of a phase: messages are returned, states are written here."""
        self.check(facts := packet.facts)
        clients, sent = self.prepare(packet)
        if self.secret is not None:  # noise in two different answers could be removed by subtracting them
            held = {f"{one}/{name}": leaf for one in clients for name, leaf in tree.items(self.states.read(one))}
            asked = digest_of_question(packet), digest_of(held)
            self.rounds.terms = self.rounds.terms._replace(secret=self.secret.for_(*asked))
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
        """Results of clients that are sent the same: leaves of message and metrics, or an error."""
        ids, terms = torch.tensor(clients), self.rounds.terms
        multiplicity = dict(zip(facts["clients"], facts["multiplicity"], strict=True))
        counts = torch.tensor([multiplicity[one] for one in clients], dtype=torch.float64)
        present = torch.zeros(terms.num_clients, dtype=torch.bool)
        present[torch.tensor(facts["present"], dtype=torch.int64)] = True
        ctx = self.rounds.context(facts["phase"], present)._replace(drawn_weight=facts["drawn_weight"])
        if facts["draws"] is not None:
            ctx = ctx._replace(draws=torch.tensor(facts["draws"]))
        block = ClientBlock(Phase(facts["phase"], ids, self._work(facts)), counts, self.splits["seen"]["train"])
        kept = self.states.gather(ids)
        job = TrainJob(
            self.rounds.algorithm, ctx, shared, block, kept["state"], kept.get("optimizer"), drops_failures=True
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

    def _work(self, facts: dict[str, Any]) -> LocalWork:
        """The local work of a question. Its phase is one of the algorithm's here, as others add no noise.

        Raises:
            FormError: if it is not, or if steps of which ε counts each are others than by this node's own settings.
        """
        work = LocalWork(**facts["work"])
        work = work._replace(stages=tuple(Stage(*one) for one in work.stages))
        ids = torch.tensor(list(self._own["seen"]))
        phases = self.rounds.algorithm.phases(self.rounds.context("plan"), ids) or [Phase("train", ids, LocalWork())]
        own = [phase.work for phase in phases if phase.name == facts["phase"]]
        if not own:
            raise FormError("the question is of a phase that the algorithm does not have")
        if self.secret is not None and work not in [
            one._replace(straggler_fraction=work.straggler_fraction) for one in own
        ]:
            raise FormError("the question asks for other local work than the node's own settings")
        return work

    def measure(self, packet: Packet) -> Packet:
        """Serve clients and measure them: sums are returned, predictions and mixture weights stay here."""
        self.check(facts := packet.facts)
        clients, sent = self.prepare(packet)
        scores = (self.covered if facts["sets"] else self.measured)(clients, sent, facts["population"], facts["split"])
        return Packet({"clients": clients}, {"rows": [scores._replace(mixture=scores.mixture[:, :0]).rows()]})

    def measured(self, clients: list[int], sent: dict[int, Tree], population: str, split: str) -> ClientScores:
        """Results of `serving.measure` for clients of one population; arguments as of `blocks`."""
        found = [
            scores
            for block in self.blocks(clients, sent, population, split)
            for _, scores in serving.measure(self.rounds, block, seen=population == "seen", chosen=self.chosen)
        ]
        return tree.map_leaves(lambda *parts: torch.cat(parts), *found)  # type: ignore[no-any-return]

    def covered(self, clients: list[int], sent: dict[int, Tree], population: str, split: str) -> ClientScores:
        """Results with the means of `SETS`, of sets by clients' own thresholds; arguments as of `blocks`.

        Raises:
            FormError: if the training has no prediction sets.
        """
        if self.coverage is None:
            raise FormError("the question is of prediction sets, and the node's settings have no conformal")
        target, parts = self.rounds.terms.task.target, []
        for block in self.blocks(clients, sent, population, split):
            one = serving.predict_block(self.rounds, block, seen=population == "seen", coverage=self.coverage)
            assert one.thresholds is not None
            held = covered_and_size(target, one.sizes, one.labels, one.log_prob, one.thresholds)
            means = [each / one.scores.samples for each in held]
            parts.append(one.scores._replace(metrics=dict(zip(SETS, means, strict=True))))
        return tree.map_leaves(lambda *rows: torch.cat(rows), *parts)  # type: ignore[no-any-return]

    def blocks(self, clients: list[int], sent: dict[int, Tree], population: str, split: str) -> Iterator[ServingBlock]:
        """Blocks of clients that are sent the same; that is the server's shared state while a block is served.

        Args:
            clients: their numbers.
            sent: the shared state as each of them receives it.
            population: `seen` or `unseen`.
            split: what is predicted.
        """
        splits = self.splits[population]
        for some in _alike(clients, sent):
            self.server.shared = sent[some[0]]
            yield ServingBlock(
                torch.tensor(some), torch.arange(len(some)), splits[split], splits["train"], splits.get("calibration")
            )


def _alike(clients: list[int], sent: dict[int, Tree]) -> list[list[int]]:
    """Group clients that are sent the same; they keep their order."""
    if len({id(sent[one]) for one in clients}) == 1:
        return [clients]
    return [[one] for one in clients]


def _told(error: ClientError) -> list[str]:
    """Report of a failed client for the server: names only, since a text could contain data."""
    kind = "not finite" if isinstance(error, NotFiniteError) else "error"
    return [kind, error.stage, type(error.__cause__ or error).__name__]


def _check_start(wanted: list[float], found: list[float]) -> None:
    """Refuse models that start elsewhere than the server's: the clients' first states would silently differ."""
    alike = len(wanted) == len(found) and all(
        math.isclose(one, other, rel_tol=SAME_START, abs_tol=1e-9) for one, other in zip(wanted, found, strict=True)
    )
    if not alike:
        raise ConfigError(
            "the models that clients start from are others here than at the server; install the same version of torch, "
            "have the same files of a pretrained network on both, and leave out --init_from"
        )
