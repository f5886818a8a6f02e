"""Measures FedAvg beside other frameworks, each in an environment of its own; writes docs/results/peers.md.

    python scripts/bench_peers.py --environments ~/peers            # all, environments made where they are missing
    python scripts/bench_peers.py --environments ~/peers lit_fed pfl

Two workloads, the same files for all: all clients in every round, one local epoch of SGD with batches of a fixed size,
averages of the models. A figure is CPU seconds of a whole process on one thread, from its start to its end, median of
the turns in which all take part; beside it those of a round, from processes of many and of few rounds. Each program of
scripts/peers/ prints the loss of its model on all samples, which stands beside its seconds: what is fast has to learn.
"""

import argparse
import contextlib
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import venv
from pathlib import Path
from typing import NamedTuple

import numpy as np
from trials import written

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = Path(__file__).resolve().parent / "peers"


class Workload(NamedTuple):
    """What is trained."""

    what: str
    num_clients: int
    most_samples: int
    shape: tuple[int, ...]
    rounds: tuple[int, int]  # of the short and of the whole process
    lr: float
    batch_size: int


WORKLOADS = {
    "logistic": Workload("Logistic regression, 60 inputs", 100, 150, (60,), (2, 200), 0.1, 16),
    "cnn": Workload("CNN of 54,000 parameters, images of 1×28×28", 20, 180, (1, 28, 28), (2, 60), 0.05, 20),
}
NUM_CLASSES = 10

PEERS = {
    "lean": None,
    "lit_fed": None,
    "pfl": ("pfl==0.6.0", "torch==2.15.0"),
    "flower": ("flwr[simulation]==1.41.0", "torch==2.15.0"),
    "fedjax": ("fedjax==0.0.17", "jax==0.4.25", "jaxlib==0.4.25", "numpy<2", "scipy<1.13", "dm-haiku==0.0.12"),
}
"""Programs of scripts/peers/ and what their environments hold; None: this process's environment."""
LABELS = {"lean": "forty lines of PyTorch", "lit_fed": "**lit_fed**", "pfl": "pfl-research", "flower": "Flower"}
LABELS |= {"fedjax": "FedJAX"}

PR_SET_CHILD_SUBREAPER = 36  # of Linux's prctl
SECONDS_BETWEEN_LOOKS = 0.2


def write_data(workload: Workload, file: Path) -> None:
    """Clients of 50 to `most_samples` samples around class means that differ a little from client to client."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(50, workload.most_samples, workload.num_clients)
    means = rng.normal(0, 1, (NUM_CLASSES, *workload.shape)) * (0.5 if len(workload.shape) == 1 else 0.3)
    owner = np.repeat(np.arange(workload.num_clients), sizes)
    y = rng.integers(0, NUM_CLASSES, sizes.sum())
    x = means[y] + rng.normal(0, 0.2, (workload.num_clients, *workload.shape))[owner]
    x = (x + rng.normal(0, 1, x.shape)).astype(np.float32)
    np.savez(file, x=x, y=y.astype(np.int64), sizes=sizes)


def environment_of(peer: str, folder: Path) -> Path:
    """The Python of a peer's environment, which is made if there is none."""
    pins = PEERS[peer]
    if pins is None:
        return Path(sys.executable)
    python = folder / peer / "bin" / "python"
    if not python.is_file():
        venv.create(folder / peer, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *pins], check=True)
    return python


def run(peer: str, python: Path, workload: str, file: Path, rounds: int) -> tuple[float, float]:
    """CPU seconds of a process, and the loss at its end."""
    one = WORKLOADS[workload]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = kept | threads | {"PYTHONPATH": str(ROOT if PEERS[peer] is None else PROGRAMS)}
    environment |= {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"}
    environment |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    environment["WORKLOAD"] = f"{file}|{workload}|{one.lr}|{one.batch_size}"
    given = [str(file), workload, str(rounds), str(one.lr), str(one.batch_size)]
    with tempfile.TemporaryDirectory() as place:
        before, watch = os.times(), Watch()
        watch.start()
        done = subprocess.run(
            [python, str(PROGRAMS / f"{peer}_fedavg.py"), *given],
            env=environment, cwd=place, capture_output=True, text=True, check=False,
        )  # fmt: skip
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()  # for processes whose parents have ended
        after, watched = os.times(), watch.total()
    if done.returncode:
        raise RuntimeError(f"{peer}: {done.stderr[-2000:]}")
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return max(used, watched), float(done.stdout.split()[-1])  # each may miss some


def adopt_orphans() -> None:
    """From now on processes whose parents end are this one's: Ray's actors are no children of the program itself."""
    if not sys.platform.startswith("linux"):
        raise SystemExit("bench_peers counts the seconds of processes that outlive their parents, as Linux alone can")
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Watch(threading.Thread):
    """Looks at the seconds of all processes below this one, now and then: those of some are never handed on.

    A process that is ended by one that does not wait for it takes its seconds with it, as Ray's actors do.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seconds: dict[tuple[int, str], float] = {}  # of each process, by its number and when it began
        self.ended = threading.Event()

    def run(self) -> None:
        """Look until told to end."""
        while not self.ended.wait(SECONDS_BETWEEN_LOOKS):
            self.look()

    def look(self) -> None:
        """Take down what every process below this one has used so far."""
        parents, found = {}, {}
        for place in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = place.read_text().rpartition(")")[2].split()  # from the third field of proc(5) on
                number = int(place.parent.name)
                parents[number] = int(fields[1])
                used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                found[number] = (number, fields[19]), used
        below = {os.getpid()}
        while more := {number for number, parent in parents.items() if parent in below} - below:
            below |= more
        self.seconds |= dict(found[number] for number in below - {os.getpid()})

    def total(self) -> float:
        """End, and sum up."""
        self.ended.set()
        self.join()
        return sum(self.seconds.values())


def measured(workload: str, pythons: dict[str, Path], turns: int) -> dict[str, float]:
    """The figures of a workload."""
    few, many = WORKLOADS[workload].rounds
    seconds: dict[tuple[str, int], list[float]] = {(peer, rounds): [] for peer in pythons for rounds in (few, many)}
    losses = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.npz"
        write_data(WORKLOADS[workload], file)
        for peer in pythons:  # a program that runs for the first time compiles its packages, which is done once
            run(peer, pythons[peer], workload, file, 1)
        for _ in range(turns):
            for peer, rounds in seconds:
                used, losses[peer] = run(peer, pythons[peer], workload, file, rounds)
                print(f"{workload}, {peer}, {rounds} rounds: {used:.2f} CPU s", flush=True)
                seconds[peer, rounds].append(used)
    row = {}
    for peer in pythons:
        short, whole = (float(np.median(seconds[peer, rounds])) for rounds in (few, many))
        each = (whole - short) / (many - few)
        row |= {f"{peer}, whole process": whole, f"{peer}, a round": each, f"{peer}, start": whole - many * each}
        row[f"{peer}, loss"] = losses[peer]
    for peer in pythons:
        if peer != "lit_fed" and "lit_fed" in pythons:
            for what in ("whole process", "a round"):
                row[f"lit_fed / {peer}, {what}"] = row[f"lit_fed, {what}"] / row[f"{peer}, {what}"]
    return row


def page(rows: dict[str, dict[str, float]], facts: dict[str, str]) -> str:
    """docs/results/peers.md, whose words are in bench_peers.md."""
    lines: list[str] = []
    for workload, row in rows.items():
        one = WORKLOADS[workload]
        lines += [
            "", f"## {one.what}",
            "", "| program | whole process | of that lit_fed takes | start | a round | loss |",
            "|---|---:|---:|---:|---:|---:|",
            *(f"| {cells} |" for cells in _programs(row)),
            "", f"{one.num_clients} clients of 50 to {one.most_samples} samples, all in every round, one local epoch, "
            f"batches of {one.batch_size}; {one.rounds[1]} rounds from the start of the process to its end.",
        ]  # fmt: skip
    lines += ["", ", ".join(f"{name} {value}" for name, value in facts.items()) + "."]
    shares = {f"{workload}_{peer}": _share(row, peer) for workload, row in rows.items() for peer in PEERS}
    return written(__file__, {"workloads": lines[1:], **shares})


def _share(row: dict[str, float], peer: str) -> str | None:
    """What a whole process of lit_fed takes of a peer's seconds; None without both."""
    share = row.get(f"lit_fed / {peer}, whole process")
    return None if share is None else f"{share:.2f}"


def _programs(row: dict[str, float]) -> list[str]:
    """A line of cells for each program, the fastest process first."""
    peers = sorted((peer for peer in PEERS if f"{peer}, loss" in row), key=lambda peer: row[f"{peer}, whole process"])
    lines = []
    for peer in peers:
        whole, each, start, loss = (row[f"{peer}, {what}"] for what in ("whole process", "a round", "start", "loss"))
        taken = _share(row, peer) or ""
        lines.append(f"{LABELS[peer]} | {whole:.1f} s | {taken} | {start:.1f} s | {1000 * each:.0f} ms | {loss:.3f}")
    return lines


def main() -> None:
    """Measure and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", choices=[*PEERS, []], help=f"of {', '.join(PEERS)}; all without")
    parser.add_argument("--environments", type=Path, required=True, help="folder of the peers' environments")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/results/peers.json")
    chosen = parser.parse_args()
    adopt_orphans()
    pythons = {peer: environment_of(peer, chosen.environments.absolute()) for peer in chosen.peers or PEERS}
    load = os.getloadavg()[0]
    rows = {workload: measured(workload, pythons, chosen.turns) for workload in WORKLOADS}
    pins = [pin for peer in pythons for pin in PEERS[peer] or () if "==" in pin]
    facts = {"versions": " ".join(pins), "load": f"{load:.1f}", "turns": str(chosen.turns)}
    facts["date"] = time.strftime("%Y-%m-%d")
    chosen.out.write_text(json.dumps({"rows": rows, "facts": facts}, indent=2) + "\n")
    chosen.out.with_suffix(".md").write_text(page(rows, facts))


if __name__ == "__main__":
    main()
