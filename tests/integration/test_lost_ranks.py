"""Ranks that die, stop or are asked to end: all of them end, one says which is missing, and the run goes on exactly."""

import pytest
from running import SMALL, folder, history, numbers, of_ranks, run, start

TIMEOUT = 2
TWO = ["--trainer.devices", "2", "--trainer.strategy", "fed_ddp", "--trainer.timeout", str(TIMEOUT)]
QUIET = [
    "--trainer.enable_progress_bar", "false", "--trainer.callbacks+=RunReport", "--trainer.callbacks.pictures=false",
]  # fmt: skip
LAST = "the last finished round is in last.ckpt, --ckpt_path last goes on from it"
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
    print(said, nothing, flush=True)
    assert status == 1, said
    assert said.startswith(f"lit_fed: rank {lost} {what}"), said
    assert said.endswith(f"{LAST}\n")
    assert len(said.splitlines()) == 1
    assert nothing == ""
    if lost == 1:
        finished = run(arguments(tmp_path, "--ckpt_path", "last"), ranks=2)
        assert finished.returncode == 0, finished.stderr
        assert outcome(tmp_path) == whole
