"""Serving a node's clients after a training, without the server.

When a training ends, one file beside the clients' states keeps the settings, the facts of the training, and the
shared state as the clients received it. Nothing in it is executed when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lit_fed import serving
from lit_fed.core import tree
from lit_fed.core.types import Tree
from lit_fed.deployment.messages import facts_from_json, session_name
from lit_fed.deployment.node_training import NodeData, NodeTraining
from lit_fed.deployment.settings import refuse_other_settings
from lit_fed.deployment.transport import foreign_text
from lit_fed.deployment.wire import Packet
from lit_fed.errors import ConfigError
from lit_fed.metrics.scores import ClientScores
from lit_fed.settings import ModelSettings
from lit_fed.system.checked_archive import DamagedFileError, load_checked, tensor
from lit_fed.system.files import os_error_text, whole_file
from lit_fed.system.names import few
from lit_fed.system.readers import FormError

__all__ = ["KEPT_FILE", "KeptTraining", "keep_training", "kept_versions"]

KEPT_FILE = "serving.pt"
"""In the folder of a run's states."""


def keep_training(training: NodeTraining, packet: Packet) -> Packet:
    """Write the data for serving this node's clients after the training; returns the confirming answer.

    Raises:
        FormError: if it does not have the form of this training, or lacks a client of this node.
        ClientError: naming a client whose state is missing or damaged.
    """
    training.check(packet.facts)
    clients, _ = training.prepare(packet)
    if training.names.keys() - set(clients):
        raise FormError("the server leaves out a client of this node")
    for one in (one for one, version in training.states.versions.items() if version >= 0):
        training.states.read(one)
    facts = {name: value for name, value in packet.facts.items() if name not in ("settings", "needed")}
    trees = {name: list(leaves) for name, leaves in packet.trees.items()}
    training.states.folder.mkdir(parents=True, exist_ok=True)
    with whole_file(training.states.folder / KEPT_FILE, private=True) as file:
        torch.save({"facts": json.dumps([training.sent, facts]), "trees": trees}, file)
    training.states.kept = dict(training.states.versions)
    return Packet({"kept": clients})


def kept_versions(folder: Path) -> dict[int, int]:
    """The version of each client's state that serves it after the training; {} if the run's folder keeps nothing."""
    try:
        facts = _read(folder / KEPT_FILE)[1].facts
    except (DamagedFileError, OSError):  # serving reports it; a training goes on without it
        return {}
    return dict(zip(facts["clients"], facts["versions"], strict=True))


def _read(path: Path) -> tuple[dict[str, Any], Packet]:
    """The session as the server sent it, and the packet.

    Raises:
        DamagedFileError: if the file is not what was written.
        OSError: if it cannot be opened.
    """
    content = load_checked(path)
    try:
        sent, facts = json.loads(content["facts"])
        trees = {name: [tensor(leaf, name) for leaf in leaves] for name, leaves in content["trees"].items()}
        return sent, Packet(facts | {"needed": None}, trees)
    except (TypeError, LookupError, AttributeError, ValueError) as error:
        raise DamagedFileError("it holds something else") from error


class KeptTraining:
    """A finished training, from which a node serves its clients without the server.

    Args:
        root, states, settings, written: those of the `Node` in the training.
        run: name of the run's folder of states; "": the training that finished last.

    Attributes:
        run: name of the run's folder.
        training: the training, whose `rounds` serve the clients.
        facts: sizes of the training.
        settings: those that were given.
        left_out: names of clients in `root` that took no part in the training.

    Raises:
        ConfigError: naming what is missing, damaged, or does not match the training.
    """

    def __init__(
        self, root: Path, states: Path, settings: ModelSettings, written: dict[str, Any] | None = None, run: str = ""
    ) -> None:
        path = _kept_file(states, run)
        try:
            sent, packet = _read(path)
        except (DamagedFileError, OSError) as error:
            raise ConfigError(
                f"--states: {path} cannot be read: {os_error_text(error)}; put it back from a copy, or let the server "
                "run the same fit with --ckpt_path last, which sends it again"
            ) from error
        try:
            refuse_other_settings(sent["model"], written)
        except ConfigError as error:
            raise ConfigError(f"{path.parent.name}: {error}, or --run one of {_runs(states)}") from error
        self.run, self.facts = path.parent.name, facts_from_json(sent["facts"], settings.target)
        self.settings = settings
        data = NodeData(root, states)
        self.facts = self.facts._replace(texts=data.texts)
        self.left_out = data.keep_only(sent["ids"])
        self._check(data, sent["ids"])
        self.training = NodeTraining(session_name(sent), sent, settings, data, path.parent)
        _, self._sent = self.training.prepare(packet)

    def _check(self, data: NodeData, ids: dict[str, int]) -> None:
        """Refuse samples of another type than the training's, and clients that were moved to the other folder."""
        data.check_types(self.facts)
        for kind, population in data.populations.items():
            for name in population.names:
                was = "seen" if ids[name] < self.facts.num_clients else "unseen"
                if was != kind:
                    raise ConfigError(
                        f"--data.root: {name} was in the folder {was} in the training, and is in {kind}; move it back"
                    )

    @property
    def names(self) -> dict[int, str]:
        """Names of the seen and unseen clients that can be served, by number."""
        return dict(sorted(self.training.names.items()))

    def find(self, names: Sequence[str]) -> list[int]:
        """The numbers of clients with these names, ascending; without names: of all clients.

        Raises:
            ConfigError: naming a client that is not here, or took no part in the training.
        """
        numbers = {name: one for one, name in self.names.items()}
        for name in names:
            if name in self.left_out:
                raise ConfigError(
                    f"--client {name} took no part in the training; `lit-fed personalize` serves it from the server's "
                    "checkpoint"
                )
            if name not in numbers:
                raise ConfigError(f"--client {name}: no such client here; give one of {', '.join(list(numbers)[:5])}")
        return sorted({numbers[name] for name in names or numbers})

    def measure(self, clients: Sequence[int], split: str) -> ClientScores:
        """Results of clients, see `serving.measure`.

        Args:
            clients: their numbers, ascending.
            split: `train`, `val` or `test`.
        """
        parts = [self.training.measured(some, self._sent, kind, split) for kind, some in self._blocks(clients)]
        return tree.map_leaves(lambda *rows: torch.cat(rows), *parts)  # type: ignore[no-any-return]

    def predict(self, clients: Sequence[int], split: str) -> Iterator[serving.BlockPredictions]:
        """Serve clients and predict their samples; arguments as for `measure`."""
        for kind, some in self._blocks(clients):
            for block in self.training.blocks(some, self._sent, kind, split):
                yield serving.predict_block(
                    self.training.rounds, block, seen=kind == "seen", coverage=self.settings.conformal
                )

    def serve(self, client: int) -> tuple[Tree, Tensor, dict[str, tuple[float, bool]]]:
        """The state that serves one client, without an axis of clients, one of its inputs [1, ...], its threshold.

        Args:
            client: its number; the shared state of `training` is then as this client was sent it.
        """
        (found,) = self.predict([client], "train")
        x = self.training.splits["seen" if client < self.facts.num_clients else "unseen"]["train"].client(client).x
        each = dict(zip([self.names[client]], found.thresholds_and_owned, strict=False))
        return tree.index(found.states, 0), x[:1], each

    def _blocks(self, clients: Sequence[int]) -> Iterator[tuple[str, list[int]]]:
        """Group clients as the test of the run does, with the population of each group."""
        found: dict[tuple[bool, int], list[int]] = {}
        for one in clients:
            unseen, first = one >= self.facts.num_clients, self.facts.num_clients
            place = (one - first if unseen else one) // self.facts.clients_per_block
            found.setdefault((unseen, place), []).append(one)
        for (unseen, _), some in sorted(found.items()):
            yield "unseen" if unseen else "seen", some


def _kept_file(states: Path, run: str) -> Path:
    """The file of a run, or of the training that finished last; `ConfigError` if there is none."""
    found = _kept_files(states)
    if not found:
        raise ConfigError(
            f"--states {states} holds nothing of a finished training; a node keeps what serving takes when a fit ends: "
            "give the folder that `lit-fed client` had, or let the server finish by `fit --ckpt_path last`"
        )
    if not run:
        return found[-1]
    for path in found:
        if path.parent.name == run:
            return path
    raise ConfigError(f"--states {states} holds nothing of run {run}; it holds {_runs(states)}, the last one last")


def _kept_files(states: Path) -> list[Path]:
    """The files of finished trainings, the last one last."""
    return sorted(states.glob(f"*/{KEPT_FILE}"), key=lambda path: path.stat().st_mtime_ns)


def _runs(states: Path) -> str:
    """Names of the finished trainings with their algorithms, as far as the server has said them."""
    said = []
    for path in _kept_files(states):
        try:
            algorithm = _read(path)[0]["model"]["algorithm"]
            name = f" ({foreign_text(algorithm['class_path'].rpartition('.')[2])})"
        except (DamagedFileError, OSError, LookupError, TypeError, AttributeError):  # a program sends no settings
            name = ""
        said.append(f"{path.parent.name}{name}")
    return few(said)
