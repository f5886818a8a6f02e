"""Measures whether the benchmark's intervals hold, and makes docs/results/intervals.md.

    python scripts/intervals.py --data.root DIR [--repetitions 200] [--tasks digits_label_groups heart parkinsons]

One algorithm runs under many training seeds by the benchmark's protocol. Every two repetitions are one algorithm under
two names, whose difference is 0: an interval that excludes 0 is wrong. Then several algorithms run once, and intervals
of the differences of one half of the clients are compared with the other half. Runs are kept in runs/intervals.jsonl,
and are not made again.
"""

import argparse
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from reproduction.markdown import grid
from trials import facts, keep, written

from lit_fed.benchmark.comparison import units
from lit_fed.benchmark.method import method_of
from lit_fed.benchmark.runs import Work, entry_of, make_run
from lit_fed.benchmark.task import Task, read_task
from lit_fed.cli import UntestedCLI
from lit_fed.metrics.paired import Difference, Units, difference, weighted_mean

RESULTS = Path(__file__).resolve().parents[1] / "docs/results/intervals.json"
RATES = {"synthetic_mixture": 0.316}
"""Learning rates that are not 0.1; no trial chooses them, since tuning is not covered."""

ALGORITHMS = ("FedAvg", "Local", "FedAvgPlus", "FedEM", "Ditto", "FedProx", "IFCA", "APFL")
HALVES = 50
"""Random halves of the clients for each pair of algorithms."""

FEWEST = 20
"""Clients of a task that is halved."""


@dataclass(frozen=True, eq=False)
class Repeated(Task):
    """A task whose runs have other training seeds, and influences of clients beside their scores."""

    repetition: int = 0

    def arguments(self, algorithm: str, point: dict[str, Any], cut: int) -> dict[str, Any]:
        return super().arguments(algorithm, point, cut) | {"seed_everything": 1 + cut + 1000 * self.repetition}


def repeated(name: str, repetition: int) -> Repeated:
    """A task with the training seeds of a repetition."""
    task = read_task(name)
    given = {one.name: getattr(task, one.name) for one in fields(task)}
    return Repeated(**(given | {"score": "pooled"}), repetition=repetition)


class Runs:
    """Finished runs by task, algorithm, repetition and cut, kept in a file."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path, self.root = path, root
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.is_file() else []
        self.known = {tuple(one.pop("key")): one for one in map(json.loads, lines)}

    def of(self, name: str, algorithm: str, repetition: int) -> list[dict[str, Any]]:
        """The runs of all cuts; missing ones are made."""
        task, found = repeated(name, repetition), []
        for cut in task.cuts:
            key = (name, algorithm, repetition, cut)
            if key not in self.known:
                point = json.dumps({"lr": RATES.get(name, 0.1)})
                work = Work(entry_of(task, method_of(algorithm)), None, point, cut)
                self.known[key] = make_run(UntestedCLI, self.root, work)
                with self.path.open("a") as file:
                    file.write(json.dumps({"key": key, **self.known[key]}) + "\n")
            found.append(self.known[key])
        return found


def sides(task: Task, runs: Sequence[Sequence[dict[str, Any]]], score: str) -> list[Units]:
    """Scores of seen clients of each series of runs, in the form that differences are made of."""
    known = task.known_clients()[0]
    names = known.of("seen")
    beside = {"clients": names, "samples": [known.test_samples[one] for one in names]}
    series = [[{"test": {"seen": run["test"]["seen"] | beside}} for run in one] for one in runs]
    return units(series, score, "seen")


def halves(one: Units, other: Units, seed: int) -> Iterator[tuple[Difference, Difference]]:
    """Differences of random halves of the clients."""
    rng, number = np.random.default_rng(seed), one.parts.shape[1]
    for _ in range(HALVES):
        first = rng.permutation(number) < number // 2
        yield tuple(difference(*(_part(each, kept) for each in (one, other))) for kept in (first, ~first))  # type: ignore[misc]


def _part(whole: Units, kept: np.ndarray) -> Units:
    """The mean over some clients, of those whose score is defined."""
    held = kept & ~np.isnan(whole.parts)
    weight = np.where(held, whole.weight, np.nan)
    return weighted_mean(whole.score[:, None] + whole.parts / weight, weight)


def covers(one: Difference, other: Difference) -> bool:
    """Whether the interval of one half, for a mean over as many other clients, has the other half's difference."""
    return not Difference(one.mean - other.mean, math.sqrt(2) * one.error, one.freedom).is_clear


def same_algorithm(runs: Runs, name: str, repetitions: int) -> list[dict[str, Any]]:
    """How many of all pairs of repetitions are clear, by kind of score."""
    task, rows = read_task(name), []
    every = [runs.of(name, ALGORITHMS[0], one) for one in range(repetitions)]
    for score in ("clients", "pooled"):
        pairs = itertools.combinations(sides(task, every, score), 2)
        clear = [difference(*pair).is_clear for pair in pairs]
        rows.append({"task": name, "score": score, "seeds": repetitions, "pairs": len(clear), "clear": sum(clear)})
    return rows


def other_half(runs: Runs, name: str) -> dict[str, Any] | None:
    """How often one half of the clients tells the other half, over all pairs of algorithms; None for few clients."""
    task = read_task(name)
    each = [runs.of(name, one, 0) for one in ALGORITHMS]
    found = sides(task, [one for one in each if all("test" in run for run in one)], "clients")  # none that diverged
    if found[0].parts.shape[1] < FEWEST:
        return None
    pairs = enumerate(itertools.combinations(found, 2))
    covered = [covers(*both) for seed, pair in pairs for both in halves(*pair, seed)]
    return {
        "task": name, "algorithms": len(found), "clients": found[0].parts.shape[1], "halves": len(covered),
        "covered": sum(covered),
    }  # fmt: skip


def page(record: dict[str, Any]) -> str:
    """The page of a record."""
    same, half = record["same"], record["halves"]
    totals = {score: [one for one in same if one["score"] == score] for score in ("clients", "pooled")}
    shares = {score: _share(rows, "clear", "pairs") for score, rows in totals.items()}
    lines = [
        [one["task"], one["score"], str(one["seeds"]), f"{one['pairs']:,}", f"{_share([one], 'clear', 'pairs'):.1f} %"]
        for one in same
    ]
    covered = [
        [
            one["task"],
            str(one["algorithms"]),
            str(one["clients"]),
            f"{one['halves']:,}",
            f"{_share([one], 'covered', 'halves'):.1f} %",
        ]
        for one in half
    ]
    parts = {
        "clients": f"{shares['clients']:.1f}", "pooled": f"{shares['pooled']:.1f}", "same": grid(
            ["task", "score", "seeds", "pairs", "clear"], lines
        ),
        "covered": f"{_share(half, 'covered', 'halves'):.1f}",
        "halves": grid(["task", "algorithms", "clients", "halves", "covered"], covered), "date": record["date"],
        "torch": record["torch"],
    }  # fmt: skip
    return written(__file__, parts)


def _share(rows: Sequence[dict[str, Any]], part: str, whole: str) -> float:
    return 100 * sum(one[part] for one in rows) / sum(one[whole] for one in rows)


def main() -> None:
    """Make the runs, the record and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data.root", dest="root", type=Path, default=Path("data"))
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--tasks", nargs="+", default=["digits_label_groups", "heart", "parkinsons"])
    parser.add_argument(
        "--halved", nargs="+", default=["digits_label_groups", "exam", "parkinsons", "synthetic_mixture"]
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/intervals.jsonl"))
    given = parser.parse_args()
    runs = Runs(given.runs, given.root.absolute())
    same = [row for name in given.tasks for row in same_algorithm(runs, name, given.repetitions)]
    half = [row for name in given.halved if (row := other_half(runs, name)) is not None]
    keep(RESULTS, page, same=same, halves=half, **facts())


if __name__ == "__main__":
    main()
