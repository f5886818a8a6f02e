"""Makes docs/results/leaderboard.md and its figure from the records of docs/benchmark/; nothing is run.

    python scripts/leaderboard.py

The words are in leaderboard.md beside this file. Ranks are those of Demsar. "Statistical Comparisons of Classifiers
over Multiple Data Sets". JMLR 7 (2006), Section 3.2.2: two algorithms differ if their average ranks do by more than
q_α·sqrt(k(k + 1)/(6N)), for k algorithms on N tasks.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from reproduction.markdown import grid
from reproduction.pictures import panels
from scipy.stats import rankdata, studentized_range
from trials import written

from lit_fed.benchmark.comparison import Row, paired, row_of, share_worse
from lit_fed.benchmark.records import Record, read_records, with_clients
from lit_fed.benchmark.task import Task, read_task
from lit_fed.pictures.style import look, save

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "docs/benchmark"
PAGE = ROOT / "docs/results/leaderboard.md"
LEVEL = 0.05
NO_BYTES = 0.001
"""Where algorithms that send nothing stand on the logarithmic axis, in MB."""

Records = dict[str, Record]  # of a task, by algorithm


def all_records() -> dict[str, tuple[Task, Records]]:
    """Tasks that have records, with these."""
    found = {}
    for path in sorted(RECORDS.glob("*.jsonl")):
        task = read_task(path.stem)
        found[task.name] = task, {one["algorithm"]: with_clients(one, task) for one in read_records(path)}
    return found


def average_ranks(tasks: dict[str, tuple[Task, Records]]) -> tuple[dict[str, float], float]:
    """Average ranks of the algorithms that have a record on every task, best first, and their critical difference."""
    common = sorted(set.intersection(*(set(records) for _, records in tasks.values())))
    scores = np.array([[row_of(records[name]).mean for name in common] for _, records in tasks.values()])
    ranks = rankdata(-scores, axis=1).mean(0)
    ordered = dict(sorted(zip(common, ranks.tolist(), strict=True), key=lambda one: one[1]))
    return ordered, critical_difference(len(common), len(tasks))


def critical_difference(algorithms: int, tasks: int) -> float:
    """By how much average ranks have to differ, Nemenyi's test."""
    quantile = studentized_range.ppf(1 - LEVEL, algorithms, math.inf) / math.sqrt(2)
    return float(quantile * math.sqrt(algorithms * (algorithms + 1) / (6 * tasks)))


def task_table(task: Task, records: Records) -> list[str]:
    """A line for each algorithm, the best mean first; the leader's paired difference to it where its interval has 0."""
    rows = {name: row_of(record) for name, record in records.items()}
    names = sorted(rows, key=lambda name: -rows[name].mean)
    lines = [_line(name, rows[name], records, records[names[0]]) for name in names]
    head = ["algorithm", "seen", "worst decile", "unseen", "below Local", "below FedAvg+", "MB", "CPU s", "behind"]
    data = f"{task.given.get('title', task.name)}; {task.metric}, {task.rounds} rounds, {len(task.cuts)} cuts."
    return [f"## {task.name.replace('_', ' ').capitalize()}", "", data, "", *grid(head, lines)]


def _line(name: str, row: Row, records: Records, leader: Record) -> list[str]:
    record = records[name]
    worse = [
        "" if base not in records or base == name else f"{100 * share_worse(record, records[base]):.0f} %"
        for base in ("Local", "FedAvgPlus")
    ]
    gap = None if record is leader else paired(leader, record)
    cells = [f"{100 * row.mean:.1f} ± {100 * row.spread:.1f}", _number(row.decile), _number(row.unseen[2])]
    costs = [f"{row.megabytes:.2f}", f"{row.seconds:.1f}"]
    return [name, *cells, *worse, *costs, "" if gap is None else str(gap) if gap.is_clear else f"{gap}, not clear"]


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{100 * value:.1f}"


def picture(tasks: dict[str, tuple[Task, Records]], path: Path) -> None:
    """Mean score of seen clients against the bytes of all clients, a panel for each task."""
    figure, axes = panels(list(tasks), columns=2)
    for name, (task, records) in tasks.items():
        rows = {algorithm: row_of(record) for algorithm, record in records.items()}
        gap = 100 * np.ptp([row.mean for row in rows.values()]) / 30
        height = -math.inf  # of the last name
        for place, (algorithm, row) in enumerate(sorted(rows.items(), key=lambda one: one[1].mean)):
            x, y = max(row.megabytes, NO_BYTES), 100 * row.mean
            axes[name].plot(x, y, look(place)["marker"])
            height = max(y, height + gap)  # names do not overlap
            axes[name].annotate(algorithm, (x, height), fontsize=6, xytext=(5, -2), textcoords="offset points")
        axes[name].set(
            xscale="log", xlabel=f"MB of all clients ({NO_BYTES}: none)", ylabel=f"{task.metric} x 100, seen"
        )
    save(figure, path)


def ranks_table(ranks: dict[str, float]) -> list[str]:
    """A line for each algorithm."""
    return grid(["algorithm", "average rank"], [[name, f"{rank:.2f}"] for name, rank in ranks.items()])


def page(tasks: dict[str, tuple[Task, Records]]) -> str:
    """The page of all records."""
    ranks, critical = average_ranks(tasks)
    best = next(iter(ranks))
    apart = [name for name, rank in ranks.items() if rank - ranks[best] > critical]
    parts = {
        "ranks": ranks_table(ranks), "num_tasks": str(len(tasks)), "num_algorithms": str(len(ranks)), "best": best,
        "critical": f"{critical:.1f}", "apart": _listed(apart) if apart else "none",
        "tasks": [line for task, records in tasks.values() for line in ("", *task_table(task, records))][1:],
    }  # fmt: skip
    return written(__file__, parts)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def main() -> None:
    """Write the page and its figure."""
    tasks = all_records()
    PAGE.write_text(page(tasks))
    picture(tasks, PAGE.with_suffix(".png"))


if __name__ == "__main__":
    main()
