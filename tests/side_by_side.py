"""Runs tests in several processes, which are forked when all is loaded and collected: `pytest -n 3`.

That is done once, whatever the number of processes. Each takes one file after the other, those first that take longest,
and sends back its reports; what pytest does with reports (-x, --lf, durations, the summary) happens in the process that
hands out files. A process that dies fails the test that it was running, and the rest of its file goes to a new one.
Fixtures of the session live as long as a file: which one comes next is open until the last test of it has ended.
"""

import os
import pickle
import signal
import time
import traceback
import warnings
from collections import deque
from itertools import zip_longest
from multiprocessing.connection import Pipe, wait

import pytest

PATIENCE_S = 10
"""What a process has to end when it is interrupted."""

ASKS_GENTLY = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""Set while tests are collected: the other way to ask whether there is a GPU keeps it from all forked processes."""


def pytest_addoption(parser):
    parser.getgroup("side by side")._addoption(
        "-n", "--processes", type=int, default=0, help="processes that run tests side by side; 0: this one runs them"
    )
    parser.addini("long_files", "files with whose tests processes begin, in this order", type="linelist")


def pytest_configure(config):
    if config.getoption("processes") > 1 and not config.getoption("usepdb"):
        config.pluginmanager.register(SideBySide(), "side_by_side_loop")


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory, pytestconfig):
    """A folder that all processes share."""
    return getattr(pytestconfig, "shared_folder", None) or tmp_path_factory.getbasetemp()


class SideBySide:
    """Hands out files of tests, and hears what became of them."""

    def __init__(self):
        self.waiting = deque()
        """Lists of numbers of tests: each is a file, or what a process that died has left of one."""
        self.workers = []
        os.environ[ASKS_GENTLY] = "1"

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        failed = session.testsfailed and not session.config.option.continue_on_collection_errors
        self.waiting.extend(files(session))
        number = min(session.config.getoption("processes"), len(self.waiting))
        if failed or session.config.option.collectonly or number < 2:
            return None  # which leaves it to pytest
        session.config.shared_folder = session.config._tmp_path_factory.getbasetemp()
        try:
            for _ in range(number):
                self.workers.append(Worker(session, self.workers))
            while self.workers:
                self._listen(session)
        finally:
            stop(self.workers)
        return True

    def _listen(self, session):
        ready = wait([one.connection for one in self.workers], timeout=1)
        for worker in list(self.workers):
            if worker.connection in ready:
                self._hear(session, worker)
            elif not ready and worker.ended() is not None and not worker.connection.poll():
                self._replace(session, worker)

    def _hear(self, session, worker):
        try:
            kind, *said = worker.connection.recv()
        except (EOFError, OSError):
            self._replace(session, worker)
            return
        if kind == "more":
            worker.give(self.waiting.popleft() if self.waiting else [])
        elif kind == "begun":
            worker.running = said[0]
        elif kind == "done":
            worker.done()
            replay(session, *said)
        elif kind == "end":
            worker.wait(PATIENCE_S)
            self.workers.remove(worker)
        else:
            raise RuntimeError(f"a process that runs tests failed:\n{said[0]}")

    def _replace(self, session, worker):
        """A process that died: its test failed, the rest is run by another."""
        status = worker.wait(PATIENCE_S)
        self.workers.remove(worker)
        if worker.running is None:
            raise RuntimeError(f"a process that runs tests ended with status {status}, between two of them")
        item, rest = session.items[worker.running], [one for one in worker.given if one != worker.running]
        if rest:
            self.waiting.appendleft(rest)
        self.workers.append(Worker(session, self.workers))
        why = f"the process that ran this test ended with status {status}"
        report = pytest.TestReport(item.nodeid, item.location, dict.fromkeys(item.keywords, 1), "failed", why, "call")
        plain = session.config.hook.pytest_report_to_serializable(config=session.config, report=report)
        replay(session, worker.running, [plain], [])


def files(session):
    """The numbers of the tests of each file, the longest files first."""
    root, long = session.config.rootpath, session.config.getini("long_files")
    if gone := [name for name in long if not (root / name).is_file()]:
        raise pytest.UsageError(f"long_files in pyproject.toml names what is not there: {', '.join(gone)}")
    order = {root / name: place for place, name in enumerate(long)}
    numbers = {}
    for number, item in enumerate(session.items):
        numbers.setdefault(item.path, []).append(number)
    return [numbers[path] for path in sorted(numbers, key=lambda path: order.get(path, len(order)))]


def replay(session, number, reports, warned):
    """Do what pytest does when a test has been run, in this process."""
    item, hook = session.items[number], session.config.hook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in reports:
        hook.pytest_runtest_logreport(report=hook.pytest_report_from_serializable(config=session.config, data=report))
    for one in warned:
        hook.pytest_warning_recorded.call_historic(kwargs=one)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)


def stop(workers):
    """End processes that are not done."""
    for one in workers:
        one.connection.close()
        one.interrupt()
    for one in workers:
        one.wait(PATIENCE_S)


class Worker:
    """A process that runs tests, as the one sees it that hands them out."""

    started = 0

    def __init__(self, session, others):
        self.given, self.running, self.status = [], None, None
        self.connection, there = Pipe()
        Worker.started += 1
        self.pid = os.fork()
        if self.pid == 0:
            for one in (self, *others):
                one.connection.close()
            work(session, there, f"worker-{Worker.started}")
        there.close()

    def give(self, numbers):
        self.given += numbers
        self.connection.send(numbers)

    def done(self):
        self.given.remove(self.running)
        self.running = None

    def ended(self):
        """Its status, if it has ended; -9 means by signal 9."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status

    def interrupt(self):
        if self.ended() is None:
            os.kill(self.pid, signal.SIGINT)

    def wait(self, seconds):
        """Its status; it is killed if it takes longer to end."""
        until = time.monotonic() + seconds
        while self.ended() is None and time.monotonic() < until:
            time.sleep(0.01)
        if self.ended() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.status


def work(session, connection, name):
    """All that a forked process does: run tests until there are no more."""
    said = Said(session.config)
    try:
        begin(session.config, said, name)
        while numbers := asked(connection):
            for number, following in zip_longest(numbers, numbers[1:]):
                connection.send(("begun", number))
                item, then = (None if one is None else session.items[one] for one in (number, following))
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=then)
                connection.send(("done", number, *said.taken()))
        connection.send(("end",))
    except (ConnectionError, EOFError, KeyboardInterrupt):
        pass  # the process that hands out tests has stopped
    except BaseException:
        connection.send(("broken", traceback.format_exc()))
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            session._setupstate.teardown_exact(None)
        finally:
            os._exit(0)


def asked(connection):
    """The numbers of the tests to be run next; none: there are no more."""
    connection.send(("more",))
    return connection.recv()


def begin(config, said, name):
    """Leave the terminal to the process that hands out tests, and take a folder and files of one's own."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in the background of a shell
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.pop(ASKS_GENTLY, None)
    plugins = config.pluginmanager
    plugins.unregister(name="terminalreporter")
    plugins.register(said, "said")
    capture = plugins.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    folder = config.shared_folder / name
    folder.mkdir()
    config._tmp_path_factory._basetemp = folder


class Said:
    """What pytest says of a test in the process that runs it."""

    def __init__(self, config):
        self.config, self.reports, self.warnings = config, [], []

    def pytest_runtest_logreport(self, report):
        self.reports.append(self.config.hook.pytest_report_to_serializable(config=self.config, report=report))

    def pytest_warning_recorded(self, warning_message, when, nodeid, location):
        category = warning_message.category
        try:
            pickle.dumps(category)
        except Exception:
            category = UserWarning
        plain = warnings.WarningMessage(
            str(warning_message.message), category, warning_message.filename, warning_message.lineno
        )
        self.warnings.append({"warning_message": plain, "when": when, "nodeid": nodeid, "location": location})

    def taken(self):
        said = self.reports, self.warnings
        self.reports, self.warnings = [], []
        return said
