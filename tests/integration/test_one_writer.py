"""Two processes and one run's folder: the second is refused before it writes, whatever only reads goes on."""

import os
import signal
import time
from contextlib import contextmanager
from multiprocessing import Pipe

import pytest
from running import SMALL, folder, forked, history, numbers, run, start

from lit_fed.cli import main
from lit_fed.system.folder_lock import LOCK_NAME
from lit_fed.training.round_logger import writer_of

FIT = [
    "fit", *SMALL, "--trainer.max_epochs", "2", "--trainer.enable_progress_bar", "false",
    "--trainer.callbacks+=RunReport", "--trainer.callbacks.pictures=false",
]  # fmt: skip
ELSEWHERE = "wait until it ends, or give --output FILE elsewhere\n"
NEW_RUN = "wait until it ends, or start a new run without --ckpt_path\n"


def hold(path, connection):
    with writer_of(path):
        connection.send(os.getpid())
        connection.recv()


@contextmanager
def held(path):
    """Another process holds the folder; its id, and at the end it is killed."""
    ours, theirs = Pipe()
    process = forked(hold, path, theirs)
    try:
        assert ours.poll(60)
        yield ours.recv()
    finally:
        process.kill()
        process.join()


def content(path):
    return {one: (one.stat().st_mtime_ns, one.read_bytes()) for one in path.rglob("*") if one.is_file()}


def refused(capsys, arguments):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    return capsys.readouterr().err


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of two rounds."""
    out = tmp_path_factory.mktemp("whole")
    main([*FIT, "--trainer.default_root_dir", str(out)])
    return out


def test_who_holds_a_run_is_named_and_readers_are_let_in(capsys, tmp_path, whole):
    path = folder(whole, "FedEM")
    here = ["--trainer.default_root_dir", str(whole), "--ckpt_path", "last"]
    with held(path) as pid:
        before = content(path)
        who = f"lit_fed: the run {path}: process {pid} on {os.uname().nodename} is at work in it since "
        said = refused(capsys, [*FIT, *here, "--trainer.max_epochs", "3"])
        assert said.startswith(who)
        assert said.endswith(NEW_RUN)
        said = refused(capsys, ["predict", *here])
        assert who.removeprefix("lit_fed: ") in said
        assert said.endswith(ELSEWHERE)
        main(["test", *here])
        main(["predict", *here, "--output", str(tmp_path / "predictions.csv")])
        assert content(path) == before
        main([*FIT, "--trainer.default_root_dir", str(whole)])  # a run of its own beside it
    assert folder(whole, "FedEM", 1).is_dir()
    main(["predict", "--ckpt_path", str(path / "checkpoints/last.ckpt")])  # the holder was killed
    assert (path / "predictions.csv").read_bytes() == (tmp_path / "predictions.csv").read_bytes()


def test_of_two_that_go_on_with_a_run_one_does(tmp_path):
    """The first is stopped as soon as it holds the run, so that the second meets it whatever else runs here."""
    longer = [*FIT, "--trainer.max_epochs", "4", "--trainer.default_root_dir"]
    main([*FIT, "--trainer.default_root_dir", str(tmp_path)])
    path = folder(tmp_path, "FedEM")
    first = start([*longer, str(tmp_path), "--ckpt_path", "last"])
    while first.poll() is None and f"process {first.pid} " not in (path / LOCK_NAME).read_text():
        time.sleep(0.002)
    first.send_signal(signal.SIGSTOP)
    try:
        before = content(path)
        second = run([*longer, str(tmp_path), "--ckpt_path", "last"])
        assert (second.returncode, content(path)) == (2, before)
        assert second.stderr.endswith(NEW_RUN)
        assert len(second.stderr.splitlines()) == 1
    finally:
        first.send_signal(signal.SIGCONT)
    said = first.communicate(120)
    assert first.returncode == 0, said
    main([*longer, str(tmp_path / "alone")])
    assert numbers(path) == numbers(folder(tmp_path / "alone", "FedEM"))
    assert history(path) == history(folder(tmp_path / "alone", "FedEM"))
    with writer_of(path), writer_of(folder(tmp_path / "alone", "FedEM")):
        pass  # both are free again
