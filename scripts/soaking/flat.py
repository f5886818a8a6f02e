"""Memory and open files of one long run: they must not grow with its rounds."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

from soaking.lives import Life

__all__ = ["Sample", "flat_run", "grown"]

SHORT = [
    "--trainer.check_val_every_n_epoch", "1000", "--data.num_clients", "100", "--data.client_fraction", "0.02",
    "--data.unseen_fraction", "0", "--data.batch_size", "0",
]  # fmt: skip
"""A round is two clients with a batch each; its checkpoint and its row of metrics.csv are written like any other's."""

SAMPLES = 20

SETTLED = 0.1
"""Share of the rounds by which all that is kept once is there."""

MOST_MB = 6.0
"""Growth that is allowed from then on. 2,400 rounds once took 2 MB; a leak of one model a round would take far more."""

MOST_FILES = 2


class Sample(NamedTuple):
    """What a process holds."""

    rounds: int
    megabytes: float
    files: int


def sample(pid: int, rounds: int) -> Sample:
    """Resident memory and open files of a process."""
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    kilobytes = next(int(row.split()[1]) for row in rows if row.startswith("VmRSS:"))
    return Sample(rounds, kilobytes / 1024, len(list(Path(f"/proc/{pid}/fd").iterdir())))


def flat_run(rounds: int, life: Life, said: Any = print) -> list[Sample]:
    """Run so many rounds, and look at the process at regular points.

    Args:
        rounds: of the run.
        life: a run that has not begun.
        said: takes a line for each look.
    """
    process, samples, begin = life.start(*SHORT), [], time.monotonic()
    step = max(rounds // SAMPLES, 1)
    try:
        while process.poll() is None:
            done = life.rounds_logged()
            if done >= step * (len(samples) + 1):
                samples.append(sample(process.pid, done))
                left = (time.monotonic() - begin) / done * (rounds - done)
                said(f"{done:6d} rounds: {samples[-1].megabytes:.1f} MB, {samples[-1].files} files, {left:.0f} s left")
            time.sleep(0.02)
    except FileNotFoundError:  # it ended in between
        pass
    life.end(process, "the long run", (0,))
    return samples


def grown(samples: list[Sample]) -> list[str]:
    """What grew too much."""
    settled = next((one for one in samples if one.rounds >= SETTLED * samples[-1].rounds), samples[0])
    megabytes, files = samples[-1].megabytes - settled.megabytes, samples[-1].files - settled.files
    found = [f"memory grew by {megabytes:.1f} MB, more than {MOST_MB}"] if megabytes > MOST_MB else []
    return found + ([f"{files} more files are open"] if files > MOST_FILES else [])
