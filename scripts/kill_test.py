"""Kills runs at random instants, continues them, and compares them with the run that was never interrupted.

    python scripts/kill_test.py                 # 20 runs, each killed once
    python scripts/kill_test.py --kills 2

The runs are of `Local` with every client's model in a file. Each gets SIGKILL in a round drawn at random, at an instant
drawn at random, and is continued with `--ckpt_path last`. Exact means that `summary.json`, `metrics.csv` (both without
times) and `clients.csv` equal those of the whole run. One line is printed for each kill; the exit status is 1 if one
was not exact.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "integration"))

from running import folder, history, numbers, run, start

NAME = "Local"
ARGUMENTS = [
    "fit", "--model.algorithm", NAME, "--model.network", "MLP", "--model.network.hidden_sizes", "[64]",
    "--model.client_memory_gb", "0", "--model.solver.momentum", "0.9", "--model.solver.persist_optimizer", "true",
    "--data.dataset", "Digits", "--data.num_clients", "20", "--data.unseen_fraction", "0.2", "--data.client_fraction",
    "0.7", "--data.clients_per_block", "4", "--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false",
]  # fmt: skip


def outcome(path: Path) -> tuple[Any, ...]:
    """What a run leaves behind, without times."""
    return numbers(path), history(path), (path / "clients.csv").read_text()


def whole_run(out: Path, rounds: int) -> tuple[tuple[Any, ...], float]:
    """The uninterrupted run: what it leaves behind, and the seconds of a round with all that follows it."""
    process, path = start(arguments(out, rounds)), folder(out, NAME)
    wait_for_rounds(path, 1, process)
    begin = time.monotonic()
    wait_for_rounds(path, rounds, process)
    seconds = (time.monotonic() - begin) / (rounds - 1)
    err = process.communicate()[1]
    if process.returncode:
        raise SystemExit(f"the whole run failed: {err}")
    return outcome(path), seconds


def arguments(out: Path, rounds: int) -> list[str]:
    """Arguments of a run."""
    return [*ARGUMENTS, "--trainer.default_root_dir", str(out), "--trainer.max_epochs", str(rounds)]


def wait_for_rounds(path: Path, rounds: int, process: Any) -> None:
    """Wait until a run has logged this many rounds or has ended."""
    table = path / "metrics.csv"
    while process.poll() is None and (not table.is_file() or table.read_text().count("\n") <= rounds):
        time.sleep(0.002)


def killed(out: Path, rounds: int, target: int, delay: float) -> bool:
    """Start a run and kill it `delay` seconds after round `target` was logged; False if there is nothing to go on from.

    The first checkpoint may not be written yet, or the run may be over.
    """
    process = start(arguments(out, rounds))
    wait_for_rounds(folder(out, NAME), target, process)
    time.sleep(delay)
    process.kill()
    err = process.communicate()[1]
    if process.returncode not in (0, -9):
        raise SystemExit(f"a run failed before it was killed: {err}")
    return process.returncode == -9 and (folder(out, NAME) / "checkpoints/last.ckpt").is_file()


def state_of(path: Path) -> tuple[int, int, int]:
    """Of a killed run: rounds in its checkpoint, files that this does not refer to, and halves of files."""
    content = torch.load(path / "checkpoints/last.ckpt", weights_only=True)
    index = content["state_dict"]["store.versions"].tolist()
    referred = {f"{client_id}.{version}.pt" for client_id, version in enumerate(index) if version >= 0}
    names = {one.name for one in (path / "clients").iterdir()}
    partial = {name for name in names if name.endswith(".partial")}
    return content["global_step"], len(names - partial - referred), len(partial)


def continued(out: Path, rounds: int, whole: tuple[Any, ...]) -> tuple[str, bool]:
    """Continue a killed run: how far it was, and whether it ended as the whole one."""
    done, stray, halves = state_of(folder(out, NAME))
    counted = f"round {done:3d} of {rounds}, {stray:2d} files of the cut round, {halves} half written"
    finished = run([*arguments(out, rounds), "--ckpt_path", "last"], timeout=600)
    if finished.returncode:
        return f"{counted}: the continuation failed: {finished.stderr.strip()[-500:]}", False
    exact = outcome(folder(out, NAME)) == whole
    return f"{counted}: {'exact' if exact else 'NOT EXACT'}", exact


def kill_runs(kills: int, rounds: int, seed: int) -> int:
    """Kill this many runs and continue them; returns how many ended as the whole run did."""
    rng, exact = random.Random(seed), 0
    root = Path(tempfile.mkdtemp(prefix="kill_test-"))
    try:
        whole, seconds = whole_run(root / "whole", rounds)
        print(f"whole run: {rounds} rounds, {seconds:.3f} s each", flush=True)
        number = 0
        while number < kills:
            shutil.rmtree(root / "killed", ignore_errors=True)
            if killed(root / "killed", rounds, rng.randint(1, rounds), rng.uniform(0, seconds)):
                line, same = continued(root / "killed", rounds, whole)
                number, exact = number + 1, exact + same
                print(f"kill {number:2d}: {line}", flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(f"{kills} kills in {kills} runs, {exact} exact continuations", flush=True)
    return exact


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="runs, each killed once")
    parser.add_argument("--rounds", type=int, default=30, help="rounds of each run")
    parser.add_argument("--seed", type=int, default=0, help="seed of the instants")
    given = parser.parse_args()
    raise SystemExit(kill_runs(given.kills, given.rounds, given.seed) != given.kills)


if __name__ == "__main__":
    main()
