"""Nodes of a federation in the process of the test: nothing but bytes goes between the two sides."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from lit_fed import FederatedModule
from lit_fed.cli import main
from lit_fed.deployment.federation import RemoteClients
from lit_fed.deployment.node import Node
from lit_fed.deployment.wire import from_bytes

CLIENTS = {"anna": ["a1", "a2"], "ben": ["b1", "b2", "b9"], "carl": ["c1"]}
"""Clients of each node; b9 takes no part in training."""

UNSEEN = {"b9"}


FIT = [
    "--model.client_trainer", "sequential", "--model.solver.lr", "0.1", "--model.solver.momentum", "0.9",
    "--model.solver.persist_optimizer", "true", "--data.batch_size", "4", "--trainer.accelerator", "cpu",
    "--trainer.enable_progress_bar", "false", "--trainer.limit_val_batches", "0",
]  # fmt: skip
"""Settings of runs over an engine, and of the simulations that they equal."""


class InProcess:
    """A transport without a wire.

    Args:
        nodes: by name.
        lost: says of a node and the facts of its packet whether it does not answer.

    Attributes:
        log: everything that was sent, `(node, question, answer)`.
    """

    def __init__(self, nodes: dict[str, Any], lost=lambda node, facts: False) -> None:
        self.nodes, self.lost, self.log = nodes, lost, []

    def wait_for(self, num_nodes, seconds):
        return sorted(self.nodes)

    def call(self, packets, *, most_bytes, seconds):
        there = {node: data for node, data in packets.items() if not self.lost(node, from_bytes(data).facts)}
        answers = {node: self.nodes[node].handle(data) for node, data in there.items()}
        self.log += [(node, packets[node], answer) for node, answer in answers.items()]
        return {node: answer for node, answer in answers.items() if len(answer) <= most_bytes[node]}

    def close(self, *, over=False):
        pass


@dataclass(frozen=True)
class InProcessFederation(RemoteClients):
    """A federation whose nodes are objects of this process."""

    transport: Any = None
    missing: str = field(default="stop", kw_only=True)
    seconds: float = field(default=10.0, kw_only=True)
    patience: float = field(default=10.0, kw_only=True)
    known: dict = field(default_factory=dict)

    def connect(self):
        object.__setattr__(self, "num_nodes", len(self.transport.nodes))
        return self.transport


def write_clients(root: Path, clients: dict[str, Any], unseen=frozenset()) -> None:
    """The files of some clients, `(x_train, y_train, x_test, y_test)` by name."""
    for name, arrays in clients.items():
        folder = root / ("unseen" if name in unseen else "seen")
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / f"{name}.npz", **dict(zip(("x_train", "y_train", "x_test", "y_test"), arrays, strict=True)))


def some_clients(names, num_features=16, classes=3, seed=0, least=9):
    """Small clients whose labels depend on their inputs, of different sizes."""
    rng = np.random.default_rng(seed)
    weights, found = rng.normal(size=(num_features, classes)), {}
    for position, name in enumerate(names):
        x = rng.normal(size=(least + 5 * position, num_features)).astype(np.float32)
        y = (x @ weights + rng.normal(size=(len(x), classes))).argmax(1)
        y[:classes] = range(classes)
        found[name] = (x[:-4], y[:-4], x[-4:], y[-4:])
    return found


def node_folders(root: Path, nodes=CLIENTS, unseen=UNSEEN, **shape) -> dict[str, Path]:
    """A folder of client files for each node, and `all` with those of all nodes."""
    clients = some_clients([name for names in nodes.values() for name in names], **shape)
    for node, names in {**nodes, "all": list(clients)}.items():
        write_clients(root / node, {name: clients[name] for name in names}, unseen)
    return {node: root / node for node in [*nodes, "all"]}


def make_nodes(folders, states: Path, settings=None, written=None, **options) -> dict[str, Node]:
    """The nodes of these folders, by default with the settings of a module without arguments."""
    settings = settings or FederatedModule().settings
    made = {name: folder for name, folder in folders.items() if name != "all"}
    return {name: Node(folder, states / name, settings, written, **options) for name, folder in made.items()}


def same(one, other) -> bool:
    """Whether two lists of tensors are equal bit for bit."""
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def equal_runs(simulated: Path, real: Path) -> None:
    """Check that two run folders hold the same numbers: summaries, tables but for times and mixture weights, models."""
    summaries = [json.loads((path / "summary.json").read_text()) for path in (simulated, real)]
    for one in summaries:
        for name in ("seconds", "client_trainer", "git_commit"):
            one.pop(name, None)
    assert summaries[0] == summaries[1]
    for name in ("metrics.csv", "clients.csv"):
        tables = [
            pd.read_csv(path / name, dtype=str).filter(regex="^(?!seconds|pi_|time)") for path in (simulated, real)
        ]
        pd.testing.assert_frame_equal(*tables)
        assert len(tables[0]) > 1
    one, other = (_shared_state(path / "checkpoints" / "last.ckpt") for path in (simulated, real))
    assert one
    assert one.keys() == other.keys()
    assert same(one.values(), other.values())


def _shared_state(checkpoint):
    state = torch.load(checkpoint, weights_only=True)["state_dict"]
    return {name: leaf for name, leaf in state.items() if not name.startswith("store.")}  # states stay on nodes


def simulated(folders, out, *arguments):
    """The folder of a simulation of all clients by the command line."""
    data = ["--data.dataset", "ClientFolder", "--data.dataset.root", str(folders["all"])]
    main(["fit", *data, *FIT, *arguments, "--name", "run", "--trainer.default_root_dir", str(out / "simulated")])
    return out / "simulated" / "run" / "version_0"
