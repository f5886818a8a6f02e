"""One device gives what the CPU gives, and every client trainer what the sequential one gives."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpu_stages.cells import Cells
from gpu_stages.workload import ALGORITHMS, Size, federation, pictures, precision
from lit_fed.core import tree

__all__ = ["LIMITS", "parity", "tests"]

ROOT = Path(__file__).resolve().parents[2]
LIMITS = {"float64": 1e-9, "float32": 1e-3, "tf32": 2e-2, "bf16": 1e-1}
"""Largest ‖difference‖ / ‖change‖ of the models after two rounds that counts as equal."""

SMALL = Size(6, 480, batch=32)
TYPES = {"float64": torch.float64}


def parity(cells: Cells, device: torch.device, size: Size) -> None:
    """A cell for each algorithm, precision and client trainer, against the CPU one client after another."""
    small = SMALL if device.type == "cuda" else size
    for algorithm in ALGORITHMS:
        for kind in LIMITS:
            for how in ("sequential", "graphed", "vectorized 512 MB"):
                name = f"{algorithm}, LeNet5, {kind}, {how}"
                cells.measure("parity", name, lambda row=(algorithm, kind, how): apart(*row, device, small))


def apart(algorithm: str, kind: str, how: str, device: torch.device, size: Size) -> dict[str, Any]:
    """How far the models lie apart after two rounds, relative to how far they moved, and whether that is allowed."""
    cpu = torch.device("cpu")
    before, here = _models(algorithm, "float32" if kind in ("tf32", "bf16") else kind, "sequential", cpu, size)
    _, there = _models(algorithm, kind, how, device, size)
    relative = float((there - here).norm() / (here - before).norm())
    return {"apart": float(f"{relative:.2g}"), "within": relative < LIMITS[kind]}


def _models(algorithm: str, kind: str, how: str, device: torch.device, size: Size) -> tuple[Tensor, Tensor]:
    """The shared models before the first round and after two, as long vectors in float64 on the CPU."""
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
    """The tests of tests/gpu, in a process of their own; without a device they are collected, and skip."""
    limit = max(cells.left - 5, 30)

    def cell() -> dict[str, Any]:
        command = [sys.executable, "-m", "pytest", "-n", "0", "-rf", "-m", "gpu", "tests/gpu"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False)
        counts = {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout)}
        failed = re.findall(r"^FAILED (\S+)", done.stdout, re.MULTILINE)
        return counts | {"failures": failed[:20], "last line": (done.stdout + done.stderr).strip().splitlines()[-1]}

    cells.measure("tests", "tests/gpu", cell, needs=60)
