"""Runs many command lines in forked processes of one that has loaded lit_fed, each in a folder of its own.

Forking takes longer than being refused: a process goes on with the next line as long as lines are refused.
"""

import json
import os
import resource
import select
import signal
import sys
import time
from collections import deque
from dataclasses import dataclass

from prepared import do_not_render

from lit_fed.cli import main

AT_ONCE, IN_A_ROW, LIMIT_S = 2, 16, 60
REFUSED = 2
"""Status of a command line that was refused before it did anything."""
MEMORY = 16 * 2**30
"""Bytes of one process: a command line that is believed too much fails here, not the machine."""


@dataclass
class Process:
    """One that runs command lines."""

    pid: int
    statuses: int
    """The end of a pipe that says a byte for each line that has ended."""
    waiting: deque
    """Numbers of its lines, first that which it runs."""
    since: float


def begin(numbers, lines, root):
    """Start a process that runs these lines."""
    here, there = os.pipe()
    pid = os.fork()
    if pid:
        os.close(there)
        return Process(pid, here, deque(numbers), time.monotonic())
    try:
        os.setsid()  # a command line that starts processes is ended with them
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        environment, path = dict(os.environ), list(sys.path)
        for number in numbers:
            status = run_one(lines[number], root / str(number))
            os.write(there, bytes([status]))
            if status != REFUSED:
                break  # what ran leaves traces in its process
            os.environ.clear()
            os.environ.update(environment)
            sys.path[:] = path
    finally:
        os._exit(0)


def run_one(arguments, folder):
    """The status of a command line that runs in this process."""
    folder.mkdir(parents=True)
    os.chdir(folder)
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(folder.with_suffix(f".{name}"), os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    try:
        main(arguments)
    except SystemExit as stopped:
        return stopped.code if isinstance(stopped.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def run_all(lines, root):
    """What became of each command line: its status (None: not within the time), what it said, what it left."""
    waiting, running, results = deque(range(len(lines))), [], [None] * len(lines)
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            running.append(begin([waiting.popleft() for _ in range(min(IN_A_ROW, len(waiting)))], lines, root))
        select.select([one.statuses for one in running], [], [], 0.05)
        for one in list(running):
            late = time.monotonic() - one.since > LIMIT_S
            if late:
                os.killpg(one.pid, signal.SIGKILL)
            ended, code = os.waitpid(one.pid, 0 if late else os.WNOHANG)
            while select.select([one.statuses], [], [], 0)[0] and (said := os.read(one.statuses, 1)):
                settle(one, said[0], root, results)
            if ended:
                os.close(one.statuses)
                running.remove(one)
                if code:  # in the middle of a line
                    settle(one, None if late else os.waitstatus_to_exitcode(code), root, results)
                waiting.extendleft(reversed(one.waiting))
    return results


def settle(process, status, root, results):
    """Note what became of the line that a process has run."""
    number, now = process.waiting.popleft(), time.monotonic()
    folder, seconds, process.since = root / str(number), now - process.since, now
    said = {name: folder.with_suffix(f".{name}").read_text(errors="replace") for name in ("stdout", "stderr")}
    left = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    results[number] = {"status": status, "left": left, "seconds": seconds, **said}


def run_from_file(lines, root, results):
    """Write what became of each of many command lines, in a process of its own; both files are JSON."""
    do_not_render()
    results.write_text(json.dumps(run_all(json.loads(lines.read_text()), root)))
