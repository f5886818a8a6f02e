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
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

from reproduction.markdown import grid
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from soaking import KINDS, RUNS, Life, Whole, described, whole_run
from trials import facts, keep, written

RESULTS = Path(__file__).resolve().parents[1] / "docs/results/soak.json"
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


@contextmanager
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


def flat_run(rounds: int, life: Life, said: Any = print) -> list[Sample]:
    """Run the rounds of a fresh `life` and sample the process at regular intervals."""
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
        rows = [
            [kind, described(kind), f"{one['tried']:,}", _endings(one["ended"]), str(one["lost"])]
            for kind, one in record["kinds"].items()
        ]
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


def _endings(ended: dict[str, int]) -> str:
    return ", ".join(f"{status.replace('-', '−')}: {count}" for status, count in sorted(ended.items()))


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
