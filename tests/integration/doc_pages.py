"""The pages of the documentation as a reader works through them: blocks in their order, in one folder."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from prepared import rendering
from running import command_line, ended, forked, here, in_two_ranks, run_script
from torch.distributed.run import parse_args

ROOT = Path(__file__).parents[2]
FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+?) -->\n)?(?P<beside><!-- in the background -->\n)?"
    r"```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$",
    flags=re.MULTILINE | re.DOTALL,
)
ROUNDS, MOST_ROUNDS = "--trainer.max_epochs 2", 6
FEW_TESTS = {"configs/data/synthetic.yaml": "--data.dataset.test_size 50"}
"""Of a million and a half test points, which take longer than all the rest, some are left."""
INSTALLS = re.compile(r"^pip install [^&\n]*(?:&& (?:pytest$)?)?", flags=re.MULTILINE)
"""Installations and the tests themselves are CI's business; what else follows on a line is run."""


PROGRAM = re.compile(r"(?:python -m lit_fed|lit-fed|python (\w[\w/]*\.py))((?: [^$|<>;&]+?)?)(?: > (\S+))?")
"""A command of lit_fed or of one of its scripts, its arguments, and the file that its output goes to."""


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str
    title: str | None
    reason: str | None
    """Why it cannot be run."""
    beside: bool = False
    """Whether it goes on while those behind it begin, as on another machine."""


def pages() -> list[str]:
    """All pages that a person wrote; those of the results are generated, and have tests of their own."""
    written = [
        ROOT / "README.md",
        *(path for part in (".", "guides", "reference") for path in (ROOT / "docs" / part).glob("*.md")),
    ]
    return sorted(str(path.relative_to(ROOT)) for path in written)


def blocks(page: str) -> list[Block]:
    """The blocks of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(found["language"], found["text"], found["title"], found["reason"], bool(found["beside"]))
        for found in FENCE.finditer(text)
    ]


def packages(page: str) -> list[str]:
    """Packages of extras without which a page is skipped, as it names them: `<!-- needs: datasets -->`."""
    found = re.search(r"^<!-- needs: (.+) -->$", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return found[1].split(", ") if found else []


def lines(block: Block) -> list[str]:
    """The commands of a bash block, continuations joined, installations left out."""
    text = INSTALLS.sub("", re.sub(r"\s*\\\n\s*", " ", block.text))
    return [line.split("  #")[0].strip() for line in text.splitlines() if line.strip()]


def fewer_rounds(text: str) -> str:
    """At most six rounds in a command or program."""
    return re.sub(r"(?<=max_epochs[ =])\d+", lambda rounds: str(min(int(rounds[0]), MOST_ROUNDS)), text)


def shortened(command: str) -> str:
    """A `fit` of two rounds, or of at most six where a page asks for more."""
    command = fewer_rounds(command)
    is_fit = re.match(r"(?:python|torchrun .*?) ?-m lit_fed fit|lit-fed fit", command)
    answers = any(word in command for word in ("--trainer.max_epochs", "help", "--print_config"))
    fewer = [option for config, option in FEW_TESTS.items() if config in command]
    return " ".join([command, ROUNDS, *fewer]) if is_fit and not answers else command


class Done(NamedTuple):
    """What came of a command or snippet."""

    status: int
    output: str


def run_page(page: str, folder: Path, *, rendered: bool = False) -> Iterator[tuple[Block, Done]]:
    """What comes of the blocks of a page that can be run; those in the background end before others begin."""
    beside: list[tuple[Block, Any, Path]] = []
    for block in [*blocks(page), None]:
        if block is not None and block.reason is not None:
            continue
        if block is not None and block.beside:
            for line in lines(block):
                log = folder / f".output_{len(beside)}"
                command = PROGRAM.fullmatch(shortened(line))
                given = [command[1], *shlex.split(command[2])]
                beside.append((block, forked(_beside, given, folder, log, **_environment(folder)), log))
            continue
        while beside:
            earlier, process, log = beside.pop(0)
            status = ended(process, 300)
            yield earlier, Done(status, log.read_text(encoding="utf-8"))
        if block is not None:
            for done in run(block, folder, rendered=rendered):
                yield block, done


def run(block: Block, folder: Path, *, rendered: bool = False) -> list[Done]:
    """Do with a block what a reader does: write it to the file that its title names, import it, or run its commands."""
    for name in ("configs", "scripts"):
        if not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)
    if block.title is not None:
        (folder / block.title).write_text(block.text, encoding="utf-8")
    if block.language == "python":
        file = folder / (block.title or "snippet.py")
        file.write_text(fewer_rounds(block.text), encoding="utf-8")
        return [_here(_import, file.stem, folder, rendered)]
    if block.language == "bash" and block.title is None:
        return [_command(shortened(line), folder, rendered) for line in lines(block)]
    return []


def _command(line: str, folder: Path, rendered: bool) -> Done:
    """Run a command; those of lit_fed and of its scripts in this process, which has loaded it."""
    found = PROGRAM.fullmatch(line)
    if found:
        done = _here(_program, [found[1], *shlex.split(found[2])], folder, rendered)
        if found[3]:
            Path(found[3].replace("~", str(folder))).write_text(done.output, encoding="utf-8")
        return done
    if line.startswith("torchrun "):
        return _ranks(shlex.split(line)[1:], folder)
    environment = os.environ | _environment(folder) | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-e", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    return Done(done.returncode, done.stdout + done.stderr)


def _ranks(arguments: list[str], folder: Path) -> Done:
    """What torchrun would start on one machine, after it has read its own arguments."""
    given = parse_args(arguments)
    expected = (given.module, given.training_script, given.nnodes, given.nproc_per_node)
    assert expected == (True, "lit_fed", "1:1", "2"), arguments
    with contextlib.chdir(folder):
        ranks = in_two_ranks(
            partial(command_line, given.training_script_args), 600, check=False, **_environment(folder)
        )
    return Done(max(abs(one.returncode) for one in ranks), "".join(one.stdout + one.stderr for one in ranks))


def _environment(folder: Path) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg", "COLUMNS": "120", "WANDB_MODE": "offline", "HOME": str(folder),
    }  # fmt: skip


def _here(work: Callable[[Any], None], argument: Any, folder: Path, rendered: bool) -> Done:
    with rendering() if rendered else contextlib.nullcontext():
        done = here(partial(_as_typed, work, argument, folder), 600, folder, **_environment(folder))
    return Done(done.returncode, done.stdout + done.stderr)


def _as_typed(work: Callable[[Any], None], argument: Any, folder: Path) -> None:
    """Do what the shell would before the program begins; the names of the examples are this machine's."""
    sys.path.insert(0, str(folder))
    find = socket.getaddrinfo

    def found(host: Any, *rest: Any, **more: Any) -> Any:
        return find("127.0.0.1" if str(host).endswith(".example") else host, *rest, **more)

    with mock.patch("socket.getaddrinfo", found):
        work(argument)


def _beside(argument: Any, folder: Path, log: Path) -> None:
    """In a real process: a command that goes on while others begin."""
    with log.open("w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.chdir(folder)
    _as_typed(_program, argument, folder)


def _import(module: str) -> None:
    importlib.import_module(module)


def _program(line: list[str]) -> None:
    """The command line, or a script."""
    script, *arguments = line
    command_line(arguments) if script is None else run_script(script, arguments)
