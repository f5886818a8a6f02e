"""The runs of a sweep, several at a time: unfinished ones first, then new points."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lit_fed.callbacks.progress import time_left
from lit_fed.command_line.sweeping.folder import SweepFolder
from lit_fed.command_line.sweeping.results import Result, result_of, say, short_names, spread
from lit_fed.command_line.sweeping.search import Search
from lit_fed.command_line.sweeping.sweep_file import Point, Sweep
from lit_fed.command_line.sweeping.workers import Worker, next_done
from lit_fed.system.machine import cores

__all__ = ["Execution", "run_all"]


class SeededPoint(NamedTuple):
    """One seed of a point."""

    number: int
    seed: int | None


class Execution:
    """Which runs are to be made, and what came out.

    Args:
        sweep: what is searched.
        search: proposes points.
        folder: of the runs.
        seeds: of each point; None leaves the seed to the command.
        total: points that there will be.
    """

    def __init__(
        self, sweep: Sweep, search: Search, folder: SweepFolder, seeds: Sequence[int] | None, total: int
    ) -> None:
        self.sweep, self.search, self.folder, self.total = sweep, search, folder, total
        self.seeds: Sequence[int | None] = seeds or [None]
        self.points: dict[int, Point] = search.asked()
        self.results: list[Result] = []
        self.errors: dict[int, str] = {}
        self.waiting: deque[SeededPoint] = deque()
        self.runs_done = self.runs_total = 0
        self._started = time.monotonic()
        for number in list(self.points):
            self._enter(number)
        self.runs_total = len(self.waiting) + len(self.seeds) * max(0, total - len(self.points))

    def _enter(self, number: int) -> None:
        """Queue the runs that a point lacks; one without any is measured."""
        missing = [SeededPoint(number, seed) for seed in self.seeds if not self.folder.is_done(number, seed)]
        self.waiting.extend(missing)
        if not missing:
            self._measure(number)

    def next_task(self) -> SeededPoint | None:
        """A run to be made now; None if there is none."""
        if not self.waiting and len(self.points) < self.total:
            number, point = self.search.ask()
            self.points[number] = point
            self._enter(number)
        return self.waiting.popleft() if self.waiting else None

    def arguments(self, task: SeededPoint) -> list[str]:
        """Command line of a run."""
        return [*self.sweep.arguments(self.points[task.number]), *self.folder.arguments(*task)]

    def done(self, task: SeededPoint, error: str | None) -> None:
        """Note that a run is over."""
        self.runs_done += 1
        if error is None and not self.folder.is_done(*task):
            error = f"it left no summary.json; see {self.folder.log(*task)}"
        if error is not None:
            self.errors[task.number] = error if task.seed is None else f"seed {task.seed}: {error}"
            self._report(task.number, f"failed: {self.errors[task.number]}")
        elif all(self.folder.is_done(task.number, seed) for seed in self.seeds):
            self._measure(task.number)

    def _measure(self, number: int) -> None:
        folders = [self.folder.run_folder(number, seed) for seed in self.seeds]
        result = result_of(self.sweep, number, self.points[number], folders)
        known = number in self.search.finished()
        if isinstance(result, str):
            self.errors[number] = result
            self._report(number, f"failed: {result}")
            return
        self.results.append(result)
        if not known:
            self.search.tell(number, sum(result.values) / len(result.values))
            self._report(number, f"{self.sweep.metric} {spread(result.values)}")

    def _report(self, number: int, text: str) -> None:
        """A line for a point that is over."""
        names = short_names(list(self.sweep.parameters))
        shown = ", ".join(f"{names[key]} {self.points[number][key]}" for key in names)
        over = len(self.results) + len(self.errors)
        left = time_left(self.runs_done, self.runs_total, time.monotonic() - self._started)
        say(f"{over}/{self.total}  point {number:03d}: {shown}: {text} ({left} left)")


def run_all(execution: Execution, jobs: int, run: Callable[[list[str]], Any]) -> dict[int, str]:
    """Make all runs; returns the errors of the points that failed.

    Args:
        execution: the runs.
        jobs: processes at a time.
        run: runs a command line; processes import it by its name.
    """
    known = cores()
    chosen = [known[number % len(known)] for number in range(min(jobs, execution.runs_total))]
    say(f"{len(execution.results)} of {execution.total} points are done; {len(chosen)} runs at a time")
    workers: list[Worker] = []
    try:
        workers += [Worker(core, run) for core in chosen]
        for worker in workers:
            _give(worker, execution)
        while any(worker.task is not None for worker in workers):
            for worker in next_done(workers):
                execution.done(*worker.result())
                if not worker.process.is_alive():
                    workers[workers.index(worker)] = worker = Worker(worker.core, run)
                _give(worker, execution)
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.stop()
    return execution.errors


def _give(worker: Worker, execution: Execution) -> None:
    task = execution.next_task()
    if task is not None:
        worker.start(task, execution.arguments(task), execution.folder.log(*task))
