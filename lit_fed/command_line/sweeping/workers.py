"""Processes that run one command line after another, each on its own core."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Worker", "next_done"]

SECONDS_TO_STOP = 20.0
"""How long a run may take to end its round in order before it is killed."""


class Job(NamedTuple):
    """A run of `fit`."""

    arguments: tuple[str, ...]
    log: Path  # gets what the run prints
    run: Callable[[list[str]], Any]


class Worker:
    """A process that runs jobs.

    Args:
        core: the core that it stays on, where the system can pin processes.
        run: runs a command line; imported by its name there, once the process stands on its core.
    """

    def __init__(self, core: int, run: Callable[[list[str]], Any]) -> None:
        self.core, self.run = core, run
        self.task: Any = None  # what its job is for; None while it is idle
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, core), name=f"core {core}")
        self.process.start()
        other.close()  # so that the end of the process ends the connection

    def start(self, task: Any, arguments: Sequence[str], log: Path) -> None:
        """Begin a job."""
        self.task = task
        self.connection.send(Job(tuple(arguments), log, self.run))

    def result(self) -> tuple[Any, str | None]:
        """The task that is done, and the last line of its error, if it failed; waits."""
        task, self.task = self.task, None
        try:
            return task, self.connection.recv()
        except EOFError:
            self.process.join()
            return task, f"its process ended with status {self.process.exitcode}"

    def stop(self) -> None:
        """End the process: a run in its midst ends its round first."""
        self.process.terminate()
        self.process.join(SECONDS_TO_STOP)
        self.process.kill()
        self.process.join()


def next_done(workers: Iterable[Worker]) -> list[Worker]:
    """The busy workers whose job is over; waits for one."""
    busy = {worker.connection: worker for worker in workers if worker.task is not None}
    return [busy[one] for one in wait(list(busy)) if isinstance(one, Connection)]


# ---------------------------------------------------------------------- in the process
def _serve(connection: Connection, core: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which stops its children
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            connection.send(_run(connection.recv()))
        except (EOFError, KeyboardInterrupt, SystemExit):  # the last two: Lightning's answer to SIGTERM
            return


def _end_with_parent() -> None:
    """A sweep that is killed leaves nobody who goes on writing into its folder."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run(job: Job) -> str | None:
    """Fit and test; the last line of the error, if there is one."""
    import torch

    from lit_fed.callbacks.defaults import keep_notices_out

    torch.set_num_threads(1)
    keep_notices_out()
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("a") as log, redirect_stdout(log), redirect_stderr(log):
        try:
            job.run(list(job.arguments))
        except Exception as error:
            import traceback

            traceback.print_exc()
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return lines[-1] if lines else type(error).__name__
    return None
