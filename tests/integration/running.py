"""Runs of the command line in processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

SMALL = [
    "--data.dataset", "Digits", "--data.num_clients", "8", "--data.unseen_fraction", "0.25", "--data.client_fraction",
    "0.7", "--trainer.accelerator", "cpu", "--trainer.max_epochs", "4", "--model.solver.momentum", "0.9",
]  # fmt: skip


def start(arguments, **environment):
    """Start `python -m lit_fed`."""
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-m", "lit_fed", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def run(arguments, timeout=120, **environment):
    """Run `python -m lit_fed` and return the finished process."""
    with start(arguments, **environment) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def folder(out, name, version=0):
    """A run's folder."""
    return Path(out) / name / f"version_{version}"


def numbers(path):
    """What must be the same in two runs of the same numbers: all but times and the writer."""
    summary = json.loads((Path(path) / "summary.json").read_text())
    return {key: value for key, value in summary.items() if key not in {"seconds", "git_commit"}}


def history(path):
    """metrics.csv without times."""
    lines = (Path(path) / "metrics.csv").read_text().splitlines()
    header = lines[0].split(",")
    kept = [place for place, name in enumerate(header) if not name.startswith("time/")]
    return [[line.split(",")[place] for place in kept] for line in lines]
