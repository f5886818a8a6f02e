"""What a terminal shows: the start page, the help of every command and class, progress."""

import contextlib
import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios

import pytest
from running import command_line, forked, run

import lit_fed.callbacks
import lit_fed.cli
from lit_fed.cli import WITHOUT_TRAINER, FederatedCLI, main
from lit_fed.command_line.classes import CLASSES, subclasses
from lit_fed.command_line.help import FIRST_HOUR
from lit_fed.command_line.parser import FederatedParser
from lit_fed.command_line.start_page import COMMANDS, OF_DEPLOYMENT, start_page
from lit_fed.core.local_solver import LocalSolver

OWN = [
    (setting, one)
    for setting, base in CLASSES.items()
    for one in subclasses(base)
    if one.__module__.startswith("lit_fed.")  # and not of another test
]
OWN += [
    ("trainer.callbacks", getattr(lit_fed.callbacks, name)) for name in lit_fed.callbacks.__all__ if name[0].isupper()
]
OWN += [("model.solver", LocalSolver)]


def said(arguments):
    """Standard output of a command that ends well before it runs anything."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code in (0, None)
    return out.getvalue()


def test_version_and_start_page_need_no_torch():
    script = "import sys; from lit_fed.__main__ import main; sys.argv = ['lit-fed', '--version']; main(); "
    script += "print(sorted({'torch', 'lightning', 'numpy', 'jsonargparse'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(r"lit_fed \d+\.\d+\.\d+\n\[\]\n", out)
    nothing = run([])
    assert (nothing.returncode, nothing.stdout) == (2, "")
    assert nothing.stderr == start_page()


def test_start_page_lists_all_commands_in_80_columns():
    assert set(COMMANDS) - set(OF_DEPLOYMENT) == {*FederatedCLI.subcommands(), *WITHOUT_TRAINER}
    assert all(len(line) <= 80 for line in start_page().splitlines())
    assert all(f"\n  {name} " in start_page() for name in COMMANDS)


@pytest.mark.parametrize("command", [one for one in COMMANDS if one not in OF_DEPLOYMENT])
def test_help_of_commands(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    page = said([command, "--help", *(["all"] if command == "fit" else [])])
    where = {"benchmark": " ACTION"}.get(command, "")
    assert page.startswith(f"usage: python -m lit_fed {command}{where} [options]")
    assert f"\n\n{COMMANDS[command][:40]}" in page
    assert all(len(line) <= 120 for line in page.splitlines())
    for spelling in ("<class", "class_path", ":class:", ":paramref:", "Optional[", "limit_train_batches"):
        assert spelling not in page
    if command == "fit":
        assert "what is encoded as one vector: each `leaf` of a model" in " ".join(page.split()), "of a feature"
        assert "--model.algorithm ALGORITHM the algorithm with its hyper-parameters" in " ".join(page.split())
        assert page.index("--ckpt_path") < page.index("--model.algorithm") < page.index("--trainer.max_epochs")


def test_help_of_fit_begins_with_twelve_options(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    page = said(["fit", "--help"])
    assert len(re.findall(r"^  -", page, re.MULTILINE)) == len(FIRST_HOUR) == 12
    assert re.search(r"\n12 options to begin with:\n  -c( CONFIG)?, --config CONFIG", page)  # the first until 3.12
    assert all(f"--{name}" in page for name in FIRST_HOUR)
    assert len(page.splitlines()) < 80 < 400 < len(said(["fit", "--help", "all"]).splitlines())
    for rest in re.findall(r"fit (--.*?)(?:,|;|$)", page[page.index("\nall options:") :], re.MULTILINE):
        assert said(["fit", *rest.split()])
    wrong = run(["fit", "--help", "more"])
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "--help: invalid choice: 'more' (choose from 'all')" in wrong.stderr


@pytest.mark.parametrize(("place", "one"), OWN, ids=lambda value: value if isinstance(value, str) else value.__name__)
def test_help_of_classes(place, one, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    parser = FederatedParser(description=f"Help for --{place}.help={one.__module__}.{one.__name__}")
    parser.add_class_arguments(one, place, skip={2} if place == "model.network" else set())
    own = [action for action in parser._actions if action.dest.startswith(f"{place}.")]
    assert not [action.dest for action in own if not (action.help or "").strip()]
    page = parser.format_help()
    assert page.startswith("usage: python -m lit_fed fit --")
    assert len(parser.description) > 20
    assert parser.description[:40].split()[0] in page
    assert all(len(line) <= 120 for line in page.splitlines())
    for spelling in ("<class '", "class_path", ":class:", "Optional["):
        assert spelling not in page


def test_class_without_arguments_is_explained():
    assert "One global model" in said(["fit", "--model.algorithm.help", "FedAvg"])


def test_an_option_shows_its_range():
    assert "(type: float, [0, 1], default: 0.5)" in " ".join(said(["fit", "--model.algorithm.help", "APFL"]).split())


def on_terminal(columns, arguments):
    """Everything that a command writes to a terminal of this width."""
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process, written = forked(_typed, os.ttyname(end), arguments, TERM="xterm"), b""
    while process.is_alive() or select.select([terminal], [], [], 0)[0]:
        if select.select([terminal], [], [], 0.1)[0]:
            written += os.read(terminal, 65536)
    os.close(terminal)
    os.close(end)
    assert process.exitcode == 0, written.decode()
    return written.decode()


def _typed(terminal, arguments):
    """In a process of its own: the command line as a shell on this terminal starts it."""
    os.login_tty(os.open(terminal, os.O_RDWR))
    os.environ.pop("COLUMNS", None)
    command_line(arguments)


def test_progress_is_one_line_of_a_terminal(tmp_path):
    arguments = ["fit", "--data.dataset", "Digits", "--data.num_clients", "8", "--trainer.accelerator", "cpu"]
    written = on_terminal(80, [*arguments, "--trainer.max_epochs", "4", "--trainer.default_root_dir", str(tmp_path)])
    plain = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", written)
    drawn = [line for line in re.split(r"[\r\n]+", plain) if "round " in line]
    assert all(len(line) <= 80 for line in drawn)
    assert any(re.search(r"round \d/4 .*test accuracy 0\.\d{4}", line) for line in drawn)
    assert any("-:--:-- left" in line for line in drawn)
    assert re.search(r"round 4/4 \S+ test accuracy 0\.\d{4}", drawn[-1])
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h") > 0  # the cursor is hidden and shown again
    after = plain[plain.rindex("round 4/4") :]
    assert "seen" in after
    assert after.rstrip().splitlines()[-1].endswith("adds rounds")
    assert "last.ckpt" in after


def test_log_file_gets_plain_lines(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("lit_fed.callbacks.progress.SECONDS_BETWEEN_LINES", -1.0)
    arguments = ["--data.dataset", "Digits", "--data.num_clients", "4", "--trainer.accelerator", "cpu"]
    main(["fit", *arguments, "--trainer.max_epochs", "3", "--trainer.default_root_dir", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if "\x1b" in line or "\r" in line]
    assert lines[0] == "round 0/3, -:--:-- left"
    assert any(
        re.fullmatch(r"round 1/3, 4/4 clients, test accuracy 0\.\d{4}, 0:\d\d:\d\d left", line) for line in lines
    )
    assert any(re.fullmatch(r"round 1/3, 4 clients measured, .* left", line) for line in lines)
    assert any(re.fullmatch(r"round 3/3, test accuracy 0\.\d{4}", line) for line in lines)
    assert "test, 4/4 clients" in lines
    last = next(tmp_path.rglob("last.ckpt"))
    main(["predict", "--ckpt_path", str(last), "--output", str(tmp_path / "predictions.csv")])
    assert "predict, 4/4 clients" in capsys.readouterr().out.splitlines()
