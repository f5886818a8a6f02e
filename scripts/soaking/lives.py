"""A small run that is started, continued after disturbances, and compared with the undisturbed run."""

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "integration"))

from running import history, numbers, of_ranks, start
from trials import TRIAL, go_on, newest_folder, rounds_logged

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
"""A run that takes longer counts as hanging."""

Outcome = dict[str, Any]


class Whole(NamedTuple):
    """An undisturbed run."""

    outcome: Outcome
    seconds: float
    """Seconds of a round, with logging and checkpoint."""


def outcome(path: Path) -> Outcome:
    """The files of a run, without times."""
    clients = (path / "clients.csv").read_text().splitlines()
    return {"summary.json": numbers(path), "metrics.csv": history(path), "clients.csv": clients}


class Life:
    """One run in its own folder.

    Args:
        arguments: arguments of the run.
        out: folder of the run.
        rounds: rounds of the run.
        seconds: seconds of a round.
        rng: generator of disturbances.

    Attributes:
        events: what happened.
        wrong: unexpected events.
        rows_lost: whether rows of metrics.csv were deleted.
        robbed: whether files were deleted during a run, so that it may refuse to continue.
    """

    def __init__(self, arguments: list[str], out: Path, rounds: int, seconds: float, rng: random.Random) -> None:
        self.arguments = [
            "fit", *arguments, "--trainer.max_epochs", str(rounds), "--trainer.default_root_dir", str(out)
        ]  # fmt: skip
        self.runs, self.rounds, self.seconds, self.rng = out / "run", rounds, seconds, rng
        self.events: list[str] = []
        self.wrong: list[str] = []
        self.rows_lost = self.robbed = False

    # ------------------------------------------------------------------ files
    @property
    def path(self) -> Path:
        """The newest folder of the run."""
        return newest_folder(self.runs)

    @property
    def last(self) -> Path | None:
        """The checkpoint of `--ckpt_path last`, or None."""
        found = sorted(self.runs.glob("version_*/checkpoints/last.ckpt"), key=lambda one: int(one.parts[-3][8:]))
        return found[-1] if found else None

    def rounds_logged(self) -> int:
        """Rounds logged in the newest folder."""
        return rounds_logged(self.runs)

    # ------------------------------------------------------------------ processes
    def start(self, *extra: str, **environment: str) -> Any:
        """Start from the beginning."""
        return start([*self.arguments, *extra], script=TRIAL, **environment)

    def begin(self, *extra: str, **environment: str) -> Any:
        """Continue if there is a checkpoint, else start."""
        return self.start(*go_on(self.runs), *extra, **environment)

    def begin_ranks(self, *extra: str) -> list[Any]:
        """`begin` with two ranks."""
        on = go_on(self.runs)
        return [self.start(*on, *extra, **environment) for environment in of_ranks(2)]

    def wait(self, process: Any) -> None:
        """Wait for a random instant in a future round or in the final test."""
        share, delay = self.rng.random(), self.rng.uniform(0, 1.5 * self.seconds)
        done = self.rounds_logged()
        target = min(done + 1 + int(share * (self.rounds - done)), self.rounds)
        until = time.monotonic() + SECONDS_TO_END
        while process.poll() is None and self.rounds_logged() < target and time.monotonic() < until:
            time.sleep(0.002)
        time.sleep(delay)

    def end(self, process: Any, what: str, statuses: tuple[int, ...], *, speaks: bool = True) -> tuple[int | None, str]:
        """Wait for the end of a process and return its status and stderr; records anything unexpected.

        Args:
            process: the process.
            what: description for events.
            statuses: expected statuses.
            speaks: whether status 1 or 2 needs a message; only one of several ranks prints it.
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
        """Continue until the run has ended, and list differences from the undisturbed run."""
        status, _ = self.end(self.begin(), "continued", (0, 2))
        if status == 2:  # its checkpoint was deleted
            status, _ = self.end(self.start(), "restarted", (0,))
        if status:
            return ["everything"]
        try:
            found = outcome(self.path)
        except OSError as error:
            return [f"{error.filename} is missing"]
        # folders of runs killed before their first checkpoint are not cleaned up
        left = [str(one.relative_to(self.runs)) for one in self.path.rglob("*.partial")]
        return [*self.differences(found, whole), *(f"{one} is left" for one in left)]

    def differences(self, found: Outcome, whole: Outcome) -> list[str]:
        """Files that differ, with the first difference."""
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
        """Client files that the checkpoint needs."""
        if self.last is None:
            return set()
        content = torch.load(self.last, weights_only=True)["state_dict"].get("store.versions")
        versions = [] if content is None else content.tolist()
        return {f"{client}.{version}.pt" for client, version in enumerate(versions) if version >= 0}


def _cells(found: Outcome) -> list[dict[str, str]]:
    """Non-empty cells of metrics.csv; a file that starts later may have fewer columns."""
    header, *rows = found["metrics.csv"]
    return [{name: cell for name, cell in zip(header, row, strict=True) if cell} for row in rows]


def whole_run(arguments: list[str], out: Path, rounds: int) -> Whole:
    """Run without disturbance: its files, and the seconds of a round."""
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
