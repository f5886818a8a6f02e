"""Federations of real processes over HTTPS: equality with the simulation, costs, and kills.

    python scripts/federation_check.py            # everything; writes docs/results/federation.json and federation.md
    python scripts/federation_check.py equality costs
    python scripts/federation_check.py kills --times 5
    python scripts/federation_check.py fifty --nodes 50

The server is `python -m lit_fed fit`, with mutual TLS; nodes are `lit-fed client`, or forked from this process. The
exit status is 1 if a run that should be exact is not.
"""

import argparse
import csv
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "integration"))

import numpy as np
import torch
from reproduction.markdown import Part, grid, wrap
from running import start
from sklearn.datasets import load_digits
from trials import TRIAL, facts, go_on, keep, newest_folder, rounds_logged, written

from lit_fed.cli import ArgumentsCLI
from lit_fed.command_line.client import node_settings
from lit_fed.deployment.certificates import make_certificates
from lit_fed.deployment.https_node import Link, run_node
from lit_fed.deployment.node import Node

RESULTS = Path(__file__).resolve().parents[1] / "docs/results/federation.json"

# ---------------------------------------------------------------------- processes
COMMON = [
    "--model.client_trainer", "sequential", "--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false",
]  # fmt: skip

PATIENCE = 900.0
SECONDS_TO_END = 1500


class NodeProcess:
    """A node, forked from this process, which has loaded PyTorch; can be killed and restarted."""

    def __init__(self, name: str, site: "Site") -> None:
        self.name, self.site = name, site
        self.process: Any = None
        self.start()

    def start(self) -> None:
        """Start a new process."""
        context = multiprocessing.get_context("fork")
        self.process = context.Process(target=_live, args=(self.name, self.site), daemon=True)
        self.process.start()

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.join()


def _live(name: str, site: "Site") -> None:
    folder = site.folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    node = Node(folder / "data" / name, folder / "states" / name, *site.settings)
    while True:
        run_node(node.handle, Link(site.address, folder / "tls" / name, None, PATIENCE, lambda line: None))


class Site:
    """Folders of clients, certificates, and processes."""

    def __init__(self, folder: Path, num_nodes: int, num_unseen: int = 1) -> None:
        self.folder, self.names = folder, [f"node-{number:02d}" for number in range(num_nodes)]
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.nodes: list[NodeProcess] = []
        self.settings: tuple[Any, ...] = ()
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
    def start_nodes(self, given: Sequence[str]) -> None:
        """Start all nodes, with the settings of these arguments of `fit`."""
        self.settings = node_settings(ArgumentsCLI(["fit", *COMMON, *given]))
        self.nodes = [NodeProcess(name, self) for name in self.names]

    def stop_nodes(self) -> None:
        """Kill all nodes."""
        for one in self.nodes:
            one.kill()
        self.nodes = []

    def start_command(self, name: str, config: Path) -> subprocess.Popen[str]:
        """Start a node by its command, with the configuration of a run."""
        folders = {"--data.root": "data", "--states": "states", "--tls": "tls"}
        given = [part for option, kind in folders.items() for part in (option, str(self.folder / kind / name))]
        # --stay, so that its memory can be read afterwards
        command = [sys.executable, "-m", "lit_fed", "client", "--server", self.address, "--config", str(config), *given]
        command.append("--stay")
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


# ---------------------------------------------------------------------- checks
say = partial(print, flush=True)  # a line of progress
SOLVER = ["--model.solver.momentum", "0.9", "--model.solver.persist_optimizer", "true"]
ENCODED = ["--model.compression", "TopK", "--model.compression.fraction", "0.1", "--model.compression_scope", "whole"]
MIXTURE = ["--model.algorithm", "FedEM"]  # as on nodes
PRIVATE = [
    "--model.privacy", "ClientPrivacy", "--model.privacy.noise_multiplier", "0.3", "--model.privacy.clip_norm", "1.0",
    "--model.privacy.delta", "1e-3", "--model.privacy.noise_seed", "0", "--data.client_sampling", "poisson",
    "--data.client_fraction", "0.8",
]  # fmt: skip

RUNS = {
    "FedEM": [*MIXTURE, *SOLVER],
    "SCAFFOLD": ["--model.algorithm", "SCAFFOLD", *SOLVER],
    "UCFL": ["--model.algorithm", "UCFL", "--model.algorithm.warmup_rounds", "1", *SOLVER],
    "IFCA": ["--model.algorithm", "IFCA", *SOLVER],
    "FedEM inside ClientPrivacy": [*MIXTURE, *SOLVER, *PRIVATE],
    "FedEM inside compression": [*MIXTURE, *SOLVER, *ENCODED],
}
"""Runs that must be equal on nodes and in the simulation."""

LARGE = ["--model.algorithm", "FedAvg", "--model.network", "MLP", "--model.network.hidden_sizes", "[512]"]
"""A model of 154 kB."""

WAIT = 4.0  # seconds that the server waits for nodes in each round if some are gone


def rounds(number: int) -> list[str]:
    """The argument for a number of rounds."""
    return ["--trainer.max_epochs", str(number)]


def equality(folder: Path, chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """Compare runs on four nodes with the simulation, bit by bit."""
    found, site = [], Site(folder, 4)
    try:
        for number, (name, given) in enumerate(RUNS.items()):
            given = [*given, *rounds(5)]
            site.stop_nodes()
            site.start_nodes(given)
            one = site.simulate(f"simulated-{number}", given)
            other = site.finish(f"federated-{number}", site.start_server(f"federated-{number}", given))
            found.append({"run": name, "differences": differences(one, other)})
            say(f"{name}: {'; '.join(found[-1]['differences']) or 'equal'}")
    finally:
        site.stop_nodes()
    return found


def costs(folder: Path, chosen: argparse.Namespace, num_rounds: int = 20) -> list[dict[str, Any]]:
    """Seconds and bytes of rounds with four nodes started by command, and a node's start-up and memory."""
    found = []
    for name, given in {"FedEM, linear": RUNS["FedEM"], "FedAvg, 154 kB": LARGE}.items():
        site = Site(folder / f"costs-{len(found)}", 4)
        given = [*given, *rounds(num_rounds)]
        simulated = site.simulate("simulated", given)
        server, nodes, begun = site.start_server("federated", given), [], time.monotonic()
        ready = []
        try:
            for one in site.names:
                before = time.monotonic()
                nodes.append(site.start_command(one, simulated / "config.yaml"))
                assert nodes[-1].stderr is not None
                nodes[-1].stderr.readline()  # "… are ready; asking …"
                ready.append(time.monotonic() - before)
            path, memory = site.finish("federated", server), [megabytes(one.pid, "status", "VmHWM") for one in nodes]
        finally:
            for one in nodes:
                one.kill()
                one.communicate()
        counts, table = site.counts("federated"), cells(path / "metrics.csv")
        counted = {way: sum(float(row[f"comm/bytes_{way}"] or 0) for row in table) for way in ("up", "down")}
        found.append({
            "run": name, "differences": differences(simulated, path), "round simulated": _round_seconds(simulated),
            "round on nodes": _round_seconds(path), "seconds in all": time.monotonic() - begun, "counted": counted,
            **counts, "node is ready after": statistics.median(ready), "megabytes of a node": max(memory),
        })  # fmt: skip
        say(str(found[-1]))
    return found


def _round_seconds(path: Path) -> float:
    """Median seconds of a round's training."""
    with (path / "metrics.csv").open() as file:
        seconds = [float(row["time/round_seconds"]) for row in csv.DictReader(file) if row.get("time/round_seconds")]
    return statistics.median(seconds)


def kills(folder: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    """Kill each process `--times` times during runs of FedEM and restart it at once."""
    site, rng, given = Site(folder, 3), random.Random(chosen.seed), [*RUNS["FedEM"], *rounds(chosen.rounds)]
    whole = site.simulate("whole", given)
    turns = [name for name in ("server", *site.names) for _ in range(chosen.times)]
    rng.shuffle(turns)
    site.start_nodes(given)
    times = dict.fromkeys(("server", *site.names), 0)
    record: dict[str, Any] = {"times": times, "runs": 0, "not exact": [], "rounds": chosen.rounds}
    try:
        while turns:
            name = f"killed-{record['runs']}"
            server = site.start_server(name, given)
            begun = time.monotonic()
            while turns and server.poll() is None:
                instant = time.monotonic() + rng.uniform(0, 4)
                while server.poll() is None and time.monotonic() < instant:
                    time.sleep(0.005)
                if server.poll() is not None:
                    break
                who = turns.pop()
                times[who] += 1
                if who == "server":
                    server.kill()
                    server.communicate()
                    server = site.start_server(name, given)
                    _wait_for_round(site, name, server, site.rounds_logged(name) + 1)
                else:
                    node = site.nodes[site.names.index(who)]
                    node.kill()
                    node.start()
            path = site.finish(name, server)
            lost = differences(whole, path)
            record["runs"] += 1
            record["not exact"] += [f"{name}: {one}" for one in lost]
            took = time.monotonic() - begun
            say(f"{name}: {'; '.join(lost) or 'exact'} after {took:.0f} s, {len(turns)} kills to go")
    finally:
        site.stop_nodes()
    return record


def fifty(folder: Path, chosen: argparse.Namespace, num_rounds: int = 20) -> dict[str, Any]:
    """Many nodes; a fifth are killed for good during the run, the others continue."""
    num_nodes, rng = chosen.nodes, random.Random(chosen.seed)
    site = Site(folder, num_nodes)
    given = [*RUNS["FedEM"], *rounds(num_rounds), "--trainer.check_val_every_n_epoch", str(num_rounds)]
    given += ["--data.dataset.missing", "drop", "--data.dataset.seconds", str(WAIT)]
    given += ["--model.faults.on_bad_client", "drop"]
    gone = rng.sample(range(num_nodes), num_nodes // 5)
    at = sorted(rng.uniform(2, num_rounds - 2) for _ in gone)
    begun = time.monotonic()
    site.start_nodes([*RUNS["FedEM"], "--model.faults.on_bad_client", "drop"])
    try:
        server, memory = site.start_server("many", given), 0.0
        for node, instant in zip(gone, at, strict=True):
            _wait_for_round(site, "many", server, int(instant))
            living = [one.process.pid for one in site.nodes if one.process.is_alive()]
            memory = max(memory, sum(megabytes(pid, "smaps_rollup", "Pss:") for pid in living))
            site.nodes[node].kill()
        path = site.finish("many", server)
    finally:
        site.stop_nodes()
    seconds, summary = time.monotonic() - begun, json.loads((path / "summary.json").read_text())
    say(f"{num_nodes} nodes, {len(gone)} killed: {len(cells(path / 'metrics.csv'))} rows in {seconds:.0f} s")
    return {
        "nodes": num_nodes, "killed": len(gone), "rounds": num_rounds, "wait": WAIT, "seconds": seconds,
        "left out": {name: value for name, value in summary.items() if name.startswith("faults/")},
        "accuracy": summary.get("test/seen/accuracy"), "megabytes of all nodes": memory,
    }  # fmt: skip


def _wait_for_round(site: Site, name: str, server: Any, number: int) -> None:
    """Wait until a run has logged this many rounds or ended."""
    end = time.monotonic() + 1200
    while server.poll() is None and site.rounds_logged(name) < number:
        if time.monotonic() > end:
            raise SystemExit(f"round {number} did not happen within 1200 s")
        time.sleep(0.01)


# ---------------------------------------------------------------------- docs/results/federation.md
def page(record: dict[str, Any]) -> str:
    """The page of a record; its words are in federation_check.md."""
    given = ", ".join(f"{key} {value}" for key, value in record["facts"].items())
    parts: dict[str, Any] = {"finding": _finding(record), "facts": given}
    for part, make in {"equality": _equality, "costs": _costs, "kills": _kills, "fifty": _fifty}.items():
        if part in record:
            parts |= {f"if_{part}": "", **make(record[part])}
    return written(__file__, parts)


def _finding(record: dict[str, Any]) -> str:
    said = []
    if "equality" in record:
        equal = sum(not one["differences"] for one in record["equality"])
        said.append(f"{equal} of {len(record['equality'])} runs over HTTPS equal the simulation bit for bit.")
    if "kills" in record:
        total, runs = sum(record["kills"]["times"].values()), record["kills"]["runs"]
        wrong = len({one.partition(":")[0] for one in record["kills"]["not exact"]})
        said.append(f"{total} kills of servers and nodes changed {wrong or 'none'} of the {runs} runs that they met.")
    if "fifty" in record:
        text = "{nodes} nodes finished {rounds} rounds without the {killed} that were killed."
        said.append(text.format_map(record["fifty"]))
    return " ".join(said) or "Nothing was run yet."


def _equality(rows: list[dict[str, Any]]) -> dict[str, Part]:
    cells = [[one["run"], "; ".join(one["differences"]) or "equal"] for one in rows]
    return {"equality": grid(["run", "differs in"], cells)}


NODE = "{run}: a node is ready {node is ready after:.1f} s after its start, and takes {megabytes of a node:.0f} MB."


def _costs(rows: list[dict[str, Any]]) -> dict[str, Part]:
    cells, more = [], []
    for one in rows:
        counted, sent, received = one["counted"], one["sent"], one["received"]
        ways = [(sent["train"], counted["down"]), (received["train"], counted["up"])]
        beyond = [f"{wire / 1000:,.0f}, {100 * (wire / said - 1):+.1f} %" for wire, said in ways]
        measure = f"{(sent['measure'] + received['measure']) / 1000:,.0f}"
        seconds = [f"{one[f'round {how}']:.3f}" for how in ("simulated", "on nodes")]
        cells.append([one["run"], *seconds, *beyond, measure])
        more.append(NODE.format_map(one))
    head = ["run", "s, simulated", "s, nodes", "kB down, beyond the count", "kB up, beyond the count", "kB to measure"]
    return {"costs": grid(head, cells), "of_nodes": " ".join(more)}


def _kills(record: dict[str, Any]) -> dict[str, Any]:
    times = ", ".join(f"{name} {count}" for name, count in record["times"].items())
    wrong = [line for one in record["not exact"] for line in wrap(one)] or ["Nothing differs, and every run ended."]
    return {"kills": times, "kill_rounds": record["rounds"], "runs": record["runs"], "not exact": wrong}


def _fifty(record: dict[str, Any]) -> dict[str, Any]:
    rounds_of = record["left out"].get("faults/failed_clients", {}).values()
    slow = (
        f", and in the first round those of {sum(0 in one for one in rounds_of)} nodes that did not make all they need "
        "in time, all at once on one machine; the rounds went on without them, and they came back"
    )
    found = {"missed": sum(map(len, rounds_of)), "slow": slow if any(0 in one for one in rounds_of) else ""}
    return record | found | {"gigabytes": record["megabytes of all nodes"] / 1000}


# ---------------------------------------------------------------------- command line
PARTS = {"equality": equality, "costs": costs, "kills": kills, "fifty": fifty}


def failed(part: str, record: Any) -> bool:
    """Whether a run that should be exact is not."""
    if part == "kills":
        return bool(record["not exact"])
    return any(row["differences"] for row in record) if part in ("equality", "costs") else False


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="parts to run; default: all")
    parser.add_argument("--times", type=int, default=20, help="kills of each process")
    parser.add_argument("--rounds", type=int, default=150, help="rounds of the runs with kills")
    parser.add_argument("--nodes", type=int, default=50, help="nodes of the part fifty")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random choices")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the record; its page is written beside it")
    given, bad = parser.parse_args(arguments), False
    for part in given.parts or PARTS:
        folder = Path(tempfile.mkdtemp(prefix=f"federation-{part}-"))
        try:
            record = PARTS[part](folder, given)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        keep(given.out, page, **{part: record}, facts=facts())
        bad = bad or failed(part, record)
    raise SystemExit(bad)


if __name__ == "__main__":
    main()
