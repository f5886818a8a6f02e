"""Records: one compressed JSON Lines file for each task, by algorithm, and the check that they keep to the protocol."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lit_fed.benchmark.cut import CutClients, samples_digest
from lit_fed.benchmark.measures import ADAPTED_ON
from lit_fed.benchmark.protocol import PROTOCOL, chosen
from lit_fed.benchmark.task import Task
from lit_fed.errors import ConfigError, notice
from lit_fed.system.files import write_atomically

__all__ = [
    "CLOSE", "Record", "checked_records", "problems", "read_records", "read_refusals", "records_file", "stored_folder",
    "with_clients", "write_record", "write_refusal",
]  # fmt: skip

Record = dict[str, Any]

FIELDS = {
    "algorithm", "task", "metric", "score", "protocol", "source", "versions", "tuning", "chosen", "arguments", "runs",
}  # fmt: skip

OF_RUN = {
    "cut", "samples", "round", "score", "cpu_seconds", "bytes_up", "bytes_down", "peak_bytes", "curve", "test_reads",
    "test",
}  # fmt: skip
"""Columns of a run that did not diverge."""

REFUSALS = "refused.json"
"""File of the reasons why algorithms have no record, beside the records."""

POPULATIONS = {"seen", *(f"unseen_{percent}" for percent in ADAPTED_ON)}

CLOSE = 0.01
"""Difference of means that another processor may make: rounding changes a prediction here and there."""


def stored_folder() -> Path:
    """Folder of the records that come with lit_fed: of a checkout, or of an installed package."""
    checkout = Path(__file__).resolve().parents[2] / "docs/benchmark"
    return checkout if checkout.is_dir() else Path(__file__).with_name("records")


def records_file(folder: Path, task: str) -> Path:
    """The file with the records of a task in a folder."""
    return folder / f"{task}.jsonl.gz"


def read_records(path: Path) -> list[Record]:
    """The records of a file; none without one.

    Raises:
        ConfigError: if it cannot be read.
    """
    if not path.is_file():
        return []
    try:
        found = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ConfigError(f"{path}: no file of records ({error}); give one of `benchmark run`") from error
    if not all(isinstance(one, dict) and {"algorithm", "task", "runs"} <= one.keys() for one in found):
        raise ConfigError(f"{path}: a line is no record; give a file that `lit-fed benchmark run` made")
    return found


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
    return json.loads(path.read_text()) if path.is_file() else {}


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
    if record.keys() != FIELDS or record["protocol"] != PROTOCOL:
        yield f"it is no record of protocol {PROTOCOL}"
        return
    if (record["metric"], record["score"]) != (task.metric, task.score):
        yield f"it is judged by {record['metric']} ({record['score']}), the task by {task.metric} ({task.score})"
    tuning, runs = record["tuning"], record["runs"]
    if points is not None and tuning["points"] != list(points):
        yield f"its {len(tuning['points'])} trials are not the {len(points)} of the protocol"
    if (tuning["split"], tuning["cut"]) != ("val", 0) or len(tuning["scores"]) != len(tuning["points"]):
        yield "its trials were not all judged by validation samples of cut 0"
    if record["chosen"] != chosen(tuning["points"], tuning["scores"]):
        yield "its final point is not the best of its trials by validation samples"
    if [run["cut"] for run in runs] != list(task.cuts):
        yield f"its runs are of cuts {[run['cut'] for run in runs]}, the task has {list(task.cuts)}"
        return
    yield from _problems_of_score(record)
    wanted = task.arguments(record["algorithm"], record["chosen"], task.cuts[0])
    if record["arguments"] != wanted:
        yield f"{_first_difference(wanted, record['arguments'])} differs from the task"
    known = task.known_clients()
    for run in runs:
        for wrong in _problems_of_run(run, task, known.get(run["cut"], CutClients({}, {}, []))):
            yield f"cut {run['cut']}: {wrong}"


def _problems_of_score(record: Record) -> Iterator[str]:
    """The trial of the chosen point and the run of cut 0 are the same training: they have one validation score."""
    tuning, first = record["tuning"], record["runs"][0]
    pairs = zip(tuning["points"], tuning["scores"], strict=False)
    scores = [score for point, score in pairs if point == record["chosen"]]
    if "score" in first and not any(score is not None and abs(score - first["score"]) <= CLOSE for score in scores):
        yield f"its run of cut 0 has {first['score']} on validation samples, and the same trial {scores}"


def _problems_of_run(run: dict[str, Any], task: Task, clients: CutClients) -> Iterator[str]:
    if run["samples"] != samples_digest(clients.digests):
        yield "its clients or their samples are not those of the task"
    if "diverged" in run:
        return
    if run.keys() != OF_RUN or run["test"].keys() != POPULATIONS:
        yield "it lacks results"
        return
    if run["round"] != task.rounds or [run["round"], run["score"]] not in [one[:2] for one in run["curve"][-1:]]:
        yield f"it is judged after round {run['round']}, not after the last one, {task.rounds}"
    if run["test_reads"] != 1:
        yield f"its test samples were read {run['test_reads']} times"
    if any(len(scores["score"]) != len(clients.of(population)) for population, scores in run["test"].items()):
        yield "it lacks results of some clients"


def _first_difference(wanted: Any, given: Any, place: str = "") -> str:
    """Dotted name of the first entry that differs."""
    if isinstance(wanted, dict) and isinstance(given, dict):
        for name in sorted(wanted.keys() | given.keys()):
            if wanted.get(name) != given.get(name):
                return _first_difference(wanted.get(name), given.get(name), f"{place}.{name}" if place else name)
    return place
