"""Runs many command lines in forked processes of one that has loaded lit_fed, each in a folder of its own."""

import json
import os
import resource
import signal
import sys
import time

from prepared import do_not_render

from lit_fed.cli import main

AT_ONCE, LIMIT_S = 2, 60
MEMORY = 16 * 2**30
"""Bytes of one process: a command line that is believed too much fails here, not the machine."""


def begin(arguments, folder):
    """Start a command line; its process id."""
    folder.mkdir(parents=True)
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.setsid()  # a command line that starts processes is ended with them
        os.chdir(folder)
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(folder.with_suffix(f".{name}"), os.O_WRONLY | os.O_CREAT), number)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        main(arguments)
        status = 0
    except SystemExit as stopped:
        status = stopped.code if isinstance(stopped.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run_all(lines, root):
    """What became of each command line: its status (None: not within the time), what it said, what it left."""
    waiting, running, results = list(enumerate(lines))[::-1], {}, [None] * len(lines)
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            number, arguments = waiting.pop()
            running[begin(arguments, root / str(number))] = number, time.monotonic()
        for child, (number, started) in list(running.items()):
            late = time.monotonic() - started > LIMIT_S
            if late:
                os.killpg(child, signal.SIGKILL)
            ended, code = os.waitpid(child, 0 if late else os.WNOHANG)
            if ended:
                del running[child]
                folder = root / str(number)
                said = {
                    name: folder.with_suffix(f".{name}").read_text(errors="replace") for name in ("stdout", "stderr")
                }
                left = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
                status = None if late else os.waitstatus_to_exitcode(code)
                results[number] = {"status": status, "left": left, "seconds": time.monotonic() - started, **said}
        time.sleep(0.005)
    return results


def run_from_file(lines, root, results):
    """Write what became of each of many command lines, in a process of its own; both files are JSON."""
    do_not_render()
    results.write_text(json.dumps(run_all(json.loads(lines.read_text()), root)))
