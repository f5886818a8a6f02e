"""Measure the stages of docs/results/gpu.md on a GPU; continues where it stopped.

    python scripts/gpu_day.py                     # all stages, at most 540 seconds; repeat until all are done
    python scripts/gpu_day.py speed --seconds 300 --only "FedEM, *"

Needs neither jsonargparse nor wandb. Without a GPU it runs toy sizes on the CPU into runs/gpu/.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import numpy as np
import torch
from reproduction.markdown import grid
from torch import Tensor
from trials import written

from lit_fed.algorithms import FedAvg, FedEM
from lit_fed.clients import ClientTrainer, SequentialTrainer, VectorizedTrainer
from lit_fed.clients.graphed import GraphedTrainer
from lit_fed.core import tree
from lit_fed.core.algorithm import Algorithm
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.targets import Multiclass
from lit_fed.core.task import Task
from lit_fed.core.types import Split
from lit_fed.models import FedEMCNN, LeNet5
from lit_fed.rounds import FederatedRounds, start
from lit_fed.system.files import write_atomically

ROOT = Path(__file__).resolve().parents[1]


# ---------------------------------------------------------------------- workload
ALGORITHMS: dict[str, Algorithm] = {"FedAvg": FedAvg(), "FedEM": FedEM(num_components=3)}
NETWORKS = {"LeNet5": LeNet5, "FedEMCNN": FedEMCNN}
PRECISIONS = ("float32", "tf32", "bf16")
CLASSES = 10


class Size(NamedTuple):
    """Size of a federation."""

    clients: int
    samples: int  # of all clients together
    shape: tuple[int, int, int] = (3, 32, 32)
    batch: int = 128


@lru_cache(maxsize=1)
def pictures(size: Size, device: torch.device, dtype: torch.dtype = torch.float32) -> Split:
    """Random images and labels; client sizes vary between a third and three times the mean."""
    rng = np.random.default_rng(0)
    share = np.clip(rng.lognormal(0, 0.7, size.clients), 1 / 3, 3)
    sizes = np.maximum((share / share.sum() * size.samples).astype(int), 2)
    total = int(sizes.sum())
    x = torch.from_numpy(rng.standard_normal((total, *size.shape), dtype=np.float32)).to(dtype)
    y = torch.from_numpy(rng.integers(0, CLASSES, total))
    offsets = torch.from_numpy(np.concatenate([[0], sizes.cumsum()]))
    return Split(x, y, offsets).to(device)


def trainer(name: str) -> ClientTrainer:
    """A client trainer by name: `sequential`, `graphed`, or `vectorized`, perhaps with the size of a chunk."""
    kind, _, megabytes = name.partition(" ")
    if kind in ("sequential", "graphed"):
        one_by_one = SequentialTrainer if kind == "sequential" else GraphedTrainer
        return one_by_one(channels_last=megabytes == "channels last")
    return VectorizedTrainer(chunk_bytes=int(megabytes.split()[0]) * 2**20 if megabytes else None)


def federation(
    algorithm: str, network: str, train: Split, how: str, *, batch: int, dtype: torch.dtype = torch.float32
) -> FederatedRounds:
    """A federation with the solver of FedEM's scripts and persistent momentum."""
    shape = tuple(train.x.shape[1:])
    task = Task.create(lambda: NETWORKS[network](shape, CLASSES), Multiclass(CLASSES), dtype=dtype)
    solver = LocalSolver(lr=0.03, momentum=0.9, weight_decay=5e-4, persist_optimizer=True)
    made = start(ALGORITHMS[algorithm], task, train, solver=solver, batch_size=batch, num_rounds=200)
    made.client_trainer = trainer(how)
    return made


@contextmanager
def precision(name: str, device: torch.device) -> Iterator[None]:
    """Compute in `float32`, with products and convolutions in `tf32`, or in `bf16`."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = name == "tf32"
    try:
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=name == "bf16", cache_enabled=False):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


class Cells:
    """The record of a day: no cell of the JSON file is measured again, and none starts after `seconds`."""

    def __init__(self, path: Path, seconds: float, only: str = "*") -> None:
        self.path, self.only, self.ends = path, only, time.monotonic() + seconds
        self.values: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}

    @property
    def left(self) -> float:
        """Seconds until the end of the call."""
        return self.ends - time.monotonic()

    def note(self, name: str, value: Any) -> None:
        """Keep a value under a name."""
        self.values[name] = value
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, json.dumps(self.values, indent=1, sort_keys=True) + "\n")

    def measure(self, stage: str, name: str, cell: Callable[[], dict[str, Any]], needs: float = 10.0) -> None:
        """Measure a missing cell if there is time; a failure is kept; `needs`: its expected seconds."""
        kept = self.values.get(stage, {})
        if name in kept or self.left < needs or not fnmatch(name, self.only):
            return
        started = time.monotonic()
        try:
            value = cell()
        except Exception as error:  # a failing cell must not stop the others
            value = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0][:300] if str(error) else ''}"}
        self.note(stage, kept | {name: value})
        print(f"{stage}: {name}: {json.dumps(value)} ({time.monotonic() - started:.1f} s)", flush=True)


# ---------------------------------------------------------------------- stages
HOW = (
    "graphed", "sequential", "graphed channels last", "vectorized", "sequential channels last", "vectorized 8 MB",
)  # fmt: skip
ROWS = [
    ("FedEM", "FedEMCNN", "tf32"), ("FedEM", "LeNet5", "tf32"), ("FedAvg", "FedEMCNN", "tf32"),
    ("FedAvg", "LeNet5", "tf32"), ("FedEM", "FedEMCNN", "float32"), ("FedEM", "FedEMCNN", "bf16"),
    ("FedEM", "LeNet5", "float32"), ("FedEM", "LeNet5", "bf16"),
]  # fmt: skip


def speed(cells: Cells, device: torch.device, size: Size) -> None:
    """A cell for each algorithm, network, precision and client trainer."""
    for row in ((*one, how) for one in ROWS for how in HOW):
        cells.measure("speed", ", ".join(row), lambda row=row: seconds(*row, device, size))


def seconds(
    algorithm: str, network: str, kind: str, how: str, device: torch.device, size: Size, rounds: int = 3
) -> dict[str, Any]:
    """Median wall seconds of a round after a warm-up round, and peak memory in GB."""
    train = pictures(size, device)
    made = federation(algorithm, network, train, how, batch=size.batch)
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    taken = []
    with precision(kind, device):
        for _ in range(rounds + 1):
            started = time.perf_counter()
            made.round(train)
            if on_gpu:
                torch.cuda.synchronize()
            taken.append(time.perf_counter() - started)
            if taken[-1] > 12:
                break
    row = {"seconds": round(statistics.median(taken[1:] or taken), 4), "first": round(taken[0], 3)}
    if on_gpu:
        row["gigabytes"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        del made, train
        torch.cuda.empty_cache()
    return row


LIMITS = {"float64": 1e-9, "float32": 1e-3, "tf32": 2e-2, "bf16": 1e-1}
"""Limit of ‖difference‖ / ‖change‖ of the models after two rounds."""

SMALL = Size(6, 480, batch=32)
TYPES = {"float64": torch.float64}


def parity(cells: Cells, device: torch.device, size: Size) -> None:
    """A cell for each algorithm, precision and client trainer, against the sequential CPU."""
    small = SMALL if device.type == "cuda" else size
    for algorithm in ALGORITHMS:
        for kind in LIMITS:
            for how in ("sequential", "graphed", "vectorized 512 MB"):
                name = f"{algorithm}, LeNet5, {kind}, {how}"
                cells.measure("parity", name, lambda row=(algorithm, kind, how): apart(*row, device, small))


def apart(algorithm: str, kind: str, how: str, device: torch.device, size: Size) -> dict[str, Any]:
    """Distance of the models after two rounds relative to their change, and whether it is within the limit."""
    cpu = torch.device("cpu")
    before, here = _models(algorithm, "float32" if kind in ("tf32", "bf16") else kind, "sequential", cpu, size)
    _, there = _models(algorithm, kind, how, device, size)
    relative = float((there - here).norm() / (here - before).norm())
    return {"apart": float(f"{relative:.2g}"), "within": relative < LIMITS[kind]}


def _models(algorithm: str, kind: str, how: str, device: torch.device, size: Size) -> tuple[Tensor, Tensor]:
    """Shared models before and after two rounds, as float64 vectors on the CPU."""
    dtype = TYPES.get(kind, torch.float32)
    train = pictures(size, device, dtype)
    made = federation(algorithm, "LeNet5", train, how, batch=size.batch, dtype=dtype)

    def vector() -> Tensor:
        leaves = tree.leaves(made.shared.models.parameters)
        return torch.cat([leaf.detach().double().cpu().flatten() for leaf in leaves])

    before = vector()
    with precision(kind, device):
        for _ in range(2):
            made.round(train)
    return before, vector()


def tests(cells: Cells, device: torch.device, size: Size) -> None:
    """Run tests/gpu in a separate process; without a device they skip."""
    limit = max(cells.left - 5, 30)

    def cell() -> dict[str, Any]:
        command = [sys.executable, "-m", "pytest", "-n", "0", "-rf", "-m", "gpu", "tests/gpu"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False)
        counts = {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout)}
        failed = re.findall(r"^FAILED (\S+)", done.stdout, re.MULTILINE)
        return counts | {"failures": failed[:20], "last line": (done.stdout + done.stderr).strip().splitlines()[-1]}

    cells.measure("tests", "tests/gpu", cell, needs=60)


# ---------------------------------------------------------------------- docs/results/gpu.md
def page(values: dict[str, Any]) -> str:
    """The page of a record; its words are in gpu_day.md."""
    measured = []
    for name, cell in values.get("speed", {}).items():
        measured.append(["speed", name, ", ".join(f"{key} {value}" for key, value in cell.items())])
    found = values.get("tests", {}).get("tests/gpu")
    counts = ", ".join(f"{key}: {value}" for key, value in (found or {}).items() if isinstance(value, int))
    parity = []
    for name, cell in values.get("parity", {}).items():
        parity.append([name, str(cell.get("apart", cell.get("failed"))), str(LIMITS.get(name.split(", ")[2], ""))])
    head = ["against the CPU, one client after another", "‖difference‖ / ‖change‖ after two rounds", "limit"]
    tables = {"speed": grid(["stage", "what", "measured"], measured), "parity": grid(head, parity) if parity else None}
    said = f"Tests on this device: {counts}." if found else NOT_TESTED
    by_hand = {"finding": values.get("finding"), "notes": values.get("notes", [])}
    return written(__file__, {**values["device"], **by_hand, "counts": said, **tables})


NOT_TESTED = "**The tests of `tests/gpu/` have not been run on a device.**"

# ---------------------------------------------------------------------- command line
STAGES = {"tests": tests, "parity": parity, "speed": speed}
FULL, TOY = Size(80, 38400), Size(3, 24, (3, 16, 16), 8)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run stages and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", choices=[*STAGES, []], help="default: all")
    parser.add_argument("--output", type=Path, help="folder of gpu.json and gpu.md")
    parser.add_argument("--seconds", type=float, default=540, help="no cell starts later")
    parser.add_argument("--only", default="*", help="pattern of cells with *")
    parser.add_argument("--write", action="store_true", help="only write the page from gpu.json")
    chosen = parser.parse_args(arguments)
    found = torch.cuda.is_available()
    output = chosen.output or ROOT / ("docs/results" if found or chosen.write else "runs/gpu")
    if not chosen.write:
        measure(chosen, output, found)
    write_atomically(output / "gpu.md", page(json.loads((output / "gpu.json").read_text())))


def measure(chosen: argparse.Namespace, output: Path, found: bool) -> None:
    """Measure cells until the time is over."""
    cells = Cells(output / "gpu.json", chosen.seconds, chosen.only)
    name = torch.cuda.get_device_name() if found else "no GPU: toy sizes on the CPU, figures mean nothing"
    print(name, flush=True)
    cells.note("device", {"name": name, "torch": torch.__version__})
    for stage in chosen.stages or STAGES:
        STAGES[stage](cells, torch.device("cuda:0" if found else "cpu"), FULL if found else TOY)


if __name__ == "__main__":
    main()
