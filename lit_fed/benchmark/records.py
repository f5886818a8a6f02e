"""Records: one compressed JSON Lines file for each task, by algorithm, and the check that they keep to the protocol."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lit_fed.benchmark.cut import CutClients, samples_digest
from lit_fed.benchmark.measures import ADAPTED_ON, FEW
from lit_fed.benchmark.protocol import PROTOCOL, chosen
from lit_fed.benchmark.task import Task
from lit_fed.errors import notice
from lit_fed.system import readers
from lit_fed.system.files import write_atomically
from lit_fed.system.foreign_files import json_lines, read_file
from lit_fed.system.readers import FormError, keyed, list_of, number, optional, plain, text, tuple_of, whole

__all__ = [
    "CLOSE", "POPULATIONS", "Record", "checked_records", "problems", "read_records", "read_refusals", "records_file",
    "stored_folder", "with_clients", "write_record", "write_refusal",
]  # fmt: skip

Record = dict[str, Any]

MOST = 10**6
"""Upper limit of clients, and of runs and rounds of one."""

SCORE = optional(number(-sys.float_info.max, sys.float_info.max))

SCORES = list_of(SCORE, MOST)

POINT = readers.record({"lr": number()}, others=True)

NAMED = readers.record({"algorithm": text(200, r"[\w.+]+"), "task": text(200)}, others=True)
"""Reader of what tells records apart."""

DIVERGED = readers.record({"cut": whole(most=MOST), "samples": text(64), "diverged": plain()})

SCORES_OF_TEST = readers.record(
    {"score": SCORES, "ece": SCORE, "pooled": SCORE, "influence": SCORES}, may_miss=("influence",)
)

RUN = readers.record(
    {
        "cut": whole(most=MOST), "samples": text(64), "round": whole(), "score": SCORE,
        "cpu_seconds": number(), "bytes_up": number(), "bytes_down": number(), "peak_bytes": number(),
        "curve": list_of(tuple_of(whole(), SCORE, number()), MOST), "test_reads": whole(),
        "test": keyed(text(64), SCORES_OF_TEST, 10),
    }
)  # fmt: skip

RECORD = readers.record(
    {
        "algorithm": text(200), "task": text(200), "metric": text(64), "score": text(64), "protocol": whole(),
        "source": text(64), "versions": keyed(text(64), text(64), 10), "chosen": POINT, "arguments": plain(),
        "tuning": readers.record(
            {
                "cut": whole(), "split": text(64), "points": list_of(POINT, MOST), "scores": SCORES,
                "cpu_seconds": number(),
            }
        ),
        "runs": list_of(lambda one, place: _form_of_run(one)(one, place), MOST, least=1),
    }
)  # fmt: skip
"""Reader of a record of this protocol."""

REFUSALS = "refused.json"
"""File of the reasons why algorithms have no record, beside the records."""

POPULATIONS = ("seen", *(f"unseen_{percent}" for percent in ADAPTED_ON))

CLOSE = 0.01
"""Difference of means that another processor may make: rounding changes a prediction here and there."""


def _form_of_run(run: Any) -> readers.Reader:
    return DIVERGED if isinstance(run, dict) and "diverged" in run else RUN


def stored_folder() -> Path:
    """Folder of the records that come with lit_fed: of a checkout, or of an installed package."""
    checkout = Path(__file__).resolve().parents[2] / "docs/benchmark"
    return checkout if checkout.is_dir() else Path(__file__).with_name("records")


def records_file(folder: Path, task: str) -> Path:
    """The file with the records of a task in a folder."""
    return folder / f"{task}.jsonl.gz"


def read_records(path: Path) -> list[Record]:
    """The records of a file, of which `problems` checks the form; none without one.

    Raises:
        ConfigError: naming a file that cannot be read, and the line that is no record.
    """
    fix = "give a file that `lit-fed benchmark run` made"
    return read_file(path, json_lines, list_of(NAMED, MOST), fix) if path.is_file() else []


def write_record(folder: Path, record: Record) -> None:
    """Add a record to the file of its task, in place of an older one of the algorithm."""
    path = records_file(folder, record["task"])
    others = {one["algorithm"]: one for one in read_records(path)} | {record["algorithm"]: record}
    lines = [json.dumps(others[name], sort_keys=True, separators=(",", ":")) for name in sorted(others)]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, gzip.compress("\n".join(lines).encode(), mtime=0))  # equal records, equal bytes


def read_refusals(folder: Path) -> dict[str, dict[str, str]]:
    """Why algorithms have no record, by task and algorithm."""
    path = folder / REFUSALS
    form = keyed(text(200), keyed(text(200), plain(), MOST), MOST)
    return read_file(path, json.loads, form, "delete it") if path.is_file() else {}


def write_refusal(folder: Path, task: str, algorithm: str, reason: str) -> None:
    """Note why an algorithm has no record on a task."""
    known = read_refusals(folder)
    known.setdefault(task, {})[algorithm] = reason
    write_atomically(folder / REFUSALS, json.dumps(known, indent=1, sort_keys=True) + "\n")


def checked_records(task: Task, folders: Sequence[Path], points: Any) -> dict[str, Record]:
    """The records of a task by algorithm, those of later folders first; one that breaks the protocol is left out.

    `points` gives the points of the trials of an algorithm by its name, None if it cannot be imported.
    """
    found: dict[str, Record] = {}
    for path in dict.fromkeys(records_file(folder.resolve(), task.name) for folder in folders):
        for record in read_records(path):
            wrong = next(problems(record, task, points(record["algorithm"])), None)
            if wrong is None:
                found[record["algorithm"]] = with_clients(record, task)
            else:
                notice(f"{path}: the record of {record['algorithm']} is left out: {wrong}")
    return dict(sorted(found.items()))


def with_clients(record: Record, task: Task) -> Record:
    """A record with its clients' names and numbers of test samples, which the task's file stores once."""
    known, runs = task.known_clients(), []
    for run in record["runs"]:
        test = {}
        for population, scores in run.get("test", {}).items():
            names = known[run["cut"]].of(population)
            samples = [known[run["cut"]].test_samples[name] for name in names]
            test[population] = scores | {"clients": names, "samples": samples}
        runs.append(run | {"test": test} if test else run)
    return record | {"runs": runs}


def problems(record: Record, task: Task, points: Sequence[Any] | None) -> Iterator[str]:
    """Breaches of the protocol in a record; without `points`, those of its trials are not checked."""
    if record.get("protocol") != PROTOCOL:
        yield f"it is no record of protocol {PROTOCOL}"
        return
    try:
        RECORD(record, "it")
    except FormError as error:
        yield str(error)
        return
    if (record["metric"], record["score"]) != (task.metric, task.score):
        yield f"it is judged by {record['metric']} ({record['score']}), the task by {task.metric} ({task.score})"
    yield from _problems_of_tuning(record["tuning"], record["chosen"], points)
    runs = record["runs"]
    if [run["cut"] for run in runs] != list(task.cuts):
        yield f"its runs are of cuts {[run['cut'] for run in runs]}, the task has {list(task.cuts)}"
        return
    yield from _problems_of_score(record)
    wanted = task.arguments(record["algorithm"], record["chosen"], task.cuts[0])
    if record["arguments"] != wanted:
        yield f"{_first_difference(wanted, record['arguments'])} differs from the task"
    known = task.known_clients()
    for run in runs:
        for wrong in _problems_of_run(run, task, known.get(run["cut"], CutClients({}, {}, {}, []))):
            yield f"cut {run['cut']}: {wrong}"


def _problems_of_tuning(tuning: dict[str, Any], point: Any, points: Sequence[Any] | None) -> Iterator[str]:
    if points is not None and tuning["points"] != list(points):
        yield f"its {len(tuning['points'])} trials are not the {len(points)} of the protocol"
    if (tuning["split"], tuning["cut"]) != ("val", 0) or len(tuning["scores"]) != len(tuning["points"]):
        yield "its trials were not all judged by validation samples of cut 0"
    elif point != chosen(tuning["points"], tuning["scores"]):
        yield "its final point is not the best of its trials by validation samples"


def _problems_of_score(record: Record) -> Iterator[str]:
    """The trial of the chosen point and the run of cut 0 are the same training: they have one validation score."""
    tuning, first = record["tuning"], record["runs"][0]
    pairs = zip(tuning["points"], tuning["scores"], strict=False)
    scores = [score for point, score in pairs if point == record["chosen"]]
    again = first.get("score")  # None: diverged, or of one class
    if again is not None and not any(score is not None and abs(score - again) <= CLOSE for score in scores):
        yield f"its run of cut 0 has {again} on validation samples, and the same trial {scores}"


def _problems_of_run(run: dict[str, Any], task: Task, clients: CutClients) -> Iterator[str]:
    if run["samples"] != samples_digest(clients.digests):
        yield "its clients or their samples are not those of the task"
    if "diverged" in run:
        return
    if run["test"].keys() != set(POPULATIONS):
        yield "it lacks results"
        return
    if run["round"] != task.rounds or [run["round"], run["score"]] not in [one[:2] for one in run["curve"][-1:]]:
        yield f"it is judged after round {run['round']}, not after the last one, {task.rounds}"
    if run["test_reads"] != 1:
        yield f"its test samples were read {run['test_reads']} times"
    for population, scores in run["test"].items():
        names = clients.of(population)
        units = len(names) if len(names) >= FEW else sum(clients.test_persons[name] for name in names)
        is_short = task.score == "pooled" and len(scores.get("influence", ())) != units
        if is_short or len(scores["score"]) != len(names):
            yield "it lacks results of some clients"
            return


def _first_difference(wanted: Any, given: Any, place: str = "") -> str:
    """Dotted name of the first entry that differs."""
    if isinstance(wanted, dict) and isinstance(given, dict):
        for name in sorted(wanted.keys() | given.keys()):
            if wanted.get(name) != given.get(name):
                return _first_difference(wanted.get(name), given.get(name), f"{place}.{name}" if place else name)
    return place
