"""One writer in a folder: held against other processes, named to them, and let go by the system when it dies."""

import os
import re
import signal
import subprocess
import sys

import pytest

from lit_fed.errors import ConfigError
from lit_fed.system.folder_lock import LOCK_NAME, FolderLock

HOLD = (
    "import sys, time; from pathlib import Path; from filelock import FileLock; lock = FileLock(sys.argv[1]); "
    "lock.acquire(); Path(sys.argv[1]).write_text(sys.argv[2]); print('held', flush=True); time.sleep(60)"
)


def lock_of(folder):
    return FolderLock(folder, f"the run {folder}", "wait")


@pytest.fixture
def holder(tmp_path):
    """A process that holds the folder, with what its lock file says."""
    processes = []

    def hold(text):
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", f"import site; site.main(); {HOLD}", str(tmp_path / LOCK_NAME), text],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        processes.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in processes:
        process.kill()
        process.communicate()


def refused(folder):
    with pytest.raises(ConfigError) as error, lock_of(folder):
        pass
    return str(error.value)


def test_the_second_hears_who_holds_it(tmp_path):
    with lock_of(tmp_path):
        said = refused(tmp_path)
    assert re.fullmatch(
        rf"the run {tmp_path}: process {os.getpid()} on \S+ is at work in it since [\d-]+ [\d:]+ UTC; wait", said
    )
    with lock_of(tmp_path):
        pass


def test_a_killed_process_lets_go(tmp_path, holder):
    process = holder("process 7 on sea\n2026-01-01 10:00:00 UTC\n")
    assert refused(tmp_path).endswith("process 7 on sea is at work in it since 2026-01-01 10:00:00 UTC; wait")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (tmp_path / LOCK_NAME).read_text().startswith("process 7"), "what it wrote is still there"
    with lock_of(tmp_path):
        assert (tmp_path / LOCK_NAME).read_text().startswith(f"process {os.getpid()} on ")


def test_a_holder_that_has_not_said_its_name_yet(tmp_path, holder):
    holder("process")
    assert refused(tmp_path) == f"the run {tmp_path}: another process is at work in it; wait"


def test_an_empty_folder_is_left_empty_and_one_in_use_keeps_the_file(tmp_path):
    with lock_of(tmp_path / "new"):
        pass
    assert list((tmp_path / "new").iterdir()) == []
    with lock_of(tmp_path):
        (tmp_path / "new/metrics.csv").touch()
    assert (tmp_path / LOCK_NAME).is_file()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    assert refused(tmp_path / "file").endswith("file: File exists; choose a folder that can be written")
