"""Runs of the command line whose summary.json is kept, for the result pages under docs/results/."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["RESULTS", "ROOT", "Run", "command_line", "read", "run_missing", "seen"]

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs/results"


class Run(NamedTuple):
    """One run."""

    name: str  # of the kept summary
    config: str  # of configs/experiment
    arguments: tuple[str, ...] = ()


def command_line(run: Run) -> str:
    """The command that makes a run."""
    extra = " ".join(f'"{one}"' if " " in one else one for one in run.arguments)
    return f"python -m lit_fed fit --config configs/experiment/{run.config}.yaml {extra}".strip()


def run_missing(runs: Sequence[Run], kept: Path, extra: Sequence[str] = ()) -> None:
    """Run what has no kept summary, one after another.

    Args:
        runs: the runs of a page.
        kept: folder of their summaries.
        extra: arguments that are the machine's affair, such as where the data lie.
    """
    kept.mkdir(parents=True, exist_ok=True)
    for run in runs:
        path = kept / f"{run.name}.json"
        if path.is_file():
            continue
        with tempfile.TemporaryDirectory() as out:
            config = ROOT / f"configs/experiment/{run.config}.yaml"
            arguments = ["fit", "--config", str(config), *run.arguments, *extra, "--trainer.default_root_dir", out]
            env = {**os.environ, "OMP_NUM_THREADS": "1"}
            subprocess.run(
                [sys.executable, "-m", "lit_fed", *arguments], check=True, env=env, stdout=subprocess.DEVNULL
            )
            shutil.copyfile(Path(out) / run.config / "version_0/summary.json", path)
        print(f"{run.name}: {seen(read(path))}", flush=True)


def read(path: Path) -> dict[str, Any]:
    """A kept file."""
    return json.loads(path.read_text())


def seen(summary: dict[str, Any]) -> str:
    """Accuracy and worst decile of seen clients in percent."""
    return f"{100 * summary['test/seen/accuracy']:.2f} / {100 * summary['test/seen/accuracy_decile']:.2f}"
