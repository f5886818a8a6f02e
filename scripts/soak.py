"""Disturb small runs at random, continue them, and compare them with an undisturbed run.

    python scripts/soak.py --hours 1              # and writes docs/results/soak.json and soak.md
    python scripts/soak.py --cases 20 --seed 3
    python scripts/soak.py --seed 3 --only 7      # repeat one case and print its events
    python scripts/soak.py --flat 10000           # memory and open files of one long run

A case is a run with up to three disturbances in sequence, sampled from its seed and number: signals, a kill during the
write of a checkpoint, a full disk, clock jumps, deleted files, a second writer. It is exact if in the end
`summary.json`, `metrics.csv` (both without times) and `clients.csv` equal those of the undisturbed run. The seed fixes
the disturbances, but not the program line at which they happen. The exit status is 1 if a case is not exact.
"""

import argparse
import contextlib
import fcntl
import inspect
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "integration"))

import torch
from reproduction.markdown import grid
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from running import history, numbers, of_ranks, start
from trials import TRIAL, facts, go_on, keep, newest_folder, rounds_logged, written

RESULTS = Path(__file__).resolve().parents[1] / "docs/results/soak.json"

# ---------------------------------------------------------------------- a run that is disturbed
COMMON = [
    "--model.client_trainer", "sequential", "--model.solver.momentum", "0.9", "--model.solver.persist_optimizer",
    "true", "--data.dataset", "Digits", "--data.num_clients", "20", "--data.unseen_fraction", "0.2",
    "--data.client_fraction", "0.7", "--data.clients_per_block", "4", "--trainer.accelerator", "cpu",
    "--trainer.enable_progress_bar", "false", "--name", "run",
]  # fmt: skip

MLP = ["--model.network", "MLP", "--model.network.hidden_sizes", "[64]", "--model.client_memory_gb", "0"]
RUNS = {
    "FedEM": ["--model.algorithm", "FedEM", *COMMON],
    "Local, states in files": ["--model.algorithm", "Local", *MLP, *COMMON],
}

SECONDS_TO_END = 900  # a run that takes longer counts as hanging
Outcome = dict[str, Any]


class Whole(NamedTuple):
    """An undisturbed run."""

    outcome: Outcome
    seconds: float  # of a round, with logging and checkpoint


def outcome(path: Path) -> Outcome:
    """The files of a run, without times."""
    clients = (path / "clients.csv").read_text().splitlines()
    return {"summary.json": numbers(path), "metrics.csv": history(path), "clients.csv": clients}


class Life:
    """One run in its own folder.

    Attributes:
        events: what happened.
        wrong: unexpected events.
        rows_lost: whether rows of metrics.csv were deleted.
        robbed: whether files were deleted during a run, so that it may refuse to continue.
    """

    def __init__(self, arguments: list[str], out: Path, rounds: int, seconds: float, rng: random.Random) -> None:
        length = ["--trainer.max_epochs", str(rounds)]
        self.arguments = ["fit", *arguments, *length, "--trainer.default_root_dir", str(out)]
        self.runs, self.rounds, self.seconds, self.rng = out / "run", rounds, seconds, rng
        self.events: list[str] = []
        self.wrong: list[str] = []
        self.rows_lost = self.robbed = False

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

    def start(self, *extra: str, **environment: str) -> Any:
        """Start from the beginning."""
        return start([*self.arguments, *extra], script=TRIAL, **environment)

    def begin(self, *extra: str, **environment: str) -> Any:
        """Continue if there is a checkpoint, else start."""
        return self.start(*go_on(self.runs), *extra, **environment)

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

        Of several ranks only one `speaks`: prints a message with status 1 or 2.
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


# ---------------------------------------------------------------------- kinds of disturbance
def killed(life: Life) -> None:
    """SIGKILL at a random instant, in a round, between rounds or in the final test."""
    process = life.begin()
    life.wait(process)
    process.kill()
    life.end(process, "killed", (0, -signal.SIGKILL))


def killed_in_a_checkpoint(life: Life) -> None:
    """SIGKILL when half of a checkpoint is written."""
    round_idx = min(life.rounds_logged() + life.rng.randrange(3), life.rounds - 1)
    moment = f"--trainer.callbacks.round_idx={round_idx}", "--trainer.callbacks.moment=checkpoint"
    process = life.begin("--trainer.callbacks+=interruptions.Kill", *moment)
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


def full_disk(life: Life) -> None:
    """From a random instant on no file may grow beyond 100 bytes to 50 kB (RLIMIT_FSIZE)."""
    size = int(10 ** life.rng.uniform(2, 4.7))
    process = life.begin()
    life.wait(process)
    with contextlib.suppress(ProcessLookupError):
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, hard))
    life.end(process, f"no file beyond {size} bytes", (0, 1))


def clock(life: Life) -> None:
    """Up to three jumps of the clock, by seconds to years, forwards and backwards."""
    rng, whole = life.rng, life.rounds * life.seconds
    count = range(rng.randint(1, 3))
    jumps = [(rng.uniform(0, whole), rng.choice((-1, 1)) * 10 ** rng.uniform(0, 8)) for _ in count]
    process = life.begin(SOAK_CLOCK=json.dumps(jumps))
    life.end(process, f"the clock jumped by {', '.join(f'{by:.0f} s' for _, by in jumps)}", (0,))


VICTIMS = (
    "last.ckpt", "checkpoints", "metrics.csv", "config.yaml", ".lock", "clients", "a client's file", "everything",
)  # fmt: skip
WITHOUT_CHECKPOINT = ("no checkpoint under", "is not there; --ckpt_path previous takes the one before it")


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
    on = go_on(life.runs)
    ranks = [life.start(*on, *RANKS, **environment) for environment in of_ranks(2)]
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
    one.__name__.replace("_", " "): one for one in (
        killed, killed_in_a_checkpoint, terminated, interrupted, stopped, full_disk, clock, deleted_between,
        deleted_meanwhile, two_writers, rank_killed, rank_stopped,
    )
}  # fmt: skip


def described(kind: str) -> str:
    """First line of a kind's docstring."""
    return (inspect.getdoc(KINDS[kind]) or "").partition("\n")[0]


# ---------------------------------------------------------------------- cases
MOST_TROUBLES = 3


class Case(NamedTuple):
    """A run and its disturbances."""

    number: int
    run: str
    kinds: list[str]
    endings: list[list[str]]  # of the processes of each disturbance
    events: list[str]
    lost: list[str]
    wrong: list[str]

    @property
    def exact(self) -> bool:
        """Whether nothing was lost and no process hung or printed a traceback."""
        return not self.lost and not self.wrong


def draw(seed: int, number: int, kinds: Sequence[str]) -> tuple[random.Random, str, list[str]]:
    """Sample a case: generator of its instants, run, disturbances; first disturbances cycle through the kinds."""
    rng = random.Random(f"{seed}:{number}")
    more = rng.choices(kinds, k=rng.randrange(MOST_TROUBLES))
    return rng, rng.choice(list(RUNS)), [kinds[number % len(kinds)], *more]


class Soak:
    """Runs cases in a folder."""

    def __init__(self, seed: int, kinds: Sequence[str], rounds: int, root: Path) -> None:
        self.seed, self.kinds, self.rounds, self.root = seed, kinds, rounds, root
        self.whole: dict[str, Whole] = {}

    def case(self, number: int) -> Case:
        """Run a case."""
        rng, name, kinds = draw(self.seed, number, self.kinds)
        if name not in self.whole:
            self.whole[name] = whole_run(RUNS[name], self.root / f"whole-{len(self.whole)}", self.rounds)
        whole, out = self.whole[name], self.root / f"case-{number}"
        life, endings, lost = Life(RUNS[name], out, self.rounds, whole.seconds, rng), [], ["everything"]
        try:
            for kind in kinds:
                before = len(life.events)
                KINDS[kind](life)
                endings.append([one.rpartition(": status ")[2].partition(",")[0] for one in life.events[before:]])
            lost = life.finish(whole.outcome)
        except Exception as error:  # an error of this program
            life.wrong.append(f"{type(error).__name__}: {error}")
        finally:
            shutil.rmtree(out, ignore_errors=True)
        return Case(number, name, kinds, endings, life.events, lost, life.wrong)


@contextlib.contextmanager
def bar(total: float, unit: str) -> Iterator[Any]:
    """A progress bar; the yielded function takes the completed amount and a line to print."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"))
    with Progress(*columns, TextColumn(unit), TimeElapsedColumn(), TimeRemainingColumn(), transient=True) as progress:
        task = progress.add_task("soak", total=total)

        def done(completed: float, line: str) -> None:
            progress.update(task, completed=completed)
            print(line, flush=True)

        yield done


def line(case: Case) -> str:
    """The progress line of a case."""
    what = "exact" if case.exact else f"NOT EXACT: {'; '.join([*case.lost, *case.wrong])}"
    return f"case {case.number:4d}, {case.run}, {' + '.join(case.kinds)}: {what}"


def soak(given: argparse.Namespace, kinds: Sequence[str]) -> list[Case]:
    """Run the requested cases and update the record after each."""
    root, cases, begin = Path(tempfile.mkdtemp(prefix="soak-")), [], time.monotonic()
    numbers = range(10**9) if given.hours else range(given.cases) if given.only is None else [given.only]
    total, unit = (3600 * given.hours, "s") if given.hours else (len(numbers), "cases")
    try:
        runs = Soak(given.seed, kinds, given.rounds, root)
        with bar(total, unit) as done:
            for number in numbers:
                cases.append(runs.case(number))
                if given.only is None:
                    keep(given.out, page, **record_of(given, cases, kinds))  # this program may be killed too
                seconds = time.monotonic() - begin
                done(min(seconds, total) if given.hours else len(cases), line(cases[-1]))
                if given.hours and seconds > total:
                    break
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return cases


def record_of(given: argparse.Namespace, cases: Sequence[Case], kinds: Sequence[str]) -> dict[str, Any]:
    """The record of the cases."""
    rows: dict[str, dict[str, Any]] = {}
    for kind in kinds:
        endings = [one for case in cases for name, one in zip(case.kinds, case.endings, strict=False) if name == kind]
        lost = sum(not case.exact for case in cases if kind in case.kinds)
        rows[kind] = {"tried": len(endings), "ended": Counter(chain(*endings)), "lost": lost}
    failures = [case for case in cases if not case.exact]
    return {
        "seed": given.seed, "rounds": given.rounds, "most": MOST_TROUBLES, "cases": len(cases),
        "exact": len(cases) - len(failures), "kinds": rows,
        "failures": [
            {"case": one.number, "kinds": one.kinds, "events": one.events, "lost": one.lost, "wrong": one.wrong}
            for one in failures
        ],
        "facts": {"seed": given.seed, **facts()},
    }  # fmt: skip


# ---------------------------------------------------------------------- a long run
SHORT = [
    "--trainer.check_val_every_n_epoch", "1000", "--data.num_clients", "100", "--data.client_fraction", "0.02",
    "--data.unseen_fraction", "0", "--data.batch_size", "0",
]  # fmt: skip
"""A round is two clients with one batch each, with checkpoint and metrics.csv as usual."""

SAMPLES = 20
SETTLED = 0.1  # share of the rounds after which memory is stationary
MOST_MB = 6.0  # allowed growth from then on: 2,400 rounds took 2 MB; a leak of one model per round takes far more
MOST_FILES = 2


class Sample(NamedTuple):
    """Memory and open files of a process."""

    rounds: int
    megabytes: float
    files: int


def sample(pid: int, rounds: int) -> Sample:
    """Measure a process."""
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    kilobytes = next(int(row.split()[1]) for row in rows if row.startswith("VmRSS:"))
    return Sample(rounds, kilobytes / 1024, len(list(Path(f"/proc/{pid}/fd").iterdir())))


def flat_run(rounds: int, life: Life) -> list[Sample]:
    """Run the rounds of a fresh `life` and sample the process at regular intervals."""
    process, samples, begin = life.start(*SHORT), [], time.monotonic()
    step = max(rounds // SAMPLES, 1)
    try:
        while process.poll() is None:
            done = life.rounds_logged()
            if done >= step * (len(samples) + 1):
                samples.append(sample(process.pid, done))
                left = (time.monotonic() - begin) / done * (rounds - done)
                print(f"{done:6d} rounds: {samples[-1].megabytes:.1f} MB, {samples[-1].files} files, {left:.0f} s left")
            time.sleep(0.02)
    except FileNotFoundError:  # the process ended
        pass
    life.end(process, "the long run", (0,))
    return samples


def grown(samples: list[Sample]) -> list[str]:
    """Describe what grew too much."""
    settled = next((one for one in samples if one.rounds >= SETTLED * samples[-1].rounds), samples[0])
    megabytes, files = samples[-1].megabytes - settled.megabytes, samples[-1].files - settled.files
    found = [f"memory grew by {megabytes:.1f} MB, more than {MOST_MB}"] if megabytes > MOST_MB else []
    return found + ([f"{files} more files are open"] if files > MOST_FILES else [])


def flat(rounds: int, out: Path) -> list[str]:
    """One long run; describes what grew too much."""
    root = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        life = Life(RUNS["FedEM"], root, rounds, 0.0, random.Random(0))
        samples = flat_run(rounds, life)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if life.wrong or not samples:
        return life.wrong or ["the run ended before it was sampled"]
    keep(out, page, flat={"rounds": rounds, "samples": samples})
    return grown(samples)


# ---------------------------------------------------------------------- docs/results/soak.md
def page(record: dict[str, Any]) -> str:
    """The page of a record; its words are in soak.md."""
    parts = dict(record)
    if "cases" in record:
        head = ["kind", "what", "tried", "how the process ended", "runs not exact"]
        rows = []
        for kind, one in record["kinds"].items():
            ended = ", ".join(f"{status.replace('-', '−')}: {count}" for status, count in sorted(one["ended"].items()))
            rows.append([kind, described(kind), f"{one['tried']:,}", ended, str(one["lost"])])
        again = f"python scripts/soak.py --seed {record['seed']} --only"
        parts["failures"] = [
            f"Case {one['case']} ({again} {one['case']}): {'; '.join([*one['lost'], *one['wrong']])[:400]}"
            for one in record["failures"]
        ]
        parts["facts"] = ", ".join(f"{key} {value}" for key, value in record["facts"].items())
        parts["kinds"] = grid(head, rows)
    if "flat" in record:
        samples = record["flat"]["samples"]
        rows = [[f"{rounds:,}", f"{megabytes:.1f}", str(files)] for rounds, megabytes, files in samples]
        for at, one in {"first": samples[0], "last": samples[-1]}.items():
            parts |= dict(zip((f"{at}_rounds", f"{at}_mb", f"{at}_files"), one, strict=True))
        parts |= {"if_flat": "", "samples": grid(["rounds", "MB", "open files"], rows)}
    return written(__file__, parts)


# ---------------------------------------------------------------------- command line
def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20, help="number of cases, unless --hours is given")
    parser.add_argument("--hours", type=float, help="run for this time")
    parser.add_argument("--seed", type=int, default=0, help="seed of all cases")
    parser.add_argument("--only", type=int, metavar="K", help="run case K only and print its events; keeps no record")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--rounds", type=int, default=8, help="rounds of each run")
    parser.add_argument("--flat", type=int, metavar="ROUNDS", help="instead sample memory and files over these rounds")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the record; its page is written beside it")
    given = parser.parse_args(arguments)
    if given.flat:
        found = flat(given.flat, given.out)
        print(*(found or ["flat"]), sep="\n", flush=True)
        raise SystemExit(bool(found))
    cases = soak(given, given.kinds)
    exact = sum(case.exact for case in cases)
    if given.only is not None:
        print(*cases[0].events, sep="\n")
    print(f"{len(cases)} runs, {exact} exact", flush=True)
    raise SystemExit(exact != len(cases))


if __name__ == "__main__":
    main()
