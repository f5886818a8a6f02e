"""The loop of trials: plans ask for them, an executor makes them, and those that are kept are not made again."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from functools import partial
from typing import Any, NamedTuple

from lit_fed.errors import ConfigError
from lit_fed.system.machine import cores

__all__ = ["EXECUTOR", "CoreExecutor", "InProcess", "Outcome", "Plan", "executor_of", "independent", "run_trials"]

EXECUTOR = (
    "path of your class or function that makes an executor of concurrent.futures, such as my_cluster.executor, for "
    "runs on other machines; by default processes of this one."
)
"""Help of `--executor`."""

SECONDS_TO_STOP = 20.0
"""Time that a call has to end its round before its process is killed."""


class Outcome(NamedTuple):
    """The end of a trial."""

    value: Any
    error: str | None = None
    """The last line of the error message if the trial failed."""


Plan = Generator[Sequence[Any], list[Outcome], Any]
"""Yields trials that are independent of each other, gets their outcomes in the same order, and returns a result."""


def independent(trials: Sequence[Any]) -> Plan:
    """The plan of trials that nothing follows; it returns their outcomes."""
    return (yield trials)


def run_trials(
    plans: Iterable[Plan], make: Callable[[Any], Any], executor: Executor, at_once: int = 1, *,
    find: Callable[[Any], Any] = lambda trial: None, keep: Callable[[Any, Outcome], None] = lambda trial, outcome: None,
    failures: tuple[type[Exception], ...] = (),
) -> list[Any]:  # fmt: skip
    """Run plans until all have returned. A plan is taken when a place is free and no trial of an earlier plan waits.

    Args:
        plans: ask for trials.
        make: makes a trial and returns its value, not None; it and the trial must be picklable for other processes.
        executor: calls `make`.
        at_once: number of trials at a time.
        find: the value of a trial that an earlier process made and kept; None: the trial is made.
        keep: called with each trial that was made, as soon as it ends.
        failures: errors that end their trial alone; another one is raised.

    Returns:
        Results of the plans, in order of completion.
    """
    left, waiting, results = iter(plans), deque[_Asked](), list[Any]()
    running: dict[Future[Outcome], _Asked] = {}
    while True:
        while len(running) < at_once:
            if waiting:
                asked = waiting.popleft()
                running[executor.submit(_outcome, make, asked.trial, failures)] = asked
            elif (plan := next(left, None)) is not None:
                waiting.extend(_go_on(plan, None, find, results))
            else:
                break
        if not running:
            return results
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            asked = running.pop(future)
            asked.outcomes[asked.place] = outcome = _outcome_of(future)
            keep(asked.trial, outcome)
            if None not in asked.outcomes:  # what follows goes ahead of later plans
                waiting.extendleft(reversed(_go_on(asked.plan, asked.outcomes, find, results)))


class _Asked(NamedTuple):
    """A trial, and the place of its outcome among those that its plan waits for."""

    plan: Plan
    outcomes: list[Outcome | None]
    place: int
    trial: Any


def _go_on(plan: Plan, outcomes: Any, find: Callable[[Any], Any], results: list[Any]) -> list[_Asked]:
    """Give a plan its outcomes until it asks for trials that are missing; these, [] if it has returned."""
    missing: list[_Asked] = []
    try:
        while not missing:
            trials = plan.send(outcomes)
            outcomes = [None if value is None else Outcome(value) for value in map(find, trials)]
            every = (_Asked(plan, outcomes, place, trial) for place, trial in enumerate(trials))
            missing = [one for one in every if outcomes[one.place] is None]
    except StopIteration as end:
        results.append(end.value)
    return missing


def _outcome(make: Callable[[Any], Any], trial: Any, failures: tuple[type[Exception], ...]) -> Outcome:
    """Make a trial, where the executor calls it: an error becomes text there, since not every one can be pickled."""
    try:
        return Outcome(make(trial))
    except failures as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return Outcome(None, lines[-1] if lines else type(error).__name__)


def _outcome_of(future: Future[Outcome]) -> Outcome:
    try:
        return future.result()
    except BrokenExecutor as error:
        return Outcome(None, str(error))


# ---------------------------------------------------------------------- executors
class InProcess(Executor):
    """Calls in this process, one after the other; their errors are raised by `submit`."""

    def submit(self, call: Any, /, *args: Any, **options: Any) -> Future[Any]:
        """Make the call."""
        future: Future[Any] = Future()
        future.set_result(call(*args, **options))
        return future


class CoreExecutor(ThreadPoolExecutor):
    """Calls in processes that are spawned once, each pinned to a core; one that dies fails its own call alone.

    Processes end with this one, even if it is killed. At the end of the `with` block, also after Ctrl-C, running calls
    get SIGTERM.

    Args:
        processes: number of them; each has a thread here that waits for it.
    """

    def __init__(self, processes: int) -> None:
        super().__init__(processes)
        known = cores()
        self._cores = [known[number % len(known)] for number in range(processes)]
        self._pools = [_process_on(core) for core in self._cores]
        self._free, self._starting = deque(range(processes)), threading.Lock()

    def submit(self, call: Any, /, *args: Any, **options: Any) -> Future[Any]:
        """Make the call in the next free process."""
        return super().submit(self._in_process, partial(call, *args, **options))

    def _in_process(self, call: Callable[[], Any]) -> Any:
        number = self._free.popleft()
        try:
            with self._starting:  # the first call starts a process: one thread at a time
                made = self._pools[number].submit(call)
            return made.result()
        except (BrokenExecutor, SystemExit) as error:  # killed, or Lightning's answer to SIGTERM
            self._pools[number] = _process_on(self._cores[number])
            raise BrokenExecutor("its process was ended from outside, for want of memory, say") from error
        finally:
            self._free.append(number)

    def __exit__(self, *raised: object) -> None:
        children = multiprocessing.active_children()
        for child in children:
            child.terminate()
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)
        for child in children:
            child.join(SECONDS_TO_STOP)
            child.kill()
        self.shutdown()


def executor_of(jobs: int, named: str | None = None) -> Executor:
    """This process for one job at a time, else a process for each.

    Args:
        jobs: calls at a time.
        named: path of a user's class or function that makes another executor, without arguments.

    Raises:
        ConfigError: if it cannot be imported, or makes none.
    """
    if named is None:
        return CoreExecutor(jobs) if jobs > 1 else InProcess()
    module, _, name = named.rpartition(".")
    fix = "give a class or a function without arguments that makes an executor, such as my_cluster.executor"
    try:
        made = getattr(importlib.import_module(module), name)()
    except Exception as error:  # of the user's module, or of the machines behind it
        said = f"{type(error).__name__}: {error}"
        raise ConfigError(f"--executor {named}: it cannot be made ({said}); {fix}") from error
    if not isinstance(made, Executor):
        raise ConfigError(
            f"--executor {named} is a {type(made).__name__}, not an executor of concurrent.futures; {fix}"
        )
    return made


def _process_on(core: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _start, (core,))


def _start(core: int) -> None:
    """Prepare a process for its calls."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which stops its children
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
