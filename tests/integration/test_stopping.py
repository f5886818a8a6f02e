"""What ends a run from outside: signals, a full disk, the death of another process; and how it goes on."""

import gc
import os
import re
import runpy
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from interruptions import file_size_limit
from running import SMALL, folder, history, numbers, start

from lit_fed.cli import FederatedCLI, main
from lit_fed.training import stopping

TINY = [
    "--data.dataset", "Digits", "--data.num_clients", "4", "--trainer.accelerator", "cpu", "--trainer.max_epochs", "3",
    "--trainer.enable_progress_bar", "false",
]  # fmt: skip
SAMPLES = ["--model.algorithm", "FedEM"]
NO_PICTURES = ["--trainer.callbacks+=RunReport", "--trainer.callbacks.pictures=false"]
TWO = ["--trainer.devices", "2", "--trainer.strategy", "fed_ddp"]
COMPLETE = "the training is complete: the same fit with --ckpt_path last makes the test and its files again"
LAST = "the last finished round is in last.ckpt, --ckpt_path last goes on from it"


def fit(out, *arguments, pictures=False):
    report = [] if pictures else NO_PICTURES
    main(["fit", *TINY, *SAMPLES, "--trainer.default_root_dir", str(out), *arguments, *report])


def ended(capsys, out, *arguments, pictures=False):
    """Status of a fit in this process, and what it said last."""
    with pytest.raises(SystemExit) as stopped:
        fit(out, *arguments, pictures=pictures)
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return stopped.value.code, said


def sent(moment, name, **settings):
    values = {"moment": moment, "name": name, **settings}
    given = [f"--trainer.callbacks.{key}={value}" for key, value in values.items()]
    return ["--trainer.callbacks+=interruptions.Signal", *given]


def rounds_in(path):
    return torch.load(path / "checkpoints/last.ckpt", weights_only=True)["global_step"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of three rounds that nothing cut short."""
    out = tmp_path_factory.mktemp("whole")
    fit(out)
    return folder(out, "FedEM")


@pytest.mark.parametrize(
    ("moment", "name", "status", "rounds", "advice"),
    [
        ("client", "SIGTERM", 143, 2, LAST),
        ("client", "SIGINT", 130, 1, LAST),
        ("test", "SIGTERM", 143, 3, COMPLETE),
        ("test", "SIGINT", 130, 3, COMPLETE),
        ("report", "SIGINT", 130, 3, COMPLETE),
    ],
)
def test_a_signal_ends_a_run_with_a_message_and_it_goes_on(
    capsys, tmp_path, whole, moment, name, status, rounds, advice
):
    what = "terminated" if name == "SIGTERM" else "interrupted"
    assert ended(capsys, tmp_path, *sent(moment, name)) == (status, f"lit_fed: {what}; {advice}\n")
    cut = folder(tmp_path, "FedEM")
    assert rounds_in(cut) == rounds
    assert not (cut / "summary.json").exists()
    fit(tmp_path, "--ckpt_path", "last")
    assert numbers(cut) == numbers(whole)
    assert history(cut) == history(whole)


def test_an_interrupt_before_the_first_checkpoint_leaves_nothing_to_go_on_from(capsys, tmp_path):
    said = ended(capsys, tmp_path, *sent("client", "SIGINT", round_idx=0))
    assert said == (130, "lit_fed: interrupted; there is no checkpoint to go on from\n")


def test_an_interrupt_of_another_command_has_no_advice(capsys, tmp_path):
    with pytest.raises(SystemExit) as stopped:
        main(["test", *TINY, *sent("test", "SIGINT")])
    assert stopped.value.code == 130
    assert capsys.readouterr().err.splitlines()[-1] == "lit_fed: interrupted"


def test_a_sigterm_between_a_fit_and_its_test_ends_it_in_order(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(FederatedCLI, "after_fit", lambda cli: os.kill(os.getpid(), signal.SIGTERM))
    assert ended(capsys, tmp_path) == (143, f"lit_fed: terminated; {LAST}\n")
    assert rounds_in(folder(tmp_path, "FedEM")) == 3
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_sigterm_before_a_fit_ends_it_in_order(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(FederatedCLI, "instantiate_classes", lambda cli: os.kill(os.getpid(), signal.SIGTERM))
    assert ended(capsys, tmp_path) == (143, "lit_fed: terminated\n")
    assert not (tmp_path / "FedEM").exists()


def test_sigterm_to_one_rank_ends_both_behind_the_round(tmp_path):
    out = ["--trainer.default_root_dir", str(tmp_path)]
    ending = start(["fit", *SMALL, *SAMPLES, *TWO, *sent("client", "SIGTERM", rank=1), *out])
    said = ending.communicate(120)[1]
    assert ending.returncode == 143, said
    assert said == f"lit_fed: terminated; {LAST}\n"
    assert rounds_in(folder(tmp_path, "FedEM")) == 2


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_rank_whose_parent_died_ends():
    """Forked: this process starts a parent, which starts a rank and dies; the rank holds a pipe open while it lives."""
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        if os.fork() == 0:
            stopping.SECONDS_BETWEEN_LOOKS = 0.05
            stopping.end_with_parent()
            time.sleep(60)
        time.sleep(0.3)  # the rank looks at its parent first
        os._exit(0)
    os.close(writer)
    os.waitpid(parent, 0)
    begin = time.monotonic()
    assert os.read(reader, 1) == b""
    os.close(reader)
    assert time.monotonic() - begin < 20


def test_ctrl_c_while_libraries_load_and_unload_says_nothing(tmp_path):
    """A library that is interrupted while it is imported, and once more while the process ends."""
    interrupt = "os.kill(os.getpid(), signal.SIGINT); time.sleep(0.1)"
    (tmp_path / "jsonargparse.py").write_text(
        f"import atexit, os, signal, time\natexit.register(lambda: ({interrupt.replace('; ', ', ')}))\n{interrupt}\n"
    )
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    ending = subprocess.run(
        [sys.executable, "-m", "lit_fed", "fit"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        check=False,
    )
    assert (ending.returncode, ending.stderr) == (130, "")


# ------------------------------------------------------------------ a full disk
@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
def test_ctrl_c_before_a_command_has_begun_is_answered(debug, capsys, monkeypatch):
    """In the microseconds between the programs that answer it while libraries load and while a command runs."""

    def interrupted():
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("lit_fed.cli.keep_notices_out", interrupted)
    monkeypatch.setattr(sys, "argv", ["lit_fed", "fit"])
    monkeypatch.delitem(sys.modules, "lit_fed.__main__", raising=False)  # of earlier tests
    monkeypatch.setattr(gc, "freeze", lambda: None)  # for the process of a command, not for that of all tests
    if debug:
        monkeypatch.setenv("LIT_FED_DEBUG", "1")
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(KeyboardInterrupt if debug else SystemExit) as stop:
            runpy.run_module("lit_fed", run_name="__main__")
    finally:
        signal.signal(signal.SIGINT, before)
    if not debug:
        assert stop.value.code == 130
        assert capsys.readouterr().err == "lit_fed: interrupted\n"


def test_a_checkpoint_that_cannot_be_written_leaves_the_last_good_one(capsys, tmp_path, whole):
    ended(capsys, tmp_path, *sent("client", "SIGTERM"))
    path = folder(tmp_path, "FedEM") / "checkpoints/last.ckpt"
    before = path.read_bytes()
    with file_size_limit(5000):
        status, said = ended(capsys, tmp_path, "--ckpt_path", "last")
    assert status == 1
    assert said == f"lit_fed: {path} cannot be written: File too large; lift the limit (ulimit -f); {LAST}\n"
    assert path.read_bytes() == before
    fit(tmp_path, "--ckpt_path", "last")
    assert numbers(folder(tmp_path, "FedEM")) == numbers(whole)


def test_a_client_state_that_cannot_be_written_is_named(capsys, tmp_path):
    local = ["--model.algorithm", "Local", "--model.client_memory_gb", "0", "--model.network", "MLP"]
    with file_size_limit(9000):
        status, said = ended(capsys, tmp_path, *local)
    assert status == 1
    assert re.search(r"/clients/\d\.0\.pt cannot be written: File too large", said)
    assert said.endswith("there is no checkpoint to go on from\n")
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize(("limit", "name"), [(5000, ".png"), (100, "config.yaml")])
@pytest.mark.usefixtures("rendered")
def test_a_picture_or_text_that_cannot_be_written_is_named(capsys, tmp_path, limit, name):
    with file_size_limit(limit):
        status, said = ended(capsys, tmp_path, "--trainer.enable_checkpointing", "false", pictures=True)
    assert status == 1
    assert f"{name} cannot be written: File too large; lift the limit (ulimit -f)" in said
    assert not list(tmp_path.rglob("summary.json"))


def test_a_table_that_cannot_be_written_is_named(capsys, tmp_path, whole):
    output = tmp_path / "predictions.csv"
    last = whole / "checkpoints/last.ckpt"
    with file_size_limit(5000), pytest.raises(SystemExit) as stopped:
        main(["predict", "--ckpt_path", str(last), "--output", str(output)])
    assert stopped.value.code == 1
    said = capsys.readouterr().err
    assert said == f"lit_fed: {output} cannot be written: File too large; lift the limit (ulimit -f)\n"
    assert not output.exists()


def test_a_row_of_metrics_that_cannot_be_written_is_named(capsys, tmp_path):
    with file_size_limit(3000):  # config.yaml fits
        long = ["--trainer.enable_checkpointing", "false", "--trainer.max_epochs", "40"]
        status, said = ended(capsys, tmp_path, *long)
    assert status == 1
    assert (folder(tmp_path, "FedEM") / "metrics.csv").read_text().count("\n") > 2
    assert "version_0/metrics.csv cannot be written: File too large" in said


# ------------------------------------------------------------------ who may read it
def test_what_clients_keep_is_for_the_owner_alone(tmp_path):
    before = os.umask(0o022)
    try:
        fit(tmp_path, "--model.algorithm", "Local", "--model.client_memory_gb", "0", "--model.network", "MLP")
    finally:
        os.umask(before)
    made = folder(tmp_path, "Local")
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in made.rglob("*") if path.is_file()}
    private = {path for path, mode in modes.items() if mode == 0o600}
    assert private == {*(made / "clients").glob("*.pt"), *(made / "checkpoints").iterdir()}
    assert len(private) == 2 * 5  # of the last checkpoint, and of the one before it
    assert {mode for path, mode in modes.items() if path not in private} == {0o644}
