"""A server and nodes as processes of this machine, over HTTPS with certificates, and the simulation beside them."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "integration"))

from running import start

from lit_fed.deployment.certificates import make_certificates
from lit_fed.deployment.https_node import Link, run_node
from lit_fed.deployment.node import Node
from lit_fed.training.round_logger import newest_version

__all__ = ["NodeProcess", "Site", "cells", "differences", "peak_megabytes", "shared_megabytes", "wait_until"]

CHILD = Path(__file__).with_name("child.py")

COMMON = [
    "--model.client_trainer", "sequential", "--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false",
]  # fmt: skip

PATIENCE = 900.0
SECONDS_TO_END = 1500


class NodeProcess:
    """A node, forked from this process, which has loaded PyTorch; it may be killed and started again.

    Args:
        name: of the node.
        site: it belongs to.
    """

    def __init__(self, name: str, site: Site) -> None:
        self.name, self.site = name, site
        self.process: Any = None
        self.start()

    def start(self) -> None:
        """A process that knows nothing of those before it."""
        context = multiprocessing.get_context("fork")
        self.process = context.Process(target=_live, args=(self.name, self.site.folder, self.site.address), daemon=True)
        self.process.start()

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.join()


def _live(name: str, folder: Path, address: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    node = Node(folder / "data" / name, folder / "states" / name)
    while True:  # one training after another
        run_node(node.handle, Link(address, folder / "tls" / name, None, PATIENCE, lambda line: None))


class Site:
    """Folders of clients, certificates, and the processes that use them.

    Args:
        folder: for all of it.
        num_nodes: nodes, each with one client.
        num_unseen: of these nodes, the first ones have a client more that never trains.
    """

    def __init__(self, folder: Path, num_nodes: int, num_unseen: int = 1) -> None:
        self.folder, self.names = folder, [f"node-{number:02d}" for number in range(num_nodes)]
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.nodes: list[NodeProcess] = []
        make_certificates(["127.0.0.1"], self.names, folder / "tls")
        self._write_clients(num_unseen)

    def _write_clients(self, num_unseen: int) -> None:
        """The digits, shared out in shares of different sizes, three quarters of each for training."""
        x, y = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(y))
        weights = np.random.default_rng(1).uniform(0.5, 1.5, len(self.names) + num_unseen)
        cuts = (weights.cumsum()[:-1] / weights.sum() * len(y)).astype(int)
        for number, rows in enumerate(np.split(order, cuts)):
            seen = number < len(self.names)
            node, kind = self.names[number % len(self.names)], "seen" if seen else "unseen"
            some, labels, cut = (x[rows] / 16).astype(np.float32), y[rows], 3 * len(rows) // 4
            arrays = {"x_train": some[:cut], "y_train": labels[:cut], "x_test": some[cut:], "y_test": labels[cut:]}
            for place in (self.folder / "data" / node, self.folder / "all"):
                (place / kind).mkdir(parents=True, exist_ok=True)
                np.savez(place / kind / f"client-{number:02d}.npz", **arrays)

    # ------------------------------------------------------------------ processes
    def start_nodes(self) -> None:
        """All nodes, forked."""
        self.nodes = [NodeProcess(name, self) for name in self.names]

    def stop_nodes(self) -> None:
        """End all nodes."""
        for one in self.nodes:
            one.kill()
        self.nodes = []

    def start_command(self, name: str) -> subprocess.Popen[str]:
        """A node as a person starts it, in a process of its own."""
        arguments = ["client", "--server", self.address, "--data.root", str(self.folder / "data" / name)]
        arguments += ["--states", str(self.folder / "states" / name), "--tls", str(self.folder / "tls" / name)]
        arguments += ["--stay"]  # so that its memory can be read afterwards
        command = [sys.executable, "-m", "lit_fed", *arguments]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})

    def _arguments(self, name: str, given: Sequence[str]) -> list[str]:
        return ["fit", *COMMON, "--trainer.default_root_dir", str(self.folder / "runs"), "--name", name, *given]

    def simulate(self, name: str, given: Sequence[str]) -> Path:
        """A fit with all clients on this machine, to its end; its folder."""
        data = ["--data.dataset", "ClientFolder", "--data.dataset.root", str(self.folder / "all")]
        return self.finish(name, start([*self._arguments(name, given), *data], script=CHILD))

    def start_server(self, name: str, given: Sequence[str]) -> Any:
        """A fit with the clients of the nodes."""
        data = ["--data.dataset", "Federation", "--data.dataset.listen", self.address]
        data += ["--data.dataset.tls", str(self.folder / "tls"), "--data.dataset.num_nodes", str(len(self.names))]
        data += ["--data.dataset.patience", str(PATIENCE)]
        arguments = [*self._arguments(name, [*data, *given]), *self.on(name)]
        return start(arguments, script=CHILD, FEDERATION_COUNTS=str(self.folder / f"{name}.json"))

    def on(self, name: str) -> list[str]:
        """What continues a run that has a checkpoint."""
        found = (self.folder / "runs" / name).glob("version_*/checkpoints/last.ckpt")
        return ["--ckpt_path", "last"] if any(found) else []

    def finish(self, name: str, process: Any) -> Path:
        """Wait until a fit has ended as it should; the newest folder of the run."""
        said = process.communicate(SECONDS_TO_END)[1]
        if process.returncode:
            raise SystemExit(f"{name} ended with status {process.returncode}: {said[-2000:]}")
        return self.path(name)

    def path(self, name: str) -> Path:
        """The newest folder of a run."""
        runs = self.folder / "runs" / name
        return runs / f"version_{max(newest_version(runs), 0)}"

    def rounds_logged(self, name: str) -> int:
        """Rounds that the newest folder of a run tells of."""
        try:
            return max((self.path(name) / "metrics.csv").read_text().count("\n") - 1, 0)
        except OSError:
            return 0

    def counts(self, name: str) -> dict[str, dict[str, int]]:
        """Bytes that packets of a run took, by direction and kind."""
        return json.loads((self.folder / f"{name}.json").read_text())  # type: ignore[no-any-return]


# ---------------------------------------------------------------------- what runs leave behind
def cells(path: Path) -> list[dict[str, str]]:
    """Rows of a table, without times and without mixture weights, which stay on nodes."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    left_out = re.compile(r"seconds|time/|pi_")
    return [{name: cell for name, cell in row.items() if not left_out.match(name)} for row in rows]


def differences(one: Path, other: Path) -> list[str]:
    """What differs between two runs, bit by bit: shared state, metrics.csv and clients.csv."""
    found = []
    states = [torch.load(each / "checkpoints/last.ckpt", weights_only=True)["state_dict"] for each in (one, other)]
    names = [name for name in states[0].keys() & states[1].keys() if not name.startswith(("store.", "tables."))]
    unequal = [name for name in names if not torch.equal(states[0][name], states[1][name])]
    if unequal or len(names) < 2:
        found.append(f"shared state: {', '.join(sorted(unequal)) or 'nothing to be compared'}")
    for file in ("metrics.csv", "clients.csv"):
        here, there = cells(one / file), cells(other / file)
        if len(here) != len(there) or not here:
            found.append(f"{file}: {len(here)} and {len(there)} rows")
        columns = here[0].keys() & there[0].keys() if here and there else set()
        wrong = {name for a, b in zip(here, there, strict=False) for name in columns if a[name] != b[name]}
        if wrong or len(columns) < 4:
            found.append(f"{file}: {', '.join(sorted(wrong)) or 'too few columns'}")
    return found


def peak_megabytes(pid: int) -> float:
    """The most memory that a process has taken so far, in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return float(line.split()[1]) / 1024
    return float("nan")


def shared_megabytes(pid: int) -> float:
    """The memory of a process, in MB; of what it shares with others, which were forked from the same one, its share."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return float(line.split()[1]) / 1024
    return float("nan")


def wait_until(condition: Any, seconds: float, what: str) -> None:
    """Wait until something holds; `what` did not otherwise."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"{what} did not happen within {seconds:g} s")
        time.sleep(0.01)
