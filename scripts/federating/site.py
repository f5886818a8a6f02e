"""A server and nodes as local processes, over HTTPS with certificates, and the simulation for comparison."""

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
from trials import TRIAL, go_on, newest_folder, rounds_logged

from lit_fed.deployment.certificates import make_certificates
from lit_fed.deployment.https_node import Link, run_node
from lit_fed.deployment.node import Node

COMMON = [
    "--model.client_trainer", "sequential", "--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false",
]  # fmt: skip

PATIENCE = 900.0
SECONDS_TO_END = 1500


class NodeProcess:
    """A node, forked from this process, which has loaded PyTorch; can be killed and restarted."""

    def __init__(self, name: str, site: Site) -> None:
        self.name, self.site = name, site
        self.process: Any = None
        self.start()

    def start(self) -> None:
        """Start a new process."""
        context = multiprocessing.get_context("fork")
        self.process = context.Process(target=_live, args=(self.name, self.site.folder, self.site.address), daemon=True)
        self.process.start()

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.join()


def _live(name: str, folder: Path, address: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    node = Node(folder / "data" / name, folder / "states" / name)
    while True:
        run_node(node.handle, Link(address, folder / "tls" / name, None, PATIENCE, lambda line: None))


class Site:
    """Folders of clients, certificates, and processes.

    Args:
        folder: folder of all files.
        num_nodes: number of nodes, each with one client.
        num_unseen: number of unseen clients, at the first nodes.
    """

    def __init__(self, folder: Path, num_nodes: int, num_unseen: int = 1) -> None:
        self.folder, self.names = folder, [f"node-{number:02d}" for number in range(num_nodes)]
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.nodes: list[NodeProcess] = []
        make_certificates(["127.0.0.1"], self.names, folder / "tls")
        self._write_clients(num_unseen)

    def _write_clients(self, num_unseen: int) -> None:
        """Digits in parts of different sizes, three quarters of each for training."""
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
        """Start all nodes."""
        self.nodes = [NodeProcess(name, self) for name in self.names]

    def stop_nodes(self) -> None:
        """Kill all nodes."""
        for one in self.nodes:
            one.kill()
        self.nodes = []

    def start_command(self, name: str) -> subprocess.Popen[str]:
        """Start a node by its command."""
        arguments = ["client", "--server", self.address, "--data.root", str(self.folder / "data" / name)]
        arguments += ["--states", str(self.folder / "states" / name), "--tls", str(self.folder / "tls" / name)]
        arguments += ["--stay"]  # so that its memory can be read afterwards
        command = [sys.executable, "-m", "lit_fed", *arguments]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})

    def _arguments(self, name: str, given: Sequence[str]) -> list[str]:
        return ["fit", *COMMON, "--trainer.default_root_dir", str(self.folder / "runs"), "--name", name, *given]

    def simulate(self, name: str, given: Sequence[str]) -> Path:
        """Run a simulation with all clients; returns its folder."""
        data = ["--data.dataset", "ClientFolder", "--data.dataset.root", str(self.folder / "all")]
        return self.finish(name, start([*self._arguments(name, given), *data], script=TRIAL))

    def start_server(self, name: str, given: Sequence[str]) -> Any:
        """Start a fit with the nodes' clients."""
        data = ["--data.dataset", "Federation", "--data.dataset.listen", self.address]
        data += ["--data.dataset.tls", str(self.folder / "tls"), "--data.dataset.num_nodes", str(len(self.names))]
        data += ["--data.dataset.patience", str(PATIENCE)]
        arguments = [*self._arguments(name, [*data, *given]), *go_on(self.folder / "runs" / name)]
        return start(arguments, script=TRIAL, FEDERATION_COUNTS=str(self.folder / f"{name}.json"))

    def finish(self, name: str, process: Any) -> Path:
        """Wait until a fit has ended; returns the newest folder of the run."""
        said = process.communicate(SECONDS_TO_END)[1]
        if process.returncode:
            raise SystemExit(f"{name} ended with status {process.returncode}: {said[-2000:]}")
        return newest_folder(self.folder / "runs" / name)

    def rounds_logged(self, name: str) -> int:
        """Rounds logged in the newest folder of a run."""
        return rounds_logged(self.folder / "runs" / name)

    def counts(self, name: str) -> dict[str, dict[str, int]]:
        """Bytes of a run's packets, by direction and kind."""
        return json.loads((self.folder / f"{name}.json").read_text())  # type: ignore[no-any-return]


# ---------------------------------------------------------------------- files of runs
def cells(path: Path) -> list[dict[str, str]]:
    """Rows of a table without times and mixture weights, which stay on nodes."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    left_out = re.compile(r"seconds|time/|pi_")
    return [{name: cell for name, cell in row.items() if not left_out.match(name)} for row in rows]


def differences(one: Path, other: Path) -> list[str]:
    """Bitwise differences of two runs: shared state, metrics.csv and clients.csv."""
    found = []
    states = [torch.load(each / "checkpoints/last.ckpt", weights_only=True)["state_dict"] for each in (one, other)]
    names = [name for name in states[0].keys() & states[1].keys() if not name.startswith(("store.", "tables."))]
    unequal = [name for name in names if not torch.equal(states[0][name], states[1][name])]
    if unequal or len(names) < 2:
        found.append(f"shared state: {', '.join(sorted(unequal)) or 'nothing to compare'}")
    for file in ("metrics.csv", "clients.csv"):
        here, there = cells(one / file), cells(other / file)
        if len(here) != len(there) or not here:
            found.append(f"{file}: {len(here)} and {len(there)} rows")
        columns = here[0].keys() & there[0].keys() if here and there else set()
        wrong = {name for a, b in zip(here, there, strict=False) for name in columns if a[name] != b[name]}
        if wrong or len(columns) < 4:
            found.append(f"{file}: {', '.join(sorted(wrong)) or 'too few columns'}")
    return found


def megabytes(pid: int, file: str, field: str) -> float:
    """Memory of a process in MB, from a field of a file in /proc."""
    lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    return next((float(line.split()[1]) / 1024 for line in lines if line.startswith(field)), float("nan"))


def wait_until(condition: Any, seconds: float, what: str) -> None:
    """Wait for a condition; on timeout the error names `what`."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"{what} did not happen within {seconds:g} s")
        time.sleep(0.01)
