"""Measures on a GPU, stage by stage, what docs/results/gpu.md shows; goes on where it stopped, by the library alone.

python scripts/gpu_day.py                          # all stages, 540 seconds at most; then again, until it says "all"
python scripts/gpu_day.py speed graphs --seconds 300
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from gpu_stages.cells import Cells
from gpu_stages.graphs import graphs
from gpu_stages.parity import parity, tests
from gpu_stages.speed import speed
from gpu_stages.workload import Size

ROOT = Path(__file__).resolve().parents[1]
STAGES = {"tests": tests, "parity": parity, "speed": speed, "graphs": graphs}
FULL, TOY = Size(80, 38400), Size(3, 24, (3, 16, 16), 8)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run stages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", choices=[*STAGES, []], help="by default all")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/results/gpu.json")
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--only", default="*", help="cells, by a pattern with stars")
    chosen = parser.parse_args(arguments)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    cells = Cells(chosen.output, chosen.seconds, chosen.only)
    for name in chosen.stages or STAGES:
        STAGES[name](cells, device, FULL if device.type == "cuda" else TOY)


if __name__ == "__main__":
    main()
