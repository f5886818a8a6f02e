"""Runs many jobs, such as command lines, in parallel: each process has its own core."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from lit_fed.system.machine import cores

__all__ = ["Job", "Outcome", "run_many"]

SECONDS_TO_STOP = 20.0
"""Time that a job has to end its round before it is killed."""


class Job(NamedTuple):
    """A call made by another process; it and its value must be picklable."""

    task: Any
    """Identifies the job; it stays in this process."""
    call: Callable[[], Any]
    log: Path | None = None
    """File that the job's output is appended to; None leaves it where it goes."""


class Outcome(NamedTuple):
    """The end of a job."""

    task: Any
    value: Any
    error: str | None
    """The last line of the error message if the job failed."""


def run_many(next_job: Callable[[], Job | None], done: Callable[[Outcome], None], processes: int) -> None:
    """Run jobs until none is left; an exception, such as Ctrl-C, stops the running ones.

    Processes are spawned once, each pinned to a core; jobs import what they need there. They end with this process,
    even if it is killed.

    Args:
        next_job: gives a job to start now, None if there is none; called again for each idle process after an outcome
            is handled.
        done: handles an outcome as soon as the job ends.
        processes: number of jobs at a time.
    """
    known, workers = cores(), list[_Worker]()
    try:
        workers += [_Worker(known[number % len(known)]) for number in range(processes)]
        for worker in workers:
            worker.start(next_job())
        while busy := {worker.connection: worker for worker in workers if worker.task is not None}:
            for ready in wait(list(busy)):
                worker = busy[ready]  # type: ignore[index]
                done(worker.outcome())
                if not worker.process.is_alive():
                    workers[workers.index(worker)] = _Worker(worker.core)
                for idle in workers:  # all idle ones: the outcome may have made jobs ready
                    if idle.task is None:
                        idle.start(next_job())
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.stop()


class _Worker:
    """A process that runs one job after another."""

    def __init__(self, core: int) -> None:
        self.core = core
        self.task: Any = None  # None while it is idle
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, core), name=f"core {core}")
        self.process.start()
        other.close()  # so that the end of the process ends the connection

    def start(self, job: Job | None) -> None:
        if job is not None:
            self.task = job.task
            self.connection.send((job.call, job.log))

    def outcome(self) -> Outcome:
        task, self.task = self.task, None
        try:
            return Outcome(task, *self.connection.recv())
        except EOFError:
            self.process.join()
            return Outcome(task, None, f"its process ended with status {self.process.exitcode}")

    def stop(self) -> None:
        self.process.join(SECONDS_TO_STOP)
        self.process.kill()
        self.process.join()


# ---------------------------------------------------------------------- in the process
def _serve(connection: Connection, core: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which stops its children
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            connection.send(_run(*connection.recv()))
        except (EOFError, KeyboardInterrupt, SystemExit):  # the last two: Lightning's answer to SIGTERM
            return


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run(call: Callable[[], Any], log: Path | None) -> tuple[Any, str | None]:
    with ExitStack() as stack:
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(log.open("a"))
            stack.enter_context(redirect_stdout(file))
            stack.enter_context(redirect_stderr(file))
        try:
            return call(), None
        except Exception as error:
            traceback.print_exc()
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return None, lines[-1] if lines else type(error).__name__
