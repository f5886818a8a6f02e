"""Ranks that die, stop or are asked to end: all of them end, one says which is missing, and the run goes on exactly."""

import atexit
import contextlib
import os
import signal
import socket
import time
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from running import SMALL, command_line, ended, folder, forked, history, in_two_ranks, numbers, of_ranks, run, start

from lit_fed import FederatedTrainer
from lit_fed.core.reduce import all_reduce
from lit_fed.system import heartbeat
from lit_fed.system.heartbeat import LostRanksError

TIMEOUT = 2
TWO = ["--trainer.devices", "2", "--trainer.strategy", "fed_ddp", "--trainer.timeout", str(TIMEOUT)]
QUIET = [
    "--trainer.enable_progress_bar", "false", "--trainer.callbacks+=RunReport", "--trainer.callbacks.pictures=false",
    "--model.algorithm", "FedEM",  # a run says what `auto` is here
]  # fmt: skip
LAST = "the last finished round is in last.ckpt, --ckpt_path last goes on from it"
COMPLETE = "the training is complete: the same fit with --ckpt_path last makes the test and its files again"
DIED = "died: killed, or crashed"
SILENT = f"kept the others waiting for more than {TIMEOUT} seconds: stopped, killed or slower than --trainer.timeout"


def arguments(out, *more):
    return ["fit", *SMALL, *TWO, *QUIET, "--trainer.default_root_dir", str(out), *more]


def sent(rank, name, moment="client"):
    values = {"moment": moment, "name": name, "rank": rank}
    return ["--trainer.callbacks+=interruptions.Signal", *(f"--trainer.callbacks.{k}={v}" for k, v in values.items())]


def outcome(out):
    """What a run leaves behind, without times."""
    path = folder(out, "FedEM")
    return numbers(path), history(path), (path / "clients.csv").read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What a run of two ranks leaves that nothing cut short."""
    out = tmp_path_factory.mktemp("whole")
    finished = run(arguments(out), ranks=2)
    assert finished.returncode == 0, finished.stderr
    return outcome(out)


def cut(out, lost, *more):
    """Two ranks, of which one is lost: how each ended, and what each said."""
    ranks = [start(arguments(out, *more), **one) for one in of_ranks(2)]
    other, missing = ranks[1 - lost], ranks[lost]
    err = other.communicate(timeout=60)[1]
    missing.process.join(1)
    missing.kill()  # as torchrun does with one that is stopped
    err_of_missing = missing.communicate(timeout=60)[1]
    return (other.returncode, err), (missing.returncode, err_of_missing)


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize(("name", "what"), [("SIGKILL", DIED), ("SIGSTOP", SILENT)])
def test_the_other_rank_names_a_lost_one_and_the_run_goes_on_exactly(tmp_path, whole, lost, name, what):
    (status, said), (_, nothing) = cut(tmp_path, lost, *sent(lost, name))
    assert status == 1, said
    assert said.startswith(f"lit_fed: rank {lost} {what}"), said
    assert said.endswith(f"; {LAST}\n")
    assert len(said.splitlines()) == 1
    assert nothing == ""
    if (name, lost) in (("SIGKILL", 1), ("SIGSTOP", 0)):
        finished = run(arguments(tmp_path, "--ckpt_path", "last"), ranks=2)
        assert finished.returncode == 0, finished.stderr
        assert outcome(tmp_path) == whole


@pytest.mark.parametrize(
    ("rank", "moment", "advice"),
    [(0, "client", LAST), (1, "client", LAST), (0, "test", COMPLETE), (1, "test", COMPLETE)],
)
def test_sigterm_to_one_rank_ends_both(tmp_path, whole, rank, moment, advice):
    more = () if moment == "client" else ("--trainer.max_epochs", "1")
    work = partial(command_line, arguments(tmp_path, *sent(rank, "SIGTERM", moment), *more))
    ranks = in_two_ranks(work, timeout=60, check=False)
    said = [one.stderr for one in ranks]
    assert [one.returncode for one in ranks] == [143, 143], said
    assert said == [f"lit_fed: terminated; {advice}\n", ""]
    if (rank, moment) == (0, "client"):
        finished = run(arguments(tmp_path, "--ckpt_path", "last"), ranks=2)
        assert finished.returncode == 0, finished.stderr
        assert outcome(tmp_path) == whole


def test_an_interrupt_of_one_rank_ends_both(tmp_path):
    ranks = in_two_ranks(partial(command_line, arguments(tmp_path, *sent(1, "SIGINT"))), timeout=60, check=False)
    assert [one.returncode for one in ranks] == [130, 130]
    assert [one.stderr for one in ranks] == [f"lit_fed: interrupted; {LAST}\n", ""]


def test_a_stopped_rank_zero_that_started_the_others_is_not_left_behind(tmp_path):
    """Started by Lightning, in a session that is looked through."""
    fit = start(arguments(tmp_path, *sent(0, "SIGSTOP"), "--trainer.max_epochs", "2"))
    said = fit.communicate(timeout=300)[1]
    assert fit.returncode == -signal.SIGKILL, said
    assert said == f"lit_fed: rank 0 {SILENT}; raise that if only slow; {LAST}\n"
    until = time.monotonic() + 60
    while (left := processes_of(fit.pid)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left


def processes_of(session):
    """Processes of a session that are not over."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(path.parent.name)
    return found


def join_where_nobody_answers(out):
    heartbeat.SECONDS_TO_START = 1.0
    with socket.create_server(("127.0.0.1", 0)) as silent:
        try:
            heartbeat.rendezvous(1, 2, 1.0, silent.getsockname(), hosted=False, gone=set)
        except LostRanksError as lost:
            out.write_text(str(lost))
        os._exit(0)  # a thread of torch still waits for an answer


def test_a_rank_zero_that_was_stopped_while_it_started_is_not_waited_for_without_end(tmp_path):
    assert ended(forked(join_where_nobody_answers, tmp_path / "said"), 60) == 0
    assert (tmp_path / "said").read_text().startswith("rank 0 did not start within 1 seconds: stopped, killed, or slow")


def end_as_a_rank(out):
    trainer = FederatedTrainer(accelerator="cpu", devices=2, strategy="fed_ddp", logger=False)
    trainer.strategy.setup_environment()
    all_reduce(torch.ones(()))
    before = dist.is_initialized()
    atexit._run_exitfuncs()
    out.write_text(f"{before} {dist.is_initialized()}")


def test_torchs_threads_end_before_python(tmp_path):
    """One that still lets go of what was exchanged last would take the process down: "terminate called without ..."."""
    places = [tmp_path / "0", tmp_path / "1"]
    ranks = [forked(end_as_a_rank, out, **one) for out, one in zip(places, of_ranks(2), strict=True)]
    assert [ended(one, 60) for one in ranks] == [0, 0]
    assert [out.read_text() for out in places] == ["True False"] * 2
