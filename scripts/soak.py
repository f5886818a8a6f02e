"""Gets small runs into trouble at random, continues them, and compares them with the run that had none.

    python scripts/soak.py --hours 1              # and writes docs/results/soak.json and soak.md
    python scripts/soak.py --cases 20 --seed 3
    python scripts/soak.py --seed 3 --only 7      # one case again, and what became of it
    python scripts/soak.py --flat 10000           # memory and open files of one long run

A case is a run that gets into up to three troubles, one after the other, drawn from its seed and number: signals, a
kill in the write of a checkpoint, a full disk, a clock that jumps, files that are gone, a second writer. It is exact if
in the end `summary.json`, `metrics.csv` (both without times) and `clients.csv` equal those of the whole run. What was
done in a case is drawn from the seed; in which line of the program it met the run is the machine's affair. The exit
status is 1 if something was lost.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from soaking.flat import flat_run, grown
from soaking.lives import RUNS, Life, Whole, whole_run
from soaking.report import page
from soaking.troubles import KINDS

from lit_fed.system.files import write_atomically

__all__ = ["Case", "draw", "main", "soak"]

RESULTS = Path(__file__).resolve().parents[1] / "docs/results/soak.json"
MOST_TROUBLES = 3


class Case(NamedTuple):
    """A run and what it got into."""

    number: int
    run: str
    kinds: list[str]
    endings: list[list[str]]  # of the processes of each trouble
    events: list[str]
    lost: list[str]
    wrong: list[str]

    @property
    def exact(self) -> bool:
        """Whether nothing was lost, and nobody met a traceback or hung."""
        return not self.lost and not self.wrong


def draw(seed: int, number: int, kinds: Sequence[str]) -> tuple[random.Random, str, list[str]]:
    """What becomes of a case: the generator of its instants, its run, its troubles. All kinds come first in turn."""
    rng = random.Random(f"{seed}:{number}")
    more = rng.choices(kinds, k=rng.randrange(MOST_TROUBLES))
    return rng, rng.choice(list(RUNS)), [kinds[number % len(kinds)], *more]


class Soak:
    """Cases, one after another, in a folder that is deleted at the end.

    Args:
        seed: of all that is drawn.
        kinds: of troubles.
        rounds: of each run.
        root: the folder.
    """

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
        except Exception as error:  # of this program: the case is no success
            life.wrong.append(f"{type(error).__name__}: {error}")
        finally:
            shutil.rmtree(out, ignore_errors=True)
        return Case(number, name, kinds, endings, life.events, lost, life.wrong)


@contextmanager
def bar(total: float, unit: str) -> Iterator[Any]:
    """Progress and the time that is left; the function takes what is done, and a line to be printed."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"))
    with Progress(*columns, TextColumn(unit), TimeElapsedColumn(), TimeRemainingColumn(), transient=True) as progress:
        task = progress.add_task("soak", total=total)

        def done(completed: float, line: str) -> None:
            progress.update(task, completed=completed)
            print(line, flush=True)

        yield done


def line(case: Case) -> str:
    """What is said of a case."""
    what = "exact" if case.exact else f"NOT EXACT: {'; '.join([*case.lost, *case.wrong])}"
    return f"case {case.number:4d}, {case.run}, {' + '.join(case.kinds)}: {what}"


def soak(given: argparse.Namespace, kinds: Sequence[str]) -> list[Case]:
    """All cases that are asked for; the record is kept up to date."""
    root, cases, begin = Path(tempfile.mkdtemp(prefix="soak-")), [], time.monotonic()
    numbers = range(10**9) if given.hours else range(given.cases) if given.only is None else [given.only]
    total, unit = (3600 * given.hours, "s") if given.hours else (len(numbers), "cases")
    try:
        runs = Soak(given.seed, kinds, given.rounds, root)
        with bar(total, unit) as done:
            for number in numbers:
                cases.append(runs.case(number))
                if given.only is None:
                    keep(given.out, **record_of(given, cases, kinds))  # now: this program may be killed too
                seconds = time.monotonic() - begin
                done(min(seconds, total) if given.hours else len(cases), line(cases[-1]))
                if given.hours and seconds > total:
                    break
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return cases


def record_of(given: argparse.Namespace, cases: Sequence[Case], kinds: Sequence[str]) -> dict[str, Any]:
    """What is kept of the cases."""
    rows: dict[str, dict[str, Any]] = {}
    for kind in kinds:
        endings = [one for case in cases for name, one in zip(case.kinds, case.endings, strict=False) if name == kind]
        lost = sum(not case.exact for case in cases if kind in case.kinds)
        rows[kind] = {
            "tried": len(endings),
            "ended": Counter(status for one in endings for status in one),
            "lost": lost,
        }
    failures = [case for case in cases if not case.exact]
    return {
        "seed": given.seed, "rounds": given.rounds, "most": MOST_TROUBLES, "cases": len(cases),
        "exact": len(cases) - len(failures), "kinds": rows,
        "failures": [
            {"case": one.number, "kinds": one.kinds, "events": one.events, "lost": one.lost, "wrong": one.wrong}
            for one in failures
        ],
        "facts": {
            "seed": given.seed, "torch": torch.__version__, "python": platform.python_version(),
            "date": time.strftime("%Y-%m-%d"),
        },
    }  # fmt: skip


def keep(path: Path, **news: Any) -> None:
    """Add to the record, and write its page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    record = (json.loads(path.read_text()) if path.is_file() else {}) | news
    write_atomically(path, json.dumps(record, indent=1) + "\n")
    write_atomically(path.with_suffix(".md"), page(json.loads(path.read_text())))


def flat(rounds: int, out: Path) -> list[str]:
    """One long run; what grew too much."""
    root = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        life = Life(RUNS["FedEM"], root, rounds, 0.0, random.Random(0))
        samples = flat_run(rounds, life)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if life.wrong or not samples:
        return life.wrong or ["the run ended before it was looked at"]
    keep(out, flat={"rounds": rounds, "samples": samples})
    return grown(samples)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20, help="how many, unless --hours is given")
    parser.add_argument("--hours", type=float, help="go on for so long")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn")
    parser.add_argument("--only", type=int, metavar="K", help="case K alone, with what happened in it; keeps no record")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--rounds", type=int, default=8, help="rounds of each run")
    parser.add_argument("--flat", type=int, metavar="ROUNDS", help="memory and open files over so many rounds instead")
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
