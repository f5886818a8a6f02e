"""Rooms can be taken out: without one of them, its commands and its tests, everything else is imported and runs."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

ROOMS = {
    "nodes": ("deployment", "command_line/deployed.py", "command_line/client.py", "command_line/flower_app.py"),
    "benchmark": ("benchmark",),
    "results pages": ("command_line/report.py",),
    "sweep": ("command_line/sweep.py", "command_line/sweep_file.py", "command_line/sweep_results.py"),
    "export": ("training/export.py", "training/peft_folder.py"),
    "privacy": ("wrappers/privacy", "callbacks/guarantees.py"),
    "compression": ("wrappers/compression",),
    "robust": ("wrappers/robust", "callbacks/robust_rounds.py"),
    "faults": ("wrappers/faults", "callbacks/client_faults.py"),
    "personal": ("wrappers/personal",),
    "selection": ("wrappers/selection",),
    "sums": ("wrappers/secure", "callbacks/secure_rounds.py"),
}
"""What each room is made of."""

COMMANDS = {
    "nodes": ("client", "federation", "certificates", "flower-app"), "benchmark": ("benchmark",),
    "results pages": ("report",), "sweep": ("sweep",), "export": ("export",),
}  # fmt: skip

OPTIONS = {"personal": ("personal", "batch_norm")}
"""Options of a room whose values are no objects of its classes, so that no test has to name one."""

DRAWN = 30
"""Tests of the rest that run."""

EVERY_MODULE = """
import importlib, pathlib, sys
import lit_fed
package = pathlib.Path(lit_fed.__file__).parent
assert str(package) == sys.argv[1], package
names = [path.relative_to(package.parent).with_suffix("") for path in package.rglob("*.py")]
for name in sorted(".".join(one.parts).removesuffix(".__init__") for one in names):
    if not name.endswith("__main__"):
        importlib.import_module(name)
assert {"FedEM", "FederatedTrainer"} <= set(dir(lit_fed))
for name in dir(lit_fed):
    getattr(lit_fed, name)
"""


def tests_of(room, place):
    """The tests and scripts that name the room's modules, classes or options, or import what does."""
    files = [file for path in ROOMS[room] for file in sorted((ROOT / "lit_fed" / path).rglob("*.py"))]
    files += [ROOT / "lit_fed" / path for path in ROOMS[room] if path.endswith(".py")]
    modules = [r"\.".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(r"\.__init__") for file in files]
    written = "".join(file.read_text() for file in files if "wrappers" in file.parts)
    classes = re.findall(r"^@dataclass\(frozen=True\)\nclass (\w+)\(", written, re.MULTILINE)  # that tests may name
    options = [rf"\b{name}=|model\.{name}\b|\"{name}\":" for name in OPTIONS.get(room, ())]
    commands = [rf"\"{name}\"" for name in COMMANDS.get(room, ())]
    named = re.compile("|".join([*(rf"\b{name}\b" for name in (*modules, *classes)), *options, *commands]))
    every = {*(place / "tests").rglob("*.py"), *(place / "scripts").rglob("*.py")}
    found = {path for path in every if named.search(path.read_text())}
    while True:
        shared = "|".join(path.stem for path in found if path.stem != "__init__") or "-"
        imports = re.compile(rf"^(?:from|import) (?:references import )?(?:{shared})\b", re.MULTILINE)
        more = {path for path in every - found if imports.search(path.read_text())}
        if not more:
            return found
        found |= more


@pytest.fixture(scope="module", params=ROOMS)
def cut(request, tmp_path_factory):
    """A copy without a room and its tests, and the room's name."""
    place = tmp_path_factory.mktemp("cut")
    for name in ("lit_fed", "configs", "tests", "scripts", "docs"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "SECURITY.md", "CHANGELOG.md", "mkdocs.yml", ".ci/lowest_tests"):
        (place / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, place / name)
    for path in tests_of(request.param, place):
        path.unlink()
    for name in ("tests/long_tests", ".ci/lowest_tests"):
        lines = (place / name).read_text().splitlines()
        there = [one for one in lines if one and (place / one.split()[-1].partition("::")[0]).exists()]
        (place / name).write_text("\n".join(there) + "\n")
    for name in ROOMS[request.param]:
        path = place / "lit_fed" / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return place, request.param


def python(place, *arguments):
    environment = os.environ | {"PYTHONPATH": str(place)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    return subprocess.run([sys.executable, *arguments], cwd=place, env=environment, capture_output=True, text=True)


def test_every_other_module_is_imported(cut):
    place, _ = cut
    done = python(place, "-c", EVERY_MODULE, str(place / "lit_fed"))
    assert done.returncode == 0, done.stderr


def test_the_quickstart_runs_and_goes_on(cut):
    place, _ = cut
    fit = ["-m", "lit_fed", "fit", "--config", "configs/experiment/quickstart.yaml", "--trainer.accelerator", "cpu"]
    for rounds in ("2", "3"):
        resumed = [] if rounds == "2" else ["--ckpt_path", "last"]
        done = python(place, *fit, "--trainer.max_epochs", rounds, "--trainer.enable_progress_bar", "false", *resumed)
        assert done.returncode == 0, done.stderr
    folder = place / "runs" / "quickstart" / "version_0"
    assert len((folder / "metrics.csv").read_text().splitlines()) >= 4
    done = python(place, "-m", "lit_fed", "test", "--ckpt_path", str(folder / "checkpoints" / "last.ckpt"))
    assert done.returncode == 0, done.stderr


def test_commands_of_the_room_are_refused_in_one_line(cut):
    place, room = cut
    page = python(place, "-m", "lit_fed", "--help").stdout
    assert "\n  fit " in page
    assert python(place, "-m", "lit_fed", "fit", "--help").returncode == 0
    for command in COMMANDS.get(room, ()):
        assert f"\n  {command} " not in page
        done = python(place, "-m", "lit_fed", command, "--help")
        line = f"lit_fed: {command}: lit_fed is installed here without its {ROOMS[room][0]}\n"
        assert (done.returncode, done.stdout, done.stderr) == (2, "", line)
    if room == "nodes":
        done = python(place, "-m", "lit_fed", "fit", "--data.dataset", "Federation")
        assert done.returncode == 2
        assert done.stderr.startswith("lit_fed: --data.dataset: ")
        assert "Digits" in done.stderr  # the data sets that are there
        assert "Federation," not in done.stderr


def test_the_tests_of_the_rest_are_green(cut):
    """All are collected, and some, drawn by the room, run."""
    place, room = cut
    options = ["-m", "pytest", "-o", "addopts=--strict-markers", "-q", "-p", "no:cacheprovider", "--everything"]
    collected = python(place, *options, "--collect-only", "tests")
    assert collected.returncode == 0, collected.stdout[-3000:]
    names = [
        line
        for line in collected.stdout.splitlines()
        if "::" in line and not re.search(r"integration|tests/docs", line)
    ]
    assert len(names) > 8000
    order = sorted(names, key=lambda name: hashlib.sha256(f"{room} {name}".encode()).digest())
    done = python(place, *options, *order[:DRAWN])
    assert done.returncode == 0, done.stdout[-3000:]
