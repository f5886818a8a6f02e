"""Runs of the command line in processes of their own, forked from one that has loaded lit_fed already."""

import atexit
import importlib.util
import json
import multiprocessing
import multiprocessing.forkserver
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from unittest import mock

from prepared import do_not_render

SMALL = [
    "--data.dataset", "Digits", "--data.num_clients", "8", "--data.unseen_fraction", "0.25", "--data.client_fraction",
    "0.7", "--trainer.accelerator", "cpu", "--trainer.max_epochs", "4", "--model.solver.momentum", "0.9",
]  # fmt: skip

started_by = []
"""Processes that asked for the one which others are forked from, the one that started it first."""


class Started:
    """`python -m lit_fed`, or a script, in a forked process: as a fresh one, but nothing is left to be loaded.

    Has what is needed of `subprocess.Popen`, and a session of its own.
    """

    def __init__(self, arguments, environment, script=None):
        self.args, self.returncode = arguments, None
        self._place = tempfile.TemporaryDirectory()
        self._files = [Path(self._place.name, name) for name in ("out", "err")]
        self.process = forked(_program, script, arguments, *self._files, **environment)
        self.pid = self.process.pid
        self.send_signal = partial(os.kill, self.process.pid)

    def poll(self):
        self.returncode = self.process.exitcode
        return self.returncode

    def kill(self):
        self.process.kill()

    def communicate(self, timeout=None):
        """What it said, once it has ended."""
        self.process.join(timeout)
        if self.poll() is None:
            self.kill()
            raise subprocess.TimeoutExpired(self.args, timeout)
        said = [path.read_text() if path.is_file() else "" for path in self._files]
        self._place.cleanup()
        return said


def server():
    """The context of processes that are forked from one that has loaded lit_fed.

    That one is shared with the processes that are forked from this one.
    """
    context = multiprocessing.get_context("forkserver")
    if sys.modules["__main__"].__spec__ is None:  # the script `pytest`, which every forked process would run, and load
        sys.modules["__main__"].__spec__ = importlib.util.find_spec("pytest.__main__")
    started_by.append(os.getpid())
    if started_by[0] == os.getpid():
        context.set_forkserver_preload(["warm"])
        with mock.patch.dict(os.environ, PYTHONPATH=_paths(), OMP_NUM_THREADS="1"):
            multiprocessing.forkserver.ensure_running()
    else:  # it is no child of this process, which could not find out whether it runs
        multiprocessing.forkserver._forkserver.ensure_running = lambda: None
    return context


def forked(work, *arguments, **environment):
    """A process, started, that runs `work(*arguments)` where lit_fed is loaded already."""
    given = {**os.environ, "PYTHONPATH": _paths(), "OMP_NUM_THREADS": "1", **environment}
    process = server().Process(target=_with_environment, args=(given, os.getcwd(), work, *arguments))
    process.start()
    return process


def ended(process, timeout):
    """The status of a forked process, which is killed if it takes too long."""
    process.join(timeout)
    late = process.exitcode is None
    process.kill()
    process.join()
    assert not late, f"a forked process took more than {timeout} seconds"
    return process.exitcode


def write_what_loads_with_lit_fed(file):
    """The names of all modules that a process has loaded with the command line; to be called in a forked one."""
    from warm import LOADED_WITH_LIT_FED

    file.write_text("\n".join(LOADED_WITH_LIT_FED))


def start(arguments, script=None, **environment):
    """Start `python -m lit_fed`, or a script."""
    return Started(arguments, environment, script)


def run(arguments, timeout=120, ranks=1, **environment):
    """Run `python -m lit_fed` and return the finished process; several ranks are started as torchrun starts them."""
    each = [environment] if ranks == 1 else [environment | one for one in of_ranks(ranks)]
    processes = [Started(arguments, one) for one in each]
    out, err = ("".join(said) for said in zip(*(one.communicate(timeout) for one in processes), strict=True))
    status = next((one.returncode for one in processes if one.returncode), 0)
    return subprocess.CompletedProcess(arguments, status, out, err)


def of_ranks(number):
    """The environment of each of several ranks on this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number,
        "GROUP_RANK": 0, "TORCHELASTIC_RUN_ID": "none",
    }  # fmt: skip
    return [
        {key: str(value) for key, value in {**shared, "RANK": rank, "LOCAL_RANK": rank}.items()}
        for rank in range(number)
    ]


def _paths():
    return os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])


def _with_environment(environment, folder, work, *arguments):
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    work(*arguments)


def _program(script, arguments, out, err):
    os.setsid()
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644), number)
    do_not_render()
    command_line(arguments) if script is None else run_script(script, arguments)


def command_line(arguments):
    """`python -m lit_fed` in a forked process, as far as a program can see."""
    from lit_fed.__main__ import main

    _fork_what_is_spawned()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell would hand on "ignore"
    sys.argv = ["lit-fed", *arguments]
    sys.modules["__main__"].__spec__ = importlib.util.find_spec("lit_fed.__main__")  # further ranks are started by it
    try:
        main()
    finally:
        atexit._run_exitfuncs()  # which a process that multiprocessing forked leaves out


def run_script(script, arguments):
    """`python script` in a forked process; what it starts is forked from it."""
    _fork_what_is_spawned()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(str(script), run_name="__main__")


def _fork_what_is_spawned():
    """Processes that this forked one starts have loaded what it has."""
    contexts = multiprocessing.get_context
    multiprocessing.get_context = lambda kind=None: contexts("fork" if kind == "spawn" else kind)


def fork_what_is_spawned(monkeypatch):
    """Processes that this one starts are forked from one that has loaded lit_fed."""
    contexts = multiprocessing.get_context
    server()
    monkeypatch.setattr(
        multiprocessing, "get_context", lambda kind=None: contexts("forkserver" if kind == "spawn" else kind)
    )


def folder(out, name, version=0):
    """A run's folder."""
    return Path(out) / name / f"version_{version}"


def numbers(path):
    """What must be the same in two runs of the same numbers: all but times and the writer."""
    summary = json.loads((Path(path) / "summary.json").read_text())
    return {key: value for key, value in summary.items() if key not in {"seconds", "git_commit"}}


def history(path):
    """metrics.csv without times."""
    lines = (Path(path) / "metrics.csv").read_text().splitlines()
    header = lines[0].split(",")
    kept = [place for place, name in enumerate(header) if not name.startswith("time/")]
    return [[line.split(",")[place] for place in kept] for line in lines]
