"""Stages of gpu_day.py: seconds of a round, gains of CUDA graphs, and parity with the CPU."""

import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpu_stages.cells import Cells
from gpu_stages.workload import ALGORITHMS, Size, federation, pictures, precision
from lit_fed.core import tree
from lit_fed.core.types import Batch

HOW = (
    "graphed",
    "sequential",
    "graphed channels last",
    "vectorized 2048 MB",
    "sequential channels last",
    "vectorized 8 MB",
)
ROWS = [
    ("FedEM", "FedEMCNN", "tf32"), ("FedEM", "LeNet5", "tf32"), ("FedAvg", "FedEMCNN", "tf32"),
    ("FedAvg", "LeNet5", "tf32"), ("FedEM", "FedEMCNN", "float32"), ("FedEM", "FedEMCNN", "bf16"),
    ("FedEM", "LeNet5", "float32"), ("FedEM", "LeNet5", "bf16"),
]  # fmt: skip


def speed(cells: Cells, device: torch.device, size: Size) -> None:
    """A cell for each algorithm, network, precision and client trainer, then concurrent processes."""
    for algorithm, network, kind in ROWS:
        for how in HOW:
            name = f"{algorithm}, {network}, {kind}, {how}"
            cells.measure(
                "speed", name, lambda row=(algorithm, network, kind, how): seconds(*row, device, size), needs=10
            )
    for at_once in (4, 8, 16) if device.type == "cuda" else (1, 2):
        for how in ("graphed", "sequential"):
            cells.measure(
                "processes", f"{at_once}, {how}", lambda row=(at_once, device, size, how): side_by_side(*row), needs=40
            )


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


def side_by_side(at_once: int, device: torch.device, size: Size, how: str) -> dict[str, Any]:
    """Seconds of a round of FedEM with FedEMCNN in concurrent processes on one device."""
    program = (
        f"import sys; sys.path[:0] = {[str(Path(__file__).resolve().parents[1])]!r}\n"
        "import torch\n"
        "from gpu_stages.stages import seconds\n"
        "from gpu_stages.workload import Size\n"
        f"size = Size({size.clients}, {size.samples}, {size.shape}, {size.batch})\n"
        f"row = seconds('FedEM', 'FedEMCNN', 'tf32', '{how}', torch.device('{device.type}'), size, rounds=4)\n"
        "print(row['seconds'])"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(at_once)
    ]
    taken = [float(one.communicate()[0].splitlines()[-1]) for one in started]
    return {"seconds": round(statistics.median(taken), 4), "rounds per second": round(sum(1 / one for one in taken), 3)}


# ---------------------------------------------------------------------- CUDA graphs
def graphs(cells: Cells, device: torch.device, size: Size) -> None:
    """A cell for each algorithm and network."""
    for network in ("LeNet5", "FedEMCNN"):
        for algorithm in ("FedAvg", "FedEM"):
            for kind in ("tf32", "bf16"):
                name = f"{algorithm}, {network}, {kind}"
                cells.measure("graphs", name, lambda row=(algorithm, network, kind): both(*row, device, size), needs=5)


def both(algorithm: str, network: str, kind: str, device: torch.device, size: Size, times: int = 100) -> dict[str, Any]:
    """Milliseconds of a local step, eager and replayed, and the difference of results; without CUDA only eager."""
    train = pictures(size._replace(clients=2, samples=3 * size.batch), device)
    made = federation(algorithm, network, train, "sequential", batch=size.batch)
    ctx, shared = made.context("train"), made.shared
    models = shared.models
    optimizer = ctx.solver.init(models)
    rows = torch.arange(size.batch, device=device)
    weight = torch.full((size.batch, len(next(iter(models.parameters.values())))), 0.5)
    weight = weight.to(device)
    batch = Batch(train.x[rows], train.y[rows], rows, torch.ones(size.batch, device=device))

    def step() -> Any:
        return ctx.solver.step_without_loss(ctx.task, models, optimizer, batch, ctx.lr, weight=weight)

    with precision(kind, device):
        eager = _milliseconds(step, device, times)
        if device.type != "cuda":
            return {"eager": eager}
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                expected = step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            recorded = step()
        replayed = _milliseconds(graph.replay, device, times)
        expected = step()
    apart = max(float((a - b).abs().max()) for a, b in zip(tree.leaves(expected), tree.leaves(recorded), strict=True))
    return {"eager": eager, "replayed": replayed, "apart": float(f"{apart:.2g}")}


def _milliseconds(function: Callable[[], Any], device: torch.device, times: int) -> float:
    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    for _ in range(3):
        function()
    wait()
    started = time.perf_counter()
    for _ in range(times):
        function()
    wait()
    return round(1000 * (time.perf_counter() - started) / times, 3)


# ---------------------------------------------------------------------- parity
ROOT = Path(__file__).resolve().parents[2]
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
    found = []
    with precision(kind, device):
        found.append(_vector(made.shared.models.parameters))
        for _ in range(2):
            made.round(train)
        found.append(_vector(made.shared.models.parameters))
    return found[0], found[1]


def _vector(parameters: dict[str, Tensor]) -> Tensor:
    return torch.cat([leaf.detach().double().cpu().flatten() for leaf in tree.leaves(parameters)])


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
