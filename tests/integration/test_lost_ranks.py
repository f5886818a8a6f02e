"""Ranks that die, stop or are asked to end: all of them end, the starter says which is missing, and the run goes on."""

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments import LightningEnvironment
from running import SMALL, command_line, ended, folder, forked, history, in_two_ranks, numbers, of_ranks, run, start

from lit_fed import FederatedTrainer
from lit_fed.core.reduce import all_reduce
from lit_fed.training import strategy

TWO = ["--trainer.devices", "2", "--trainer.strategy", "fed_ddp"]
QUIET = [
    "--trainer.enable_progress_bar", "false", "--trainer.callbacks+=RunReport", "--trainer.callbacks.pictures=false",
    "--model.algorithm", "FedEM", "--data.partition", "IID",  # with even classes, of which nothing is said
]  # fmt: skip
LAST = "the last finished round is in last.ckpt, --ckpt_path last goes on from it"
ENDED = "another rank ended, or exceeded --trainer.timeout, 1800 seconds"


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


def nobody_is_left(session):
    """Whether all processes of a session end soon."""
    until = time.monotonic() + 30
    while processes_of(session) and time.monotonic() < until:
        time.sleep(0.1)
    return not processes_of(session)


def test_the_starter_names_a_lost_rank_and_the_run_goes_on_exactly(tmp_path, whole):
    fit = start(arguments(tmp_path, *sent(1, "SIGKILL")))
    said = fit.communicate(timeout=120)[1]
    assert (fit.returncode, said) == (1, f"lit_fed: rank 1 was killed by SIGKILL; {LAST}\n")
    assert nobody_is_left(fit.pid)
    finished = run(arguments(tmp_path, "--ckpt_path", "last"), ranks=2)
    assert finished.returncode == 0, finished.stderr
    assert outcome(tmp_path) == whole


@pytest.mark.parametrize(
    ("programs", "what"),
    [
        (["exit 1", "exit 2"], "rank 2 ended with status 2"),
        (["kill -9 $$", "exit 1"], "rank 1 was killed by SIGKILL"),
        (["exit 1", "sleep 60"], "rank 2 kept the others waiting for more than 7 seconds: stopped, or slower than"),
        (["exit 1", "exit 1"], "rank 1 ended with status 1, rank 2 ended with status 1"),
    ],
)
def test_a_rank_is_lost_if_it_ended_otherwise_than_by_losing_one_itself(programs, what, monkeypatch):
    monkeypatch.setattr(strategy, "SECONDS_TO_END", 1)
    launcher = strategy.FederatedLauncher(LightningEnvironment(), 3, 1)
    launcher.procs = [subprocess.Popen(["sh", "-c", one]) for one in programs]
    assert launcher.lost_ranks(7.0).startswith(what)
    assert [process.wait(10) is None for process in launcher.procs] == [False, False]


def test_a_starter_that_hangs_in_a_collective_ends(monkeypatch, capsys):
    """As in one of NCCL, which does not notice that another rank ended."""
    monkeypatch.setattr(strategy, "SECONDS_TO_NOTICE", 0)
    monkeypatch.setattr(os, "_exit", sys.exit)
    launcher = strategy.FederatedLauncher(LightningEnvironment(), 2, 1)
    launcher.procs = [subprocess.Popen(["sh", "-c", "exit 3"])]
    trainer = SimpleNamespace(state=SimpleNamespace(status="running"), strategy=SimpleNamespace(timeout=7.0))
    with pytest.raises(SystemExit):
        launcher._watch(trainer)
    assert capsys.readouterr().err.startswith("lit_fed: rank 1 ended with status 3; --ckpt_path last goes on")


def test_a_killed_starter_leaves_no_rank_behind(tmp_path):
    fit = start(arguments(tmp_path, *sent(0, "SIGKILL")))
    said = fit.communicate(timeout=120)[1]
    assert (fit.returncode, said) == (-signal.SIGKILL, "")
    assert nobody_is_left(fit.pid)


def test_ctrl_c_ends_all_ranks(tmp_path):
    """A terminal sends it to all processes at once."""
    fit = start(arguments(tmp_path, "--trainer.max_epochs", "100000"))
    last = folder(tmp_path, "FedEM") / "checkpoints/last.ckpt"
    until = time.monotonic() + 60
    while not last.exists() and time.monotonic() < until:
        time.sleep(0.05)
    for one in processes_of(fit.pid):
        os.kill(int(one), signal.SIGINT)
    said = fit.communicate(timeout=60)[1]
    assert (fit.returncode, said) == (130, f"lit_fed: interrupted; {LAST}\n")
    assert nobody_is_left(fit.pid)


@pytest.mark.parametrize(("lost", "said"), [(0, ""), (1, f"lit_fed: {ENDED}; {LAST}\n")])
def test_the_other_rank_of_a_launcher_ends_in_a_line(tmp_path, lost, said):
    """As under torchrun, which names the lost rank."""
    ranks = [start(arguments(tmp_path, *sent(lost, "SIGKILL")), **one) for one in of_ranks(2)]
    ends = [(one.communicate(timeout=60)[1], one.returncode) for one in ranks]
    assert ends[1 - lost] == (said, 1)
    assert ends[lost] == ("", -signal.SIGKILL)


@pytest.mark.parametrize("rank", [0, 1])
def test_sigterm_to_one_rank_ends_both(tmp_path, whole, rank):
    work = partial(command_line, arguments(tmp_path, *sent(rank, "SIGTERM")))
    ranks = in_two_ranks(work, timeout=60, check=False)
    said = [one.stderr for one in ranks]
    assert [one.returncode for one in ranks] == [143, 143], said
    assert said == [f"lit_fed: terminated; {LAST}\n", ""]
    if rank == 0:
        finished = run(arguments(tmp_path, "--ckpt_path", "last"), ranks=2)
        assert finished.returncode == 0, finished.stderr
        assert outcome(tmp_path) == whole


def processes_of(session):
    """Processes of a session that are not over."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(path.parent.name)
    return found


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
