"""Measure the stages of docs/results/gpu.md on a GPU; continues where it stopped.

    python scripts/gpu_day.py --data.root DIR     # all stages, at most 540 seconds; repeat until all are done
    python scripts/gpu_day.py speed graphs --seconds 300 --only "FedEM, *"

Needs neither jsonargparse nor wandb. Without a GPU it runs toy sizes on the CPU into runs/gpu/. DIR holds
`cifar-10-batches-py`; without it the stage `paper` is left out.
"""

import argparse
import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import torch
from gpu_stages.cells import Cells
from gpu_stages.page import page
from gpu_stages.paper import Budget, paper
from gpu_stages.stages import graphs, parity, speed, tests
from gpu_stages.workload import Size

from lit_fed.system.files import write_atomically

ROOT = Path(__file__).resolve().parents[1]
STAGES = {"tests": tests, "parity": parity, "speed": speed, "graphs": graphs}
FULL, TOY = Size(80, 38400), Size(3, 24, (3, 16, 16), 8)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run stages and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", choices=[*STAGES, "paper", []], help="default: all")
    parser.add_argument("--output", type=Path, help="folder of gpu.json and gpu.md")
    parser.add_argument("--seconds", type=float, default=540, help="no cell starts later")
    parser.add_argument("--only", default="*", help="pattern of cells with *")
    parser.add_argument("--data.root", dest="root", type=Path, help="folder of CIFAR-10")
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
    budget = Budget(200, 20, chosen.root, output / "paper") if found else Budget(2, 1, None, output / "paper")
    stages = STAGES | ({"paper": partial(paper, budget=budget)} if chosen.root or not found else {})
    for stage in [one for one in chosen.stages or stages if one in stages]:
        stages[stage](cells, torch.device("cuda:0" if found else "cpu"), FULL if found else TOY)


if __name__ == "__main__":
    main()
