"""Disturbances of runs, a function each; the page quotes their docstrings."""

import contextlib
import fcntl
import inspect
import json
import resource
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from soaking.lives import Life

WITHOUT_CHECKPOINT = ("no checkpoint under", "is not there; --ckpt_path previous takes the one before it")


# ---------------------------------------------------------------------- signals
def killed(life: Life) -> None:
    """SIGKILL at a random instant, in a round, between rounds or in the final test."""
    process = life.begin()
    life.wait(process)
    process.kill()
    life.end(process, "killed", (0, -signal.SIGKILL))


def killed_in_checkpoint(life: Life) -> None:
    """SIGKILL when half of a checkpoint is written."""
    round_idx = min(life.rounds_logged() + life.rng.randrange(3), life.rounds - 1)
    process = life.begin(
        "--trainer.callbacks+=interruptions.Kill", f"--trainer.callbacks.round_idx={round_idx}",
        "--trainer.callbacks.moment=checkpoint",
    )  # fmt: skip
    life.end(process, f"killed in the checkpoint of round {round_idx + 1}", (0, -signal.SIGKILL))


def terminated(life: Life) -> None:
    """SIGTERM at a random instant."""
    _signalled(life, signal.SIGTERM, 143)


def interrupted(life: Life) -> None:
    """SIGINT (Ctrl-C) at a random instant."""
    _signalled(life, signal.SIGINT, 130)


def _signalled(life: Life, signum: signal.Signals, status: int) -> None:
    process = life.begin()
    life.wait(process)
    at_work = _is_held(life.path / ".lock")
    _send(process, signum)
    # while it is still loading, the signal ends the process directly
    life.end(process, signum.name, (0, status) if at_work else (0, status, -signum))


def stopped(life: Life) -> None:
    """SIGSTOP at a random instant, SIGCONT up to a second later."""
    process = life.begin()
    life.wait(process)
    _send(process, signal.SIGSTOP)
    time.sleep(life.rng.random())
    _send(process, signal.SIGCONT)
    life.end(process, "stopped for a while", (0,))


def _send(process: Any, signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended
        process.send_signal(signum)


# ---------------------------------------------------------------------- the machine
def full_disk(life: Life) -> None:
    """From a random instant on no file may grow beyond 100 bytes to 50 kB (RLIMIT_FSIZE)."""
    size = int(10 ** life.rng.uniform(2, 4.7))
    process = life.begin()
    life.wait(process)
    with contextlib.suppress(ProcessLookupError):
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, hard))
    life.end(process, f"no file beyond {size} bytes", (0, 1))


def clock_jumps(life: Life) -> None:
    """Up to three jumps of the clock, by seconds to years, forwards and backwards."""
    jumps = [
        (life.rng.uniform(0, life.rounds * life.seconds), life.rng.choice((-1, 1)) * 10 ** life.rng.uniform(0, 8))
        for _ in range(life.rng.randint(1, 3))
    ]
    process = life.begin(SOAK_CLOCK=json.dumps(jumps))
    life.end(process, f"the clock jumped by {', '.join(f'{by:.0f} s' for _, by in jumps)}", (0,))


# ---------------------------------------------------------------------- files
VICTIMS = (
    "last.ckpt",
    "checkpoints",
    "metrics.csv",
    "config.yaml",
    ".lock",
    "clients",
    "a client's file",
    "everything",
)


def _victim(life: Life) -> Path:
    """A random file or folder of the run."""
    name, place = life.rng.choice(VICTIMS), life.rng.random()
    if name == "a client's file":
        files = sorted((life.path / "clients").glob("*.pt"))
        wanted = [one for one in files if one.name in life.index()] or files
        return wanted[int(place * len(wanted))] if wanted else life.path / "metrics.csv"
    inside = {"last.ckpt": "checkpoints/last.ckpt", "everything": ""}.get(name, name)
    return life.path / inside


def deleted_between(life: Life) -> None:
    """Killed, and a file or folder of the run, or all of it, is gone when it goes on; client states are put back."""
    killed(life)
    victim, away = _victim(life), life.runs.parent / f"away-{len(life.events)}"
    if not victim.exists():
        return
    had_last, in_clients = life.last is not None, victim.name == "clients" or victim.parent.name == "clients"
    shutil.move(victim, away)
    name = victim.relative_to(life.runs)
    life.rows_lost |= victim.name == "metrics.csv"
    if had_last:
        status, said = life.end(life.start("--ckpt_path", "last"), f"{name} is gone", (0, 2))
        if status == 2 and not (in_clients or any(one in said for one in WITHOUT_CHECKPOINT)):
            life.wrong.append(f"{name} is gone: {said}")
    if in_clients:
        victim.parent.mkdir(exist_ok=True)
        shutil.rmtree(victim, ignore_errors=True)
        shutil.move(away, victim)


def deleted_meanwhile(life: Life) -> None:
    """A file or folder of the run, or all of it, is deleted while it runs."""
    process = life.begin()
    life.wait(process)
    victim, life.robbed = _victim(life), True
    life.rows_lost |= victim in (life.path, life.path / "metrics.csv")
    shutil.rmtree(victim, ignore_errors=True)
    with contextlib.suppress(OSError):
        victim.unlink()
    life.end(process, f"{victim.relative_to(life.runs)} was deleted", (0, 1, 2))


# ---------------------------------------------------------------------- other processes
def two_writers(life: Life) -> None:
    """A second process goes on with the run while the first is at work; the first is stopped until that was refused."""
    first = life.begin()
    life.wait(first)
    _send(first, signal.SIGSTOP)
    time.sleep(0.01)
    at_work = first.poll() is None and _is_held(life.path / ".lock")
    if at_work and life.last is not None and life.last.is_relative_to(life.path):
        _, said = life.end(life.start("--ckpt_path", "last"), "a second writer", (2,))
        if "is at work in it since" not in said:
            life.wrong.append(f"a second writer: {said}")
    _send(first, signal.SIGCONT)
    life.end(first, "the first writer", (0,))


RANKS = ["--trainer.devices", "2", "--trainer.strategy", "fed_ddp", "--trainer.timeout", "5"]


def rank_killed(life: Life) -> None:
    """Two ranks, one of which gets SIGKILL at a random instant; the other has to end by itself."""
    _without_a_rank(life, signal.SIGKILL)


def rank_stopped(life: Life) -> None:
    """Two ranks, one of which gets SIGSTOP at a random instant; the other has to end by itself."""
    _without_a_rank(life, signal.SIGSTOP)


def _without_a_rank(life: Life, signum: signal.Signals) -> None:
    lost = life.rng.randrange(2)
    ranks = life.begin_ranks(*RANKS)
    life.wait(ranks[0])
    _send(ranks[lost], signum)
    life.end(ranks[1 - lost], f"without rank {lost}", (0, 1))
    ranks[lost].kill()
    life.end(ranks[lost], f"rank {lost}", (0, 1, 2, -signal.SIGKILL), speaks=False)


def _is_held(lock: Path) -> bool:
    """Whether a process holds a lock."""
    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


KINDS: dict[str, Callable[[Life], None]] = {
    "killed": killed,
    "killed in a checkpoint": killed_in_checkpoint,
    "terminated": terminated,
    "interrupted": interrupted,
    "stopped": stopped,
    "full disk": full_disk,
    "clock": clock_jumps,
    "deleted between": deleted_between,
    "deleted meanwhile": deleted_meanwhile,
    "two writers": two_writers,
    "rank killed": rank_killed,
    "rank stopped": rank_stopped,
}


def described(kind: str) -> str:
    """First line of a kind's docstring."""
    return (inspect.getdoc(KINDS[kind]) or "").partition("\n")[0]
