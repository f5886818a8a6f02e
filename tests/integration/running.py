"""Runs of the command line: in this process, or, for ranks, kills and nodes, in real ones.

Real processes are forked from a server that has loaded lit_fed, once for each worker of pytest.
"""

import atexit
import importlib.util
import json
import logging
import multiprocessing
import multiprocessing.forkserver
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
from contextlib import ExitStack, chdir, contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from prepared import STARTED, do_not_render

SMALL = [
    "--data.dataset", "Digits", "--data.num_clients", "8", "--data.unseen_fraction", "0.25", "--data.client_fraction",
    "0.7", "--trainer.accelerator", "cpu", "--trainer.max_epochs", "4", "--model.solver.momentum", "0.9",
]  # fmt: skip
PRELOADED = ["lit_fed.cli", "lit_fed.pictures.run", "matplotlib.backends.backend_agg", "sklearn.datasets"]
"""Modules that real processes need; `prepared` imports the figures, with pandas."""
CHILDREN = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
"""What processes find in their environment."""
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1, signal.SIGCONT]


# ---------------------------------------------------------------------- in this process
def run(arguments, timeout=120, ranks=1, script=None, **environment):
    """Run `python -m lit_fed`, or a script, and return the finished process; two ranks run in a `Pair`."""
    work = partial(command_line, arguments) if script is None else partial(run_script, script, arguments)
    if ranks == 1:
        return here(work, timeout, **environment)
    done = in_two_ranks(work, timeout, check=False, **environment)
    status = next((one.returncode for one in done if one.returncode), 0)
    said = "".join(one.stdout for one in done), "".join(one.stderr for one in done)
    return subprocess.CompletedProcess(arguments, status, *said)


def here(work, timeout=120, folder=None, **environment):
    """Do work in this process as if it were one of its own: its status and what it printed, as of `subprocess.run`."""
    with tempfile.TemporaryDirectory() as place:
        files = [Path(place, name) for name in ("out", "err")]
        with _restored(), _printing_to(*files), _in_time(timeout), chdir(folder or os.getcwd()):
            os.environ.update(environment, **CHILDREN)
            status = _status(work)
        return subprocess.CompletedProcess(work, status, *(file.read_text(errors="replace") for file in files))


def command_line(arguments):
    """`python -m lit_fed` in a process that has loaded it."""
    from lit_fed.__main__ import main

    sys.argv = ["lit-fed", *arguments]
    spec = importlib.util.find_spec("lit_fed.__main__")  # Lightning starts further ranks by its name
    with mock.patch.object(sys.modules["__main__"], "__spec__", spec):
        main()


def run_script(script, arguments):
    """`python script`."""
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(str(script), run_name="__main__")


def _status(work):
    try:
        work()
    except SystemExit as stop:
        if isinstance(stop.code, str):
            sys.stderr.write(f"{stop.code}\n")
            return 1
        return int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


@contextmanager
def _restored():
    """Undo what a program changes in its process; warnings are printed, as Python does by default."""
    environment, argv, path, modules = dict(os.environ), sys.argv, list(sys.path), set(sys.modules)
    hooks, mask, threads = (sys.excepthook, sys.unraisablehook), os.umask(0o022), torch.get_num_threads()
    os.umask(mask)
    places = [Path(one).resolve() for one in (*path, sys.base_prefix)]
    temporary, tempfile.tempdir = tempfile.tempdir, None  # it is that of TMPDIR, and remembered
    generators = random.getstate(), np.random.get_state(), torch.get_rng_state()
    handlers = {one: signal.getsignal(one) for one in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell would hand on "ignore"
    loggers = [
        logging.getLogger(),
        *(one for one in logging.Logger.manager.loggerDict.values() if hasattr(one, "level")),
    ]
    logged = [(one, one.level, one.disabled, one.propagate, one.handlers[:], one.filters[:]) for one in loggers]
    try:
        with warnings.catch_warnings(), ExitStack() as patches:
            warnings.resetwarnings()
            warnings.filterwarnings("ignore", category=ResourceWarning)
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            warnings.filterwarnings("ignore", category=PendingDeprecationWarning)
            warnings.showwarning = lambda *given, **_: sys.stderr.write(warnings.formatwarning(*given[:4]))
            patches.enter_context(mock.patch("gc.freeze"))  # is for the process of one command
            patches.enter_context(forking())
            yield
    finally:
        _end_wandb()
        _leave_ranks()
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None)
            if file and not any(Path(file).resolve().is_relative_to(one) for one in places):
                del sys.modules[name]
        importlib.invalidate_caches()
        for one, handler in handlers.items():
            signal.signal(one, handler)
        for one, *state in logged:
            one.level, one.disabled, one.propagate, one.handlers[:], one.filters[:] = state
        tempfile.tempdir = temporary
        sys.argv, sys.path[:], (sys.excepthook, sys.unraisablehook) = argv, path, hooks
        os.environ.clear()
        os.environ.update(environment)
        os.umask(mask)
        torch.set_num_threads(threads)
        random.setstate(generators[0])
        np.random.set_state(generators[1])
        torch.set_rng_state(generators[2])


def forking():
    """A patch: processes that would be spawned are forked, so that they have loaded what this one has."""
    contexts = multiprocessing.get_context
    return mock.patch("multiprocessing.get_context", lambda kind=None: contexts("fork" if kind == "spawn" else kind))


def _leave_ranks():
    """Be no rank any more, after a command whose other ranks Lightning started."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _end_wandb():
    wandb = sys.modules.get("wandb")
    if getattr(wandb, "run", None) is not None:
        wandb.finish()
        wandb.teardown()


@contextmanager
def _printing_to(*files):
    """Write what this process and those that it starts print into two files."""
    streams, kept = (sys.stdout, sys.stderr), [os.dup(number) for number in (1, 2)]
    try:
        for number, file in zip((1, 2), files, strict=True):
            with file.open("wb") as opened:
                os.dup2(opened.fileno(), number)
        with open(1, "w", closefd=False) as sys.stdout, open(2, "w", closefd=False, buffering=1) as sys.stderr:
            yield
    finally:
        sys.stdout, sys.stderr = streams
        for number, before in zip((1, 2), kept, strict=True):
            os.dup2(before, number)
            os.close(before)


@contextmanager
def _in_time(seconds):
    def late(*_):
        raise TimeoutError(f"a command took more than {seconds} seconds")

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


# ---------------------------------------------------------------------- real processes
class Started:
    """`python -m lit_fed`, or a script, in a real process with a session of its own.

    Has what is needed of `subprocess.Popen`.
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
        """Wait for its end: what it printed."""
        self.process.join(timeout)
        if self.poll() is None:
            self.kill()
            raise subprocess.TimeoutExpired(self.args, timeout)
        said = [path.read_text() if path.is_file() else "" for path in self._files]
        self._place.cleanup()
        return said


def start(arguments, script=None, **environment):
    """Start `python -m lit_fed`, or a script, as a real process."""
    return Started(arguments, environment, script)


def forked(work, *arguments, **environment):
    """A real process, started, that runs `work(*arguments)`."""
    given = {**os.environ, **CHILDREN, **environment}
    process = _server().Process(target=_with_environment, args=(given, os.getcwd(), work, *arguments))
    process.start()
    with open(os.environ.get(STARTED, os.devnull), "a") as started:
        started.write(f"{os.environ.get('PYTEST_CURRENT_TEST')}\n")
    return process


def ended(process, timeout):
    """The status of a real process, which is killed if it takes too long."""
    process.join(timeout)
    late = process.exitcode is None
    process.kill()
    process.join()
    assert not late, f"a process took more than {timeout} seconds"
    return process.exitcode


def _server():
    """The context of processes that are forked from one that has loaded lit_fed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with mock.patch.dict(os.environ, CHILDREN):
        multiprocessing.forkserver.ensure_running()
    return context


def _with_environment(environment, folder, work, *arguments):
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    do_not_render()
    try:
        work(*arguments)
    finally:
        atexit._run_exitfuncs()  # which a process of multiprocessing leaves out


def _program(script, arguments, out, err):
    os.setsid()
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with forking():
        command_line(arguments) if script is None else run_script(script, arguments)


# ---------------------------------------------------------------------- ranks
class Pair:
    """Two processes that stay: they do the work of two ranks, one piece after the other."""

    def __init__(self):
        self.ends, self.processes = [], []
        for _ in range(2):
            end, other = multiprocessing.Pipe()
            self.processes.append(forked(_serve, other))
            self.ends.append(end)
            other.close()

    def run(self, work, timeout, environments):
        """What each rank printed and its status, negative if a signal ended it, or it took too long."""
        for end, environment in zip(self.ends, environments, strict=True):
            end.send((work, timeout, os.getcwd(), {**os.environ, **environment}))
        return [self._answer(*one, timeout + 10) for one in zip(self.ends, self.processes, strict=True)]

    def _answer(self, end, process, timeout):
        try:
            if end.poll(timeout):
                return end.recv()
        except EOFError:  # a signal has ended it
            process.join()
        process.kill()
        process.join()
        return subprocess.CompletedProcess((), process.exitcode, "", "")

    def close(self):
        for process in self.processes:
            process.kill()
            process.join()


def _serve(connection):
    while True:
        try:
            work, timeout, folder, environment = connection.recv()
        except EOFError:
            return
        done = here(partial(_as_rank, work), timeout, folder, **environment)
        done.args = ()
        connection.send(done)


def _as_rank(work):
    try:
        work()
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


PAIRS = []
"""The pair of this worker, if there is one."""
atexit.register(lambda: [pair.close() for pair in PAIRS])  # before multiprocessing waits for them


def in_two_ranks(work, timeout=300, each=None, check=True, **environment):
    """Do `work()` in two ranks that are started as torchrun starts them; the finished process of each."""
    pair = PAIRS.pop() if PAIRS else Pair()
    if not all(process.is_alive() for process in pair.processes):  # something ended it since
        pair.close()
        pair = Pair()
    done = pair.run(work, timeout, [{**one, **environment} for one in each or of_ranks(2)])
    if all(process.is_alive() for process in pair.processes):
        PAIRS.append(pair)
    else:
        pair.close()
    assert not check or [one.returncode for one in done] == [0, 0], "".join(one.stderr[-3000:] for one in done)
    return done


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


# ---------------------------------------------------------------------- what a run leaves
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
