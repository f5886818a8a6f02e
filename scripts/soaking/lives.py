"""The life of a small run: begun, gone on with as often as it takes, and compared with the run that had no trouble."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "integration"))

from running import history, numbers, of_ranks, start

from lit_fed.training.round_logger import newest_version

__all__ = ["RUNS", "Life", "Outcome", "Whole", "outcome", "whole_run"]

CHILD = Path(__file__).with_name("child.py")

COMMON = [
    "--model.client_trainer", "sequential", "--model.solver.momentum", "0.9", "--model.solver.persist_optimizer",
    "true", "--data.dataset", "Digits", "--data.num_clients", "20", "--data.unseen_fraction", "0.2",
    "--data.client_fraction", "0.7", "--data.clients_per_block", "4", "--trainer.accelerator", "cpu",
    "--trainer.enable_progress_bar", "false", "--name", "run",
]  # fmt: skip

RUNS = {
    "FedEM": ["--model.algorithm", "FedEM", *COMMON],
    "Local, states in files": [
        "--model.algorithm", "Local", "--model.network", "MLP", "--model.network.hidden_sizes", "[64]",
        "--model.client_memory_gb", "0", *COMMON,
    ],
}  # fmt: skip

SECONDS_TO_END = 900
"""A run that takes longer hangs."""

Outcome = dict[str, Any]


class Whole(NamedTuple):
    """A run that nothing cut short."""

    outcome: Outcome
    seconds: float
    """Of a round, with all that follows it."""


def outcome(path: Path) -> Outcome:
    """What a run leaves behind, without times: a part for each file."""
    clients = (path / "clients.csv").read_text().splitlines()
    return {"summary.json": numbers(path), "metrics.csv": history(path), "clients.csv": clients}


class Life:
    """One run in a folder of its own, until it has ended as it should.

    Args:
        arguments: of the run.
        out: the folder of its versions' folders.
        rounds: of the run.
        seconds: that one of them takes.
        rng: what troubles are drawn from.

    Attributes:
        events: what happened, in words.
        wrong: what should not have happened.
        rows_lost: rows of metrics.csv were deleted from outside.
        robbed: something was deleted while a process was at work, which may refuse to go on without it.
    """

    def __init__(self, arguments: list[str], out: Path, rounds: int, seconds: float, rng: random.Random) -> None:
        self.arguments = [
            "fit", *arguments, "--trainer.max_epochs", str(rounds), "--trainer.default_root_dir", str(out)
        ]  # fmt: skip
        self.runs, self.rounds, self.seconds, self.rng = out / "run", rounds, seconds, rng
        self.events: list[str] = []
        self.wrong: list[str] = []
        self.rows_lost = self.robbed = False

    # ------------------------------------------------------------------ where it stands
    @property
    def path(self) -> Path:
        """The newest folder of the run."""
        return self.runs / f"version_{max(newest_version(self.runs), 0)}"

    @property
    def last(self) -> Path | None:
        """The checkpoint that `--ckpt_path last` takes; None without any."""
        found = sorted(self.runs.glob("version_*/checkpoints/last.ckpt"), key=lambda one: int(one.parts[-3][8:]))
        return found[-1] if found else None

    def rounds_logged(self) -> int:
        """Rounds that the newest folder tells of."""
        try:
            return max((self.path / "metrics.csv").read_text().count("\n") - 1, 0)
        except OSError:
            return 0

    # ------------------------------------------------------------------ processes
    def start(self, *extra: str, **environment: str) -> Any:
        """Begin anew."""
        return start([*self.arguments, *extra], script=CHILD, **environment)

    def begin(self, *extra: str, **environment: str) -> Any:
        """Go on where there is a checkpoint, else begin anew."""
        return self.start(*(["--ckpt_path", "last"] if self.last else []), *extra, **environment)

    def begin_ranks(self, *extra: str) -> list[Any]:
        """As `begin`, by two ranks."""
        on = ["--ckpt_path", "last"] if self.last else []
        return [self.start(*on, *extra, **environment) for environment in of_ranks(2)]

    def wait(self, process: Any) -> None:
        """Wait for an instant drawn at random, in a round that is still to come, or in the final test."""
        share, delay = self.rng.random(), self.rng.uniform(0, 1.5 * self.seconds)
        done = self.rounds_logged()
        target = min(done + 1 + int(share * (self.rounds - done)), self.rounds)
        until = time.monotonic() + SECONDS_TO_END
        while process.poll() is None and self.rounds_logged() < target and time.monotonic() < until:
            time.sleep(0.002)
        time.sleep(delay)

    def end(self, process: Any, what: str, statuses: tuple[int, ...], *, speaks: bool = True) -> tuple[int | None, str]:
        """Wait for the end of a process: its status, and what it said; anything unexpected is written down.

        Args:
            process: as it was started.
            what: it is, in the words of an event.
            statuses: with which it may end.
            speaks: a status of 1 or 2 needs a message; of several ranks one speaks for all.
        """
        try:
            err = process.communicate(SECONDS_TO_END)[1]
        except subprocess.TimeoutExpired:
            self.wrong.append(f"{what}: did not end within {SECONDS_TO_END} s")
            return None, ""
        status = process.returncode
        self.events.append(f"{what}: status {status}, {self.rounds_logged()} rounds logged")
        if status not in (*statuses, *([2] if self.robbed else [])) or "Traceback" in err:
            self.wrong.append(f"{what}: status {status}, {err.strip()[-1500:]}")
        elif status in (1, 2) and speaks and not err.strip().rpartition("\n")[2].startswith("lit_fed: "):
            self.wrong.append(f"{what}: status {status} without a message, {err.strip()[-500:]}")
        return status, err

    # ------------------------------------------------------------------ the end
    def finish(self, whole: Outcome) -> list[str]:
        """Go on until the run has ended, and say what differs from the one that had no trouble."""
        status, _ = self.end(self.begin(), "gone on with", (0, 2))
        if status == 2:  # what it would go on from was deleted
            status, _ = self.end(self.start(), "begun anew", (0,))
        if status:
            return ["everything"]
        try:
            found = outcome(self.path)
        except OSError as error:
            return [f"{error.filename} is missing"]
        # in the folder of a run that was killed before its first checkpoint nobody goes on, or puts things away
        left = [str(one.relative_to(self.runs)) for one in self.path.rglob("*.partial")]
        return [*self.differences(found, whole), *(f"{one} is left" for one in left)]

    def differences(self, found: Outcome, whole: Outcome) -> list[str]:
        """The files in which a run differs from another, with the first difference."""
        if self.rows_lost:
            found, whole = found | {"metrics.csv": _cells(found)}, whole | {"metrics.csv": _cells(whole)}
            first = min((int(row["step"]) for row in found["metrics.csv"]), default=self.rounds)
            whole["metrics.csv"] = whole["metrics.csv"][first:]
        lost = []
        for file, content in whole.items():
            if found[file] != content:
                each, other = (one.items() if isinstance(one, dict) else one for one in (found[file], content))
                pairs = (f"{a} in place of {b}" for a, b in zip(each, other, strict=False) if a != b)
                lost.append(f"{file}: {next(pairs, 'another length')}")
        return lost

    def index(self) -> set[str]:
        """Names of the client files that the checkpoint needs."""
        if self.last is None:
            return set()
        content = torch.load(self.last, weights_only=True)["state_dict"].get("store.versions")
        versions = [] if content is None else content.tolist()
        return {f"{client}.{version}.pt" for client, version in enumerate(versions) if version >= 0}


def _cells(found: Outcome) -> list[dict[str, str]]:
    """The rows of metrics.csv as far as they hold something: a file that begins later may have fewer columns."""
    header, *rows = found["metrics.csv"]
    return [{name: cell for name, cell in zip(header, row, strict=True) if cell} for row in rows]


def whole_run(arguments: list[str], out: Path, rounds: int) -> Whole:
    """The run that nothing cut short: what it leaves behind, and how long its rounds take."""
    life = Life(arguments, out, rounds, 0.0, random.Random(0))
    process = life.start()
    begins: list[float] = []
    for count in (1, rounds):
        while process.poll() is None and life.rounds_logged() < count:
            time.sleep(0.002)
        begins.append(time.monotonic())
    life.end(process, "the whole run", (0,))
    if life.wrong:
        raise SystemExit(life.wrong[0])
    return Whole(outcome(life.path), (begins[1] - begins[0]) / max(rounds - 1, 1))
