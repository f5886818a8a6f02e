"""Seconds of a round on the device: networks, algorithms, client trainers and precisions; processes that share it."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from gpu_stages.cells import Cells
from gpu_stages.workload import Size, federation, pictures, precision

__all__ = ["speed"]

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
    """A cell for each algorithm, network, precision and client trainer, then processes side by side."""
    for algorithm, network, kind in ROWS:
        for how in HOW:
            name = f"{algorithm}, {network}, {kind}, {how}"
            cells.measure(
                "speed", name, lambda row=(algorithm, network, kind, how): seconds(*row, device, size), needs=10
            )
    for at_once in (4, 8, 16) if device.type == "cuda" else (1, 2):
        for how in ("graphed", "sequential"):
            cells.measure(
                "processes",
                f"{at_once}, {how}",
                lambda row=(at_once, device, size, how): side_by_side(*row),
                needs=40,
            )


def seconds(
    algorithm: str, network: str, kind: str, how: str, device: torch.device, size: Size, rounds: int = 3
) -> dict[str, Any]:
    """Median wall seconds of a round after one to warm up, and the most memory that was in use, in GB."""
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
    """Seconds of a round of FedEM with FedEMCNN in each of several processes that share the device."""
    program = (
        f"import sys; sys.path[:0] = {[str(Path(__file__).resolve().parents[1])]!r}\n"
        "import torch\n"
        "from gpu_stages.speed import seconds\n"
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
