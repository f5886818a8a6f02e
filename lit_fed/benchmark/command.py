"""`lit-fed benchmark`: algorithms on tasks under one protocol, beside all stored records."""

from __future__ import annotations

import itertools
import json
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from jsonargparse import Namespace

from lit_fed.benchmark import comparison
from lit_fed.benchmark.comparison import Row, paired, ranked_score, row_of, share_worse
from lit_fed.benchmark.measures import FEW
from lit_fed.benchmark.method import is_own, method_of
from lit_fed.benchmark.protocol import CUTS, LEARNING_RATES, TRIALS
from lit_fed.benchmark.ranks import average_ranks
from lit_fed.benchmark.records import (
    POPULATIONS,
    Record,
    checked_records,
    problems,
    read_records,
    records_file,
    stored_folder,
    with_clients,
)
from lit_fed.benchmark.runs import Entry, Fit, Work, entry_of, make_records, make_run
from lit_fed.benchmark.task import Task, read_task, suites, task_files
from lit_fed.command_line.classes import check_modules
from lit_fed.command_line.parser import FederatedParser, command_parser
from lit_fed.command_line.table_formats import ResultTable, TableFormat, print_tables
from lit_fed.errors import ConfigError, notice
from lit_fed.metrics.paired import holm
from lit_fed.pictures.critical_difference import critical_difference_diagram
from lit_fed.pictures.style import UNDATED, save
from lit_fed.system.folder_lock import FolderLock
from lit_fed.system.machine import require_cores
from lit_fed.system.names import lies_below
from lit_fed.system.trials import EXECUTOR
from lit_fed.training.output import print_line, print_rows

__all__ = ["benchmark_parser", "run_benchmark"]

ABOUT = (
    f"{TRIALS} trials on validation samples choose the learning rate and settings, then {CUTS} cuts are run and tested "
    "once. Actions: list, run, show, compare A B, submit-check RECORD."
)

HEADINGS = (
    "algorithm", "mean", "± cuts", "unw.", "decile", "worst", "uns. 0", "10", "100 %", "<Local", "<FedAvg+", "ECE",
    "rounds*", "MB*", "MB", "CPU s", "peak",
)  # fmt: skip

CAPTION = (
    "Scores x 100 on test samples: mean by samples and its deviation over cuts, unweighted mean, worst decile and "
    "worst of seen clients; unseen clients with 0, 10 and 100 % of their training samples; clients worse than under "
    "Local and FedAvgPlus; calibration error. *: until the validation score of FedAvg. MB, CPU s and peak MB of a run."
)


def benchmark_parser() -> FederatedParser:
    """The arguments of the command."""
    parser = command_parser("benchmark", "ACTION [options]", ABOUT)
    parser.add_argument("action", type=Literal["list", "run", "show", "compare", "submit-check"], help="see above.")
    parser.add_argument("names", nargs="*", type=str, metavar="NAME", help="algorithms to compare, or files to check.")
    parser.add_argument(
        "--tasks", nargs="+", type=str, default=["small"], help="suites, tasks, or YAML files of your own tasks."
    )
    parser.add_argument(
        "--algorithms",
        nargs="+",
        type=str,
        default=[],
        help="names, or paths such as my_file.MyAlgorithm; FedEM+serving also tunes the settings of --model.serving.",
    )
    parser.add_argument("--data.root", type=str, default="data", help="folder of the data sets.")
    parser.add_argument("--output", type=str, default="runs/benchmark", help="folder of new records.")
    parser.add_argument("--again", action="store_true", help="also run algorithms that have a record, and compare.")
    parser.add_argument(
        "--trust", type=str, action="append", default=[], metavar="MODULE",
        help="module whose algorithms are imported although a record alone names them. May be given often.",
    )  # fmt: skip
    parser.add_argument(
        "--format", type=TableFormat, default="text", help="format of the tables of compare, for papers."
    )
    parser.add_argument(
        "--diagram",
        type=str | None,
        metavar="FILE",
        help="of compare: critical-difference diagram, .pdf, .svg or .png.",
    )
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each on a core of its own.")
    parser.add_argument("--executor", type=str | None, metavar="PATH", help=EXECUTOR)
    return parser


def run_benchmark(arguments: list[str], fit: Fit) -> None:
    """Run the command.

    Args:
        arguments: those after `benchmark`.
        fit: runs `fit` without a test.

    Raises:
        ConfigError: naming what is refused.
        SystemExit: with status 1, if a checked record breaks the protocol.
    """
    given = benchmark_parser().parse_args(arguments)
    if given.names and given.action not in ("compare", "submit-check"):
        raise ConfigError(f"benchmark {given.action} takes no {given.names[0]!r}; give --tasks or --algorithms")
    if given.again and given.action != "run":
        raise ConfigError(f"benchmark {given.action} takes no --again; give it to benchmark run")
    check_modules(given.trust)
    tasks = [] if given.action == "submit-check" and given.tasks == ["small"] else _tasks(given.tasks)
    actions = {"list": _list, "run": _run, "show": _show, "compare": _compare, "submit-check": _check}
    actions[given.action](given, tasks, fit)


def _tasks(names: Sequence[str]) -> list[Task]:
    groups = suites()
    each = [one for name in names for one in groups.get(name, [name])]
    return [read_task(name) for name in dict.fromkeys(each)]


def _list(given: Namespace, tasks: list[Task], fit: Fit) -> None:
    rows = []
    for task in map(read_task, task_files()):
        known = len(read_records(records_file(stored_folder(), task.name)))
        cut = next(iter(task.known_clients().values()), None)
        clients, network = 0 if cut is None else len(cut.digests), task.given["network"]["class_path"]
        cells = (task.given.get("title", ""), clients, network, task.metric, task.rounds, len(task.cuts), known)
        rows.append([task.name, *map(str, cells)])
    print_rows("Tasks", ["task", "what", "clients", "network", "metric", "rounds", "cuts", "records"], rows, words=2)
    print_line(f"learning rates of all algorithms: {', '.join(map(str, LEARNING_RATES))}; {TRIALS} trials")


def _distrusted(given: Namespace, name: str) -> str | None:
    """Why an algorithm that a record names is not imported; None if it is of lit_fed, named or trusted by the user."""
    known = is_own(name) or name in given.algorithms
    if known or any(lies_below(name, one) for one in given.trust):
        return None
    module = name.rpartition(".")[0] or name
    return f"importing {name} may run any code; if you know it, add --trust {module}"


def _points(given: Namespace, name: str) -> list[dict[str, Any]] | None:
    """The points of an algorithm's trials; None if it cannot or may not be imported here."""
    if why := _distrusted(given, name):
        notice(f"the trials of the record of {name} are not checked: {why}")
        return None
    try:
        return json.loads(json.dumps(method_of(name).points))  # type: ignore[no-any-return]
    except ConfigError:
        return None


def _records(given: Namespace, task: Task) -> dict[str, Record]:
    return checked_records(task, [stored_folder(), Path(given.output)], partial(_points, given))


# ---------------------------------------------------------------------- actions
def _run(given: Namespace, tasks: list[Task], fit: Fit) -> None:
    if not given.algorithms:
        raise ConfigError("benchmark run needs --algorithms; give names, or paths such as my_file.MyAlgorithm")
    if given.jobs < 1:
        raise ConfigError(f"--jobs is {given.jobs}; give a whole number >= 1")
    if given.executor is None:
        require_cores(given.jobs, "--jobs")
    methods = [method_of(name) for name in given.algorithms]
    output = Path(given.output)
    entries = [entry_of(task, one) for task in tasks for one in methods]
    held = {task.name: _records(given, task) for task in tasks}
    stored = [(one, held[one.task.name].get(one.name)) for one in entries]
    known = {one: record for one, record in stored if record is not None and not _is_missing(one, record)}
    missing = [one for one in entries if given.again or one not in known]
    with FolderLock(output, f"--output {output}", "wait until it ends, or give another folder"):
        made = make_records(missing, Path(given.data.root).absolute(), output, given.jobs, fit, given.executor)
    against = next((one.name for one in (*missing, *entries)), None)
    now = {task.name: _records(given, task) for task in tasks}
    for task in tasks:
        _table(task, now[task.name], against)
    for entry, record in known.items():
        if not given.again:
            said = "the stored record is shown, nothing ran; --again runs it"
        elif entry in made:
            differs = next(_changes(record, now[entry.task.name][entry.name]), None)
            said = f"run again, it differs from the record: {differs}" if differs else "run again, it equals the record"
        else:
            continue
        print_line(f"{entry.name} on {entry.task.name}: {said}")
    print_line(f"records: {output}")


def _changes(record: Record, again: Record) -> Iterator[str]:
    """Differences between a record and a new one of the same algorithm."""
    scores = zip(record["tuning"]["scores"], again["tuning"]["scores"], strict=True)
    trials = (comparison.other_score(trial, *pair) for trial, pair in enumerate(scores))
    cuts = map(comparison.other_results, record["runs"], again["runs"])
    yield from filter(None, (*trials, *cuts))


def _is_missing(entry: Entry, record: Record | None) -> bool:
    """Whether there is no record, or one of another version of a user-defined algorithm."""
    return record is None or ("." in entry.name and record["source"] != entry.source)


def _show(given: Namespace, tasks: list[Task], fit: Fit) -> None:
    for task in tasks:
        _table(task, _records(given, task), None)


def _table(task: Task, records: dict[str, Record], against: str | None) -> None:
    """Print the records of a task; with paired differences to one of them, if it is named."""
    baselines = [records.get(name) for name in ("Local", "FedAvgPlus", "FedAvg")]
    rows = []
    for name, record in sorted(records.items(), key=lambda one: -row_of(one[1]).mean):
        row = row_of(record)
        worse = [share_worse(record, one) if one is not record else math.nan for one in baselines[:2]]
        cells = _cells(row, worse, comparison.cost_to_match(record, baselines[2]))
        if against in records:
            found = paired(records[against], record) if name != against else None
            cells.append("" if found is None else str(found))
        rows.append([name, *cells])
    headings = [*HEADINGS, *([f"{against} - it, 95 %"] if against in records else [])]
    print_rows(f"{task.name}: {task.metric}, {task.rounds} rounds", headings, rows, caption=CAPTION, width=190)


def _cells(row: Row, worse: Sequence[float], cost: tuple[float, float]) -> list[str]:
    def number(value: float, digits: int = 1) -> str:
        return "" if math.isnan(value) else "never" if math.isinf(value) else f"{value:.{digits}f}"

    scores = [row.mean, row.spread, row.unweighted, row.decile, row.worst, *row.unseen, *worse, row.ece]
    cells = [number(100 * one) for one in scores]
    costs = zip((*cost, row.megabytes, row.seconds, row.memory), (0, 2, 2, 1, 0), strict=True)
    cells += [number(value, digits) for value, digits in costs]
    if row.diverged:
        cells[0] += f" ({row.diverged} cuts diverged)"
    return cells


def _compare(given: Namespace, tasks: list[Task], fit: Fit) -> None:
    names = given.names
    if len(set(names)) < 2 or len(set(names)) < len(names):
        raise ConfigError("benchmark compare takes names of different algorithms, such as `compare FedEM FedAvgPlus`")
    found = {task: records for task in tasks if (records := _records(given, task)).keys() >= set(names)}
    if not found:
        raise ConfigError(f"no task has records of {' and '.join(names)}; make them by `benchmark run`")
    sources: dict[str, list[dict[str, float]]] = {}
    for task, records in found.items():
        sources.setdefault(task.source, []).append({name: ranked_score(records[name]) for name in names})
    if given.diagram is not None and Path(given.diagram).suffix not in UNDATED:
        raise ConfigError(f"--diagram is {given.diagram}; give a file that ends in {', '.join(UNDATED)}")
    if given.diagram is not None and (len(names) < 3 or len(sources) < 2):
        raise ConfigError("--diagram needs three algorithms or more, and tasks of two sources or more; leave it out")
    print_tables([_means(found, names), *(_pairs(found, names, one) for one in POPULATIONS)], given.format)
    if given.diagram is not None:
        save(critical_difference_diagram(*average_ranks(sources)), Path(given.diagram))


def _means(found: Mapping[Task, dict[str, Record]], names: Sequence[str]) -> ResultTable:
    """The score of seen clients on each task."""
    rows = []
    for task, records in found.items():
        each = [row_of(records[name]) for name in names]
        cells = [
            f"{100 * one.mean:.1f}" + ("" if math.isnan(one.spread) else f" ± {100 * one.spread:.1f}") for one in each
        ]
        rows.append([task.name, task.metric, str(len(task.cuts)), *cells])
    seeds = max(len(task.cuts) for task in found)
    about = f"Scores x 100 of seen clients, mean ± deviation over cuts; training seeds 1 to {seeds}, one for each cut."
    return ResultTable("Scores", ["task", "metric", "cuts", *names], rows, about, words=2)


def _pairs(found: Mapping[Task, dict[str, Record]], names: Sequence[str], population: str) -> ResultTable:
    """All pairs of algorithms on all tasks, for a population."""
    rows, p = [], []
    for task, records in found.items():
        for one, other in itertools.combinations(names, 2):
            gap = paired(records[one], records[other], population)
            if gap is None:
                continue
            numbers = [f"{100 * value:+.2f}" for value in (gap.mean, gap.low, gap.high)]
            worse = f"{100 * share_worse(records[one], records[other], population):.0f}"
            rows.append([task.name, one, other, *numbers, worse])
            p.append(gap.p)
    whom = (
        "seen clients" if population == "seen" else f"unseen clients with {population[7:]} % of their training samples"
    )
    about = (
        f"Differences x 100 of {whom}, with 95 % intervals over clients, crossed with cuts; tuning is not covered. "
        f"Pooled scores of fewer than {FEW} clients have intervals over persons. p: corrected for the {len(p)} "
        "comparisons of this table (Holm)."
    )
    headings = ["task", "algorithm", "other", "difference", "from", "to", "% of clients worse", "p"]
    rows = [[*row, f"{one:.3f}"] for row, one in zip(rows, holm(p), strict=True)]
    return ResultTable(f"Pairs, {population.replace('_', ' ')}", headings, rows, about, words=3)


def _check(given: Namespace, tasks: list[Task], fit: Fit) -> None:
    if not given.names:
        raise ConfigError("benchmark submit-check needs a file of records; give the one that `benchmark run` made")
    own = {task.name: task for task in tasks}
    wrong = 0
    for path in map(Path, given.names):
        records = read_records(path)
        if not records:
            raise ConfigError(f"{path}: there is no record; give a file that `benchmark run` made")
        for record in records:
            found = list(_wrong(given, record, own, fit))
            wrong += bool(found)
            kept = "keeps to the protocol; one cut and one trial, run again, have its results"
            said = "is refused: " + "; ".join(found) if found else kept
            print_line(f"{record['task']}: the record of {record['algorithm']} {said}")
    if wrong:
        raise SystemExit(1)


def _wrong(given: Namespace, record: Record, own: dict[str, Task], fit: Fit) -> Iterator[str]:
    """What is wrong with a record; of one that keeps to the protocol, differences to the same runs here."""
    name, task = record["algorithm"], own.get(record["task"])
    if task is None and record["task"] not in task_files():
        yield f"{record['task']} is no task of lit_fed; give its file by --tasks"
        return
    if why := _distrusted(given, name):
        yield why
        return
    task = task or read_task(record["task"])
    entry = entry_of(task, method_of(name))
    found = list(problems(record, task, _points(given, entry.name)))
    found += ["it is of another version of the algorithm's file"] if not found and _is_missing(entry, record) else []
    yield from found or _differences(record, entry, fit, Path(given.data.root))


def _differences(record: Record, entry: Entry, fit: Fit, root: Path) -> Iterator[str]:
    """Differences in one cut and one trial, drawn by chance and run again."""
    run = secrets.choice(record["runs"])
    again = make_run(fit, root, Work(entry, None, json.dumps(record["chosen"]), run["cut"]))
    one, two = (with_clients(record | {"runs": [each]}, entry.task)["runs"][0] for each in (run, again))
    trial = secrets.randbelow(len(entry.points))
    score = make_run(fit, root, Work(entry, trial, entry.points[trial], 0)).get("score")
    said = comparison.other_score(trial, record["tuning"]["scores"][trial], score)
    yield from filter(None, (comparison.other_results(one, two), said))
