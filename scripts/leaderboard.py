"""Makes docs/results/leaderboard.md, its figure and the page of each task from docs/benchmark/; nothing is run.

    python scripts/leaderboard.py

The words are in leaderboard.md beside this file.
"""

import itertools
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from reproduction.markdown import grid, wrap
from reproduction.pictures import panels
from scipy.stats import binom
from trials import written

import lit_fed.algorithms
from lit_fed.benchmark.comparison import Row, paired, ranked_score, row_of, share_worse
from lit_fed.benchmark.measures import FEW
from lit_fed.benchmark.protocol import PROTOCOL
from lit_fed.benchmark.ranks import average_ranks
from lit_fed.benchmark.records import Record, read_records, read_refusals, with_clients
from lit_fed.benchmark.task import Task, read_task, task_files
from lit_fed.metrics.paired import LEVEL, Difference, holm
from lit_fed.pictures.critical_difference import critical_difference_diagram
from lit_fed.pictures.style import save

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "docs/benchmark"
PAGE = ROOT / "docs/results/leaderboard.md"
PAGES = ROOT / "docs/results/benchmark"
DIAGRAM = "critical_difference.png"
FIRST = 10
"""Algorithms in the first table."""

RANKED = {"small", "natural"}
"""Suites whose tasks are ranked."""

NAMES = 6
"""Most tasks that a sentence names."""

MOST = 0.8
"""A task is common if it has records of this share of the algorithms at least."""

NOTHING = (
    "**There are no records of protocol {} yet.** Those of protocol 1 were removed: trials were judged on samples that "
    "other cuts tested, and intervals were too narrow. `lit-fed benchmark run` makes records."
)

NAMED = {"FedAvgPlus": "FedAvg, then fine-tuning", "FedAvg": "One model for all", "Local": "Training alone"}
"""Baselines that the findings name."""


AGAINST = ("FedAvgPlus", "Local", "FedAvg")
"""Baselines that every algorithm is compared with, over all tasks together."""

JOINED = ("FedAvg", "FedAvgPlus", "FedEM", "ResponsibilityFedEM", "MixedEffects", "PartialPooling")
"""Algorithms whose clients are counted by their sizes, beside Local."""

COVERED = 0.95
"""What an interval of a median covers at least."""

SIZES = (0, 10, 20, 40, 80, 10**9)
"""Limits of the training samples of a client."""

TRAINING = 3
"""Training samples of a client for each test sample: three fifths and one fifth."""

MIXTURES = {"FedEM": "A mixture", "ResponsibilityFedEM": "A mixture averaged by responsibility"}


class Standing(NamedTuple):
    """An algorithm on a task."""

    row: Row
    gap: Difference | None  # the best algorithm minus it, among all comparisons with the best; None: it is the best
    below_local: float  # share of the seen clients
    below_plus: float

    @property
    def is_level(self) -> bool:
        """Whether it is the best, or the interval of the difference to the best contains 0.

        The intervals of all algorithms hold together: the truly best one is level in 95 % of all tasks, although the
        best one here was chosen by these results.
        """
        return not self.row.diverged and (self.gap is None or not self.gap.is_clear)


class Results(NamedTuple):
    """All that is known of a task."""

    task: Task
    records: dict[str, Record]  # by algorithm
    standings: dict[str, Standing]  # the best first
    refused: dict[str, str]  # reasons by algorithm

    @property
    def title(self) -> str:
        """Its name in words."""
        return self.task.name.replace("_", " ").capitalize()

    @property
    def level(self) -> list[str]:
        """Algorithms that are level with the best, itself among them."""
        return [name for name, one in self.standings.items() if one.is_level]


def results_of(task: Task, records: dict[str, Record], refused: dict[str, str]) -> Results:
    """Records of a task and how they stand."""
    rows = {name: row_of(record) for name, record in records.items()}
    names = sorted(rows, key=lambda name: -ranked_score(records[name]))
    standings = {}
    for name in names:
        worse = [
            math.nan if base == name else share_worse(records[name], records.get(base))
            for base in ("Local", "FedAvgPlus")
        ]
        gap = None if name == names[0] else paired(records[names[0]], records[name], comparisons=len(names) - 1)
        standings[name] = Standing(rows[name], gap, *worse)
    return Results(task, records, standings, refused)


def all_results() -> list[Results]:
    """Tasks that have records."""
    refused = read_refusals(RECORDS)
    found = []
    for path in sorted(RECORDS.glob("*.jsonl.gz")):
        task = read_task(path.name.removesuffix(".jsonl.gz"))
        records = {one["algorithm"]: with_clients(one, task) for one in read_records(path)}
        found.append(results_of(task, records, refused.get(task.name, {})))
    return found


# ---------------------------------------------------------------------- ranks
def ranks_of(results: Sequence[Results]) -> tuple[dict[str, float], float]:
    """Average ranks of the algorithms that have a record on every task, best first, and their critical difference."""
    common = set.intersection(*(set(one.records) for one in results))
    sources: dict[str, list[dict[str, float]]] = {}
    for one in results:
        scores = {name: ranked_score(one.records[name]) for name in common}
        sources.setdefault(one.task.source, []).append(scores)
    return average_ranks(sources)


def ranked_tasks(results: Sequence[Results]) -> list[Results]:
    """Tasks that ranks are over."""
    return [one for one in results if RANKED.intersection(one.task.given["suites"])]


def natural_tasks(results: Sequence[Results]) -> list[Results]:
    """Ranked tasks whose clients are those of real data; in the others, groups or mixtures were made."""
    given = {one.task.name: one.task.given for one in results}
    made = {name for name, one in given.items() if "partition" in one or one["dataset"]["class_path"] == "Synthetic"}
    return [one for one in ranked_tasks(results) if one.task.name not in made]


def common_tasks(results: Sequence[Results]) -> list[Results]:
    """Ranked tasks on which most algorithms have a record."""
    small = ranked_tasks(results)
    most = max(len(one.records) for one in small)
    return [one for one in small if len(one.records) >= MOST * most]


# ---------------------------------------------------------------------- tables
def linked(name: str) -> str:
    """An algorithm's name, which leads to its page."""
    cls = getattr(lit_fed.algorithms, name, None)
    shown = name.replace("_", r"\_")
    return shown if cls is None else f"[{shown}](../../{cls.__module__.replace('.', '/')}.py)"


def titles(results: Iterable[Results]) -> str:
    """Titles of tasks, with links to their pages; none."""
    return ", ".join(f"[{one.title.lower()}](benchmark/{one.task.name}.md)" for one in results) or "none"


def overview(results: Sequence[Results], names: Iterable[str], ranks: Sequence[dict[str, float]]) -> list[str]:
    """A line for each algorithm: its ranks, where it is good, and what it costs.

    Args:
        results: of all tasks.
        names: the algorithms in the order of the lines.
        ranks: average ranks, a column for each.
    """
    columns = ["rank", *(f"rank on {len(common_tasks(results))}" for _ in ranks[1:])]
    head = ["algorithm", *columns, "tasks", "level with the best on", "below Local", "bytes", "CPU"]
    lines = []
    for name in names:
        held = [one for one in results if name in one.standings]
        mine = [one.standings[name] for one in held]
        cells = [f"{one[name]:.1f}" if name in one else "" for one in ranks]
        good = str(sum(one.standings[name].is_level for one in held))
        below = [100 * one.below_local for one in mine if not math.isnan(one.below_local)]
        costs = [_times_fedavg(held, name, column) for column in ("megabytes", "seconds")]
        share = f"{np.mean(below):.0f} %" if below else ""
        lines.append([linked(name), *cells, str(len(held)), good, share, *costs])
    return grid(head, lines)


def _times_fedavg(results: Sequence[Results], name: str, column: str) -> str:
    """Median over the tasks of what it takes, relative to FedAvg."""
    pairs = [(getattr(one.standings[name].row, column), one.standings.get("FedAvg")) for one in results]
    ratios = [value / getattr(base.row, column) for value, base in pairs if base is not None]
    return f"{np.nanmedian(ratios):.1f}" if ratios and not np.isnan(ratios).all() else ""


def _points(score: float) -> str:
    """A score x 100; of models that extrapolate badly its order of magnitude."""
    return f"{100 * score:.1f}" if abs(score) < 1000 else f"{100 * score:.0e}"


def task_table(result: Results) -> list[str]:
    """A line for each algorithm, the best first; its paired difference to the best."""
    head = ["algorithm", "seen", "worst decile", "unseen", "below Local", "below FedAvg+", "MB", "CPU s", "behind"]
    lines = []
    for name, (row, gap, *below) in result.standings.items():
        told = "" if gap is None else str(gap) if gap.is_clear else f"{gap}, not clear"
        seen = _points(row.mean) + ("" if math.isnan(row.spread) else f" ± {_points(row.spread)}")
        seen += f" ({row.diverged} of {len(result.task.cuts)} cuts diverged)" if row.diverged else ""
        shares = ["" if math.isnan(one) else f"{100 * one:.0f} %" for one in below]
        costs = [f"{row.megabytes:.2f}", f"{row.seconds:.1f}"]
        numbers = ["" if math.isnan(one) else _points(one) for one in (row.decile, row.unseen[2])]
        lines.append([linked(name).replace("../../", "../../../"), seen, *numbers, *shares, *costs, told])
    return grid(head, lines)


# ---------------------------------------------------------------------- words
def findings(results: Sequence[Results]) -> tuple[list[str], list[str]]:
    """The sentence ahead of the table, and what else the records say, a paragraph each; every number is computed."""
    small = ranked_tasks(results)
    ranks, critical = ranks_of(small)
    best = next(iter(ranks))
    close = sum(rank - ranks[best] <= critical for rank in ranks.values()) - 1
    lead = (
        f"**{best} has the best average rank, {ranks[best]:.1f}, of {len(ranks)} algorithms on {len(small)} tasks of "
        f"{len({one.task.source for one in small})} sources.** Ranks that differ by less than {critical:.1f} may do so "
        f"by chance (Nemenyi's test, 5 %): {close} algorithms are that close to it."
    )
    told = _not_everywhere(small)
    for name, words in NAMED.items():
        held = [one for one in results if name in one.standings]
        good = [one for one in held if one.standings[name].is_level]
        told.append(f"**{words}** (`{name}`) is level with the best on {_of(good, held)}.")
    natural = natural_tasks(results)
    told += [_on_natural_clients(natural, small)] if len(small) > len(natural) > 0 else []
    told.append(what_tuning_explains(results))
    told += [_beside_fine_tuning(results, name) for name in MIXTURES]
    return wrap(lead), [line for one in told for line in wrap(one, bullet=True)]


def _beside_fine_tuning(results: Sequence[Results], name: str) -> str:
    """On how many tasks it is ahead of fine-tuning and behind it, corrected for the number of tasks."""
    held = [one for one in results if {name, "FedAvgPlus"} <= one.records.keys()]
    found = [(one, paired(one.records[name], one.records["FedAvgPlus"])) for one in held]
    gaps = [(one, gap) for one, gap in found if gap is not None]
    clear = [each for each, p in zip(gaps, holm([gap.p for _, gap in gaps]), strict=True) if p < LEVEL]
    ahead, behind = ([one for one, gap in clear if sign * gap.mean > 0] for sign in (1, -1))
    return (
        f"**{MIXTURES[name]}** (`{name}`) is clearly ahead of `FedAvgPlus` on {_of(ahead, gaps)}, and clearly behind "
        f"on {_of(behind, gaps)}."
    )


def _not_everywhere(results: Sequence[Results]) -> list[str]:
    """Ranks of algorithms that most tasks have a record of, but not all, on those tasks."""
    number = {name: sum(name in one.records for one in results) for one in results for name in one.records}
    told = []
    for name, count in sorted(number.items()):
        if not MOST * len(results) <= count < len(results):
            continue
        held = [one for one in results if name in one.records]
        ranks, critical = ranks_of(held)
        best, second = list(ranks)[:2]
        beside = second if best == name else best
        gaps = gaps_to(held, name, beside)
        told.append(
            f"**`{name}`** runs on {count} of {len(results)} tasks. On these its average rank is {ranks[name]:.1f} of "
            f"{len(ranks)}, that of `{beside}` {ranks[beside]:.1f}; the critical difference is {critical:.1f}. It is "
            f"{over_sources(gaps)} points ahead of `{beside}`, median and 95 % interval over sources."
        )
    return told


def _on_natural_clients(results: Sequence[Results], every: Sequence[Results]) -> str:
    """Ranks on tasks whose clients are those of real data, if other tasks are ranked, too."""
    ranks, critical = ranks_of(results)
    best = next(iter(ranks))
    mixtures = "".join(f", `{name}` {ranks[name]:.1f}" for name in MIXTURES if name in ranks and name != best)
    return (
        f"**Natural clients** have {len(results)} tasks; the other {len(every) - len(results)} divide samples into "
        f"groups or mixtures, which suits mixtures and clustering. On natural clients `{best}` has the best average "
        f"rank, {ranks[best]:.1f}{mixtures}; the critical difference is {critical:.1f}."
    )


def _of(good: Sequence[Results], held: Sequence[object]) -> str:
    return f"{len(good)} of {len(held)} tasks" + (f" ({titles(good)})" if 0 < len(good) <= NAMES else "")


# ---------------------------------------------------------------------- all tasks together
def gaps_to(results: Sequence[Results], name: str, base: str) -> dict[str, tuple[Difference, str]]:
    """Paired differences of an algorithm and a baseline by task, with the source of each."""
    held = [one for one in results if {name, base} <= one.records.keys()]
    found = [(one.task, paired(one.records[name], one.records[base])) for one in held]
    return {task.name: (gap, task.source) for task, gap in found if gap is not None}


def against(results: Sequence[Results], names: Iterable[str]) -> list[str]:
    """A line for each algorithm: its mean difference to each baseline, and where it is clearly ahead and behind."""
    lines = []
    for name in names:
        cells = []
        for base in AGAINST:
            gaps = gaps_to(results, name, base) if name != base else {}
            if not gaps:
                cells += ["", ""]
                continue
            p = holm([gap.p for gap, _ in gaps.values()])
            signs = [gap.mean > 0 for (gap, _), one in zip(gaps.values(), p, strict=True) if one < LEVEL]
            cells += [over_sources(gaps), f"{sum(signs)} / {len(signs) - sum(signs)} of {len(gaps)}"]
        lines.append([linked(name), *cells])
    head = [one for base in AGAINST for one in (f"minus {base}", "ahead / behind")]
    return grid(["algorithm", *head], lines)


def by_source(gaps: dict[str, tuple[Difference, str]]) -> np.ndarray:
    """The mean difference of each source, sorted."""
    sources = {source: [gap.mean for gap, other in gaps.values() if other == source] for _, source in gaps.values()}
    return np.sort([np.mean(values) for values in sources.values()])


def median_over_sources(gaps: dict[str, tuple[Difference, str]]) -> float:
    """The median difference; a model that extrapolates badly on one task may have any R² there."""
    return float(np.median(by_source(gaps)))


def over_sources(gaps: dict[str, tuple[Difference, str]]) -> str:
    """The median difference x 100 over sources, and an interval of it by ranks, of at least 95 %."""
    each = by_source(gaps)
    outside = max(int(binom.ppf((1 - COVERED) / 2, len(each), 0.5)) - 1, 0)  # values left out at each end
    return f"{100 * np.median(each):+.1f} [{100 * each[outside]:+.1f}, {100 * each[-1 - outside]:+.1f}]"


def by_size(results: Sequence[Results]) -> list[str]:
    """The share of clients that are better than under Local, less that of worse ones, by training samples."""
    known = {name: sum({name, "Local"} <= one.records.keys() for one in results) for name in JOINED}
    names = [name for name, number in known.items() if number and number >= MOST * len(results)]
    results = [one for one in results if {*names, "Local"} <= one.records.keys()]
    found = {name: [[0, 0] for _ in SIZES[1:]] for name in names}
    for result in results:
        for name in names:
            pair = [result.records.get(one) for one in (name, "Local")]
            if None in pair:
                continue
            for one, alone in zip(*(record["runs"] for record in pair), strict=True):  # type: ignore[index]
                if "test" not in one or "test" not in alone:
                    continue
                mine, own = one["test"]["seen"], alone["test"]["seen"]
                for first, second, tested in zip(mine["score"], own["score"], mine["samples"], strict=True):
                    if first is not None and second is not None:
                        place = next(k for k, most in enumerate(SIZES[1:]) if TRAINING * tested < most)
                        found[name][place][0] += (first > second) - (first < second)
                        found[name][place][1] += 1
    lines = []
    for place, (least, most) in enumerate(itertools.pairwise(SIZES)):
        said = f"{least} to {most - 1}" if most < SIZES[-1] else f"{least} and more"
        counts = [found[name][place] for name in names]
        shares = ["" if not number else f"{100 * total / number:+.0f} %" for total, number in counts]
        lines.append([said, f"{max(number for _, number in counts):,}", *shares])
    return grid(["training samples", "clients, over cuts", *map(linked, names)], lines)


def what_tuning_explains(results: Sequence[Results]) -> str:
    """How much of the best algorithm's gain over one model for all is that of fine-tuning it."""
    plain = [one for one in results if {"FedAvg", "FedAvgPlus"} <= one.records.keys()]
    held = [one for one in plain if not one.standings["FedAvg"].row.diverged]
    rows = [{name: each.row.mean for name, each in one.standings.items() if not each.row.diverged} for one in held]
    gains = [(max(row.values()) - row["FedAvg"], row.get("FedAvgPlus", row["FedAvg"]) - row["FedAvg"]) for row in rows]
    whole, tuned = (float(np.mean(each)) for each in zip(*gains, strict=True))
    return (
        f"**What fine-tuning explains**: the best algorithm of each task is {100 * whole:.1f} points ahead of `FedAvg` "
        f"on average, `FedAvgPlus` {100 * tuned:.1f}: {100 * tuned / whole:.0f} % of the gain. The best one is chosen "
        "by these results, so that its lead is flattered."
    )


def missing(result: Results, everybody: Iterable[str]) -> list[str]:
    """Algorithms without a record, and why."""
    names = [name for name in sorted(everybody) if name not in result.records]
    if not names:
        return []
    plain = [name for name in names if name not in result.refused]
    lines = [f"- {name}: {' '.join(result.refused[name].split())}" for name in names if name in result.refused]
    return ["", "## Not run", "", *lines, *wrap(", ".join(plain), bullet=True)]


def task_page(result: Results, everybody: Iterable[str]) -> str:
    """The page of a task."""
    task, level = result.task, result.level
    others = f"; {len(level) - 1} of the {len(result.records) - 1} others are level with it" if level[1:] else ""
    judged = "of the samples of all clients together" if task.score == "pooled" else "as the clients' mean"
    found = f"**{next(iter(result.standings))}** is the best{others}"
    found += f": {', '.join(level[1:])}." if level[1:] else "."
    title, data, licence = (task.given.get(name, "") for name in ("title", "data", "licence"))
    about = (
        f"{title}. Judged by {task.metric} {judged}, x 100, after {task.rounds} rounds, on {len(task.cuts)} cuts. "
        f"Data: {data} Licence: {licence}. [What the columns mean](../leaderboard.md#how-to-read-the-tables)."
    )
    seen = next(run["test"]["seen"] for record in result.records.values() for run in record["runs"] if "test" in run)
    if task.score == "pooled" and len(seen["score"]) < FEW:
        about += " Intervals are for other persons of the same clients."
    parts = [f"# {result.title}", "", *wrap(found), "", *task_table(result), "", *wrap(about)]
    made = "Generated by `python scripts/leaderboard.py` from the records in `docs/benchmark/`; do not edit."
    return "\n".join([*parts, *missing(result, everybody), "", made, ""])


def page(results: Sequence[Results]) -> str:
    """The leaderboard; without records it says so."""
    given = {name: read_task(name).given for name in task_files()}
    ready = [name for name in given if RANKED.intersection(given[name].get("suites", ()))]
    waiting = [name for name in ready if name not in {one.task.name for one in results}]
    parts: dict[str, Any] = {"waiting": wrap(f"Not run: {', '.join(waiting)}.") if waiting else None}
    small = ranked_tasks(results)
    if not small or not set.intersection(*(set(one.records) for one in small)):
        tasks = [f"| {name} | {given[name]['title']} |" for name in waiting]
        lead = [*wrap(NOTHING.format(PROTOCOL)), "", "| task without records | data |", "|---|---|", *tasks]
        return written(__file__, parts | {"lead": lead, "waiting": None})
    ranks, _ = ranks_of(small)
    common = common_tasks(results)
    columns = [ranks] if len(common) == len(small) else [ranks, ranks_of(common)[0]]
    baselines = [name for name in NAMED if name in ranks and name not in list(ranks)[:FIRST]]
    number = {name: sum(name in one.records for one in results) for one in results for name in one.records}
    every = sorted(number, key=lambda name: (*(each.get(name, math.inf) for each in columns), -number[name], name))
    lead, more = findings(results)
    parts |= {
        "lead": lead, "findings": more, "best": overview(results, [*list(ranks)[:FIRST], *baselines], columns),
        "every": overview(results, every, columns), "against": against(results, every),
        "by_size": by_size(results), "first": str(min(FIRST, len(ranks))), "known": "",
        "pages": [f"- [{one.title}](benchmark/{one.task.name}.md): {one.task.given['title']}" for one in results],
    }  # fmt: skip
    return written(__file__, parts)


# ---------------------------------------------------------------------- figure
def picture(results: Sequence[Results], path: Path) -> None:
    """The lead of each algorithm over Local, median over sources, and beside its name its bytes."""
    names = [name for name in {one for each in results for one in each.records} if name != "Local"]
    found = {name: gaps_to(results, name, "Local") for name in names}
    leads = {name: 100 * median_over_sources(g) for name, g in found.items() if len(g) >= MOST * len(results)}
    shown = sorted(leads, key=lambda name: leads[name])
    held = {name: [one for one in results if name in one.standings] for name in shown}
    figure, axes = panels(["all"], width=6.0, height=0.6 + 0.22 * len(shown), columns=1)
    panel = axes["all"]
    panel.set_title("")
    panel.plot([leads[name] for name in shown], range(len(shown)), "o", color="black", markersize=4)
    panel.axvline(0, color="grey", linestyle=":")
    labels = [f"{name}, {_times_fedavg(held[name], name, 'megabytes')} x" for name in shown]
    panel.set_yticks(range(len(shown)), labels, fontsize=8)
    panel.grid(axis="y", alpha=0.3)
    panel.set_xlabel("points above Local, median over sources", fontsize=8)
    panel.tick_params(axis="x", labelsize=8)
    save(figure, path)


def pictures(folder: Path) -> None:
    """The figures of the leaderboard, into a folder; none without records."""
    results = all_results()
    if not results:
        return
    picture(results, folder / "leaderboard.png")
    save(critical_difference_diagram(*ranks_of(ranked_tasks(results))), folder / DIAGRAM)


def main() -> None:
    """Write the pages and the figures."""
    results = all_results()
    PAGE.write_text(page(results))
    everybody = {name for one in results for name in one.records}
    PAGES.mkdir(exist_ok=True)
    for one in results:
        (PAGES / f"{one.task.name}.md").write_text(task_page(one, everybody))
    pictures(PAGE.parent)
    sys.stdout.write(f"{PAGE.relative_to(ROOT)} and {len(results)} pages of tasks\n")


if __name__ == "__main__":
    main()
