"""Runs of the benchmark: tuning and final runs of each algorithm, several at a time, resumable after a kill."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jsonargparse import ArgumentParser

from lit_fed.benchmark.cut import Cut, forget_data
from lit_fed.benchmark.measures import ValidationCurve, rounded, scores_on_test
from lit_fed.benchmark.method import Method
from lit_fed.benchmark.protocol import PROTOCOL, chosen
from lit_fed.benchmark.records import (
    Record,
    read_records,
    records_file,
    stored_folder,
    write_record,
    write_refusal,
)
from lit_fed.benchmark.task import Task
from lit_fed.callbacks.defaults import keep_notices_out
from lit_fed.callbacks.divergence import Divergence
from lit_fed.callbacks.progress import time_left
from lit_fed.data.data_sets.base import DataSet
from lit_fed.errors import ConfigError, DivergedError, NotFiniteError
from lit_fed.system.discovery import import_named
from lit_fed.system.files import write_atomically
from lit_fed.system.foreign_files import read_file
from lit_fed.system.machine import forget_peak_memory, peak_memory
from lit_fed.system.readers import record
from lit_fed.system.trials import Outcome, Plan, executor_of, run_trials
from lit_fed.training.output import print_line

__all__ = ["Entry", "Work", "entry_of", "make_records", "make_run"]

Fit = Callable[[list[str]], Any]
"""Runs `fit` without a test, and returns the command line's object; other processes import it by its name."""


BESIDE = 0.3
"""CPU seconds of a run beside its training, on a small task."""


class Entry(NamedTuple):
    """A method on a task: what a record is made of."""

    task: Task
    name: str  # of the method
    points: tuple[str, ...]  # of the trials, as JSON: hashable
    source: str  # digest of the algorithm's file


class Work(NamedTuple):
    """One run."""

    entry: Entry
    trial: int | None  # number of the trial; None: a final run
    point: str  # as JSON
    cut: int

    @property
    def arguments(self) -> dict[str, Any]:
        """Its configuration, without the place of the data."""
        return self.entry.task.arguments(self.entry.name, json.loads(self.point), self.cut)

    @property
    def said(self) -> str:
        """The run in words."""
        part = f"cut {self.cut}" if self.trial is None else f"trial {self.trial + 1} of {len(self.entry.points)}"
        return f"{self.entry.task.name} {self.entry.name} {part}"


def entry_of(task: Task, method: Method) -> Entry:
    """The entry of a method on a task."""
    return Entry(task, method.name, tuple(json.dumps(point) for point in method.points), method.source)


@lru_cache(maxsize=64)
def _cut_of(dataset: str) -> Cut:
    """The data of a run, from their configuration as JSON."""
    import_named(dataset)  # the process may be another one's
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--dataset", type=DataSet)
    try:
        given = parser.parse_object({"dataset": json.loads(dataset)})
    except Exception as error:  # jsonargparse's types differ between versions
        raise ConfigError(f"the task's data are refused: {error}") from error
    cut: Cut = parser.instantiate(given).dataset
    return cut


def make_records(
    entries: Sequence[Entry], root: Path, output: Path, jobs: int, fit: Fit, executor: str | None = None
) -> list[Entry]:
    """Make the records of algorithms on tasks, each as soon as its runs are made.

    What a run returns is kept in a file until its record is made, so that a killed benchmark repeats no finished run.
    Data lie in `root`, records in `output`; `jobs` runs are made at a time, by the named executor if there is one.

    Returns:
        Those that have a new record; runs of the others were refused.
    """
    forget_data()
    for task in {entry.task.path: entry.task for entry in entries}.values():
        for cut in task.cuts:
            given = task.at(root, task.arguments("FedAvg", {"lr": 0.1}, cut))
            held = _cut_of(json.dumps(given["data"]["dataset"]))
            held.prepare()
            task.check_samples(held)
    unfinished = Unfinished(output / "unfinished", entries)
    plans = [record_plan(entry, output, unfinished) for entry in entries]
    if unfinished.left:
        print_line(unfinished.announcement(jobs))
    with executor_of(jobs, executor) as runner:
        made = run_trials(
            plans, partial(make_run, fit, root), runner, jobs, find=unfinished.find, keep=unfinished.keep,
            failures=(Exception,),  # hours of other runs do not end with it
        )  # fmt: skip
    with contextlib.suppress(OSError):  # runs without a record stay
        unfinished.folder.rmdir()
    return [entry for entry in made if entry is not None]


class Unfinished:
    """Results of runs whose record is not made yet, a file for each."""

    def __init__(self, folder: Path, entries: Sequence[Entry]) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.made, self.began = 0, time.monotonic()
        self.of_entry = [
            (entry, len(entry.task.cuts) + sum(map(self._is_missing, trials_of(entry)))) for entry in entries
        ]
        self.left = sum(number for _, number in self.of_entry)

    def _is_missing(self, work: Work) -> bool:
        return not self.path(work).is_file()

    def announcement(self, jobs: int) -> str:
        """How many runs are made, and how long, by records of the same tasks."""
        seconds, unknown, known = 0.0, 0, dict[str, float | None]()
        for entry, number in self.of_entry:
            name = entry.task.name
            if name not in known:
                known[name] = usual_seconds([records_file(one, name) for one in (stored_folder(), self.folder.parent)])
            took = known[name]
            seconds, unknown = seconds + number * (took or 0), unknown + number * (took is None)
        minutes = f"about {math.ceil(seconds / 60 / jobs):,} minutes by stored records" if unknown < self.left else ""
        first = f"{unknown:,} of tasks without a record, whose time is known after the first" if unknown else ""
        return f"{self.left:,} runs, {jobs} at a time: {'; '.join(filter(None, (minutes, first)))}"

    def path(self, work: Work) -> Path:
        """The file of a run; another one if its algorithm's source has changed."""
        told = json.dumps([work.arguments, work.trial is None, work.entry.source], sort_keys=True)
        key = hashlib.sha256(told.encode()).hexdigest()[:16]
        return self.folder / f"{work.entry.task.name}-{work.entry.name}-{key}.json"

    def find(self, work: Work) -> dict[str, Any] | None:
        """The result of a run that an earlier process made."""
        if not self.path(work).is_file():
            return None
        self.left -= work.trial is None
        result: dict[str, Any] = read_file(self.path(work), json.loads, record({}, others=True), "delete it")
        return result

    def keep(self, work: Work, outcome: Outcome) -> None:
        """Keep and print the result of a run; one that was refused is made again the next time."""
        result, error = outcome
        said = None if error is not None else result.pop("said", None)
        if error is None:
            write_atomically(self.path(work), json.dumps(result))
            told = result.get("diverged") or "; ".join(filter(None, (f"validation {result['score']}", said)))
        self.made, self.left = self.made + 1, self.left - 1
        left = time_left(self.made, self.made + self.left, time.monotonic() - self.began)
        print_line(f"{work.said}: {told if error is None else error} ({self.left} runs, {left} left)")


def usual_seconds(files: Sequence[Path]) -> float | None:
    """Mean CPU time of a run in records of a task, with that of its start and its measurements; None without one."""
    made = [run for file in files for record in read_records(file) for run in record.get("runs", ())]
    took = [float(run["cpu_seconds"]) for run in made if "cpu_seconds" in run]
    return sum(took) / len(took) + BESIDE if took else None


def trials_of(entry: Entry) -> list[Work]:
    """The runs that choose the point of an algorithm."""
    return [Work(entry, number, point, 0) for number, point in enumerate(entry.points)]


def record_plan(entry: Entry, output: Path, unfinished: Unfinished) -> Plan:
    """Trials of an algorithm, final runs with the best point, and the record.

    Returns:
        The entry; None if it has no record.
    """
    trials = trials_of(entry)
    tried = yield trials
    scores = [None if one.error is not None else one.value.get("score") for one in tried]
    point = chosen([json.loads(one) for one in entry.points], scores)
    finals = [Work(entry, None, json.dumps(point), cut) for cut in entry.task.cuts if point is not None]
    unfinished.left -= len(entry.task.cuts) - len(finals)
    made = yield finals
    if not finals or any(one.error is not None for one in made):
        errors = [one.error for one in (*tried, *made) if one.error is not None]
        reason = [*errors, "every trial diverged"][0]
        write_refusal(output, entry.task.name, entry.name, reason)
        print_line(f"{entry.task.name} {entry.name}: no record: {reason}")
        return None
    write_record(output, record_of(finals, [one.value or {} for one in tried], [one.value for one in made]))
    for work in (*trials, *finals):
        unfinished.path(work).unlink(missing_ok=True)
    return entry


def record_of(finals: Sequence[Work], tried: Sequence[dict[str, Any]], made: Sequence[dict[str, Any]]) -> Record:
    """The record of an algorithm on a task.

    Args:
        finals: its final runs.
        tried: results of its trials, {} of a refused one.
        made: results of the final runs.
    """
    entry, versions = finals[0].entry, {name: version(name) for name in ("lit-fed", "torch", "numpy")}
    task = entry.task
    tuning = {
        "cut": 0, "split": "val", "points": [json.loads(point) for point in entry.points],
        "scores": [one.get("score") for one in tried],
        "cpu_seconds": round(sum(one.get("cpu_seconds", 0.0) for one in tried), 1),
    }  # fmt: skip
    return {
        "algorithm": entry.name, "task": task.name, "metric": task.metric, "score": task.score, "protocol": PROTOCOL,
        "source": entry.source, "versions": versions | {"python": platform.python_version()}, "tuning": tuning,
        "chosen": json.loads(finals[0].point), "runs": list(made),
        "arguments": finals[0].arguments,  # those of other cuts differ in their number and seed alone
    }  # fmt: skip


def make_run(fit: Fit, root: Path, work: Work) -> dict[str, Any]:
    """Make a run: a trial is judged on validation samples, a final run also on test samples, once.

    Returns:
        What the record holds of it; `diverged` with the reason, if a client returned NaN or infinity. `said` is not for
        the record: what `Divergence` found.
    """
    torch.set_num_threads(1)
    keep_notices_out()
    task = work.entry.task
    given = task.at(root, work.arguments)
    samples = task.check_samples(_cut_of(json.dumps(given["data"]["dataset"])))
    measured = {"metric": task.metric, "score": task.score, "points": 10 if work.trial is None else 1}
    curve = {"class_path": f"{ValidationCurve.__module__}.ValidationCurve", "init_args": measured}
    given["trainer"]["callbacks"] = [curve]
    result: dict[str, Any] = {"cut": work.cut, "samples": samples}
    forget_peak_memory()
    try:
        return result | _made(fit, given, task, for_test=work.trial is None)
    except (DivergedError, NotFiniteError) as error:
        return result | {"diverged": f"round {error.round_idx}: {re.sub(chr(10), ' ', str(error))}"}


def _made(fit: Fit, given: dict[str, Any], task: Task, *, for_test: bool) -> dict[str, Any]:
    """Fit and measure."""
    began = time.process_time()
    with _quiet():
        cli = fit(["fit", "--config", json.dumps(given)])
    spent = time.process_time() - began
    seen = next(one for one in cli.trainer.callbacks if isinstance(one, ValidationCurve))
    last, score, _ = seen.curve[-1]
    result = {"round": last, "score": score, "cpu_seconds": round(spent - seen.seconds, 3)}
    if found := next(one.found for one in cli.trainer.callbacks if isinstance(one, Divergence)):
        result["said"] = found
    if not for_test:
        return result
    result |= {"bytes_up": seen.bytes_up, "bytes_down": seen.bytes_down, "peak_bytes": peak_memory()}
    with _quiet():
        persons = cli.datamodule.dataset.persons if task.score == "pooled" else None
        scores = scores_on_test(cli.model, cli.datamodule, task.metric, persons)
    test = {name: rounded(one) for name, one in scores.items()}
    return result | {"curve": seen.curve, "test_reads": 1, "test": test}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        yield
