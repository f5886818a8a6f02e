"""Rooms can be taken out: without one of them, its commands and its tests, everything else is imported and runs."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from without_a_room import COMMANDS, ROOMS

ROOT = Path(__file__).parents[2]

OPTIONS = {"personal": ("personal", "batch_norm"), "faults": ("faults",), "serving": ("serving",)}
"""Options of a room that take more than objects of its classes, so that no test has to name one."""


def names(room, place):
    """The tests, scripts and configurations that name the room's modules, classes or options, or import what does."""
    files = [file for path in ROOMS[room] for file in sorted((ROOT / "lit_fed" / path).rglob("*.py"))]
    files += [ROOT / "lit_fed" / path for path in ROOMS[room] if path.endswith(".py")]
    modules = [r"\.".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(r"\.__init__") for file in files]
    written = "".join(file.read_text() for file in files if "wrappers" in file.parts)
    classes = re.findall(r"^@dataclass\(frozen=True\)\nclass (\w+)\(", written, re.MULTILINE)  # that tests may name
    options = [rf"\b{name}=|model\.{name}\b|\"{name}\":" for name in OPTIONS.get(room, ())]
    named = re.compile("|".join([*(rf"\b{name}\b" for name in (*modules, *classes)), *options]))
    commands = re.compile("|".join(rf"\"{name}\"" for name in COMMANDS.get(room, ())) or "$^")  # in a test
    every = {path for one in ("tests", "scripts") for path in (place / one).rglob("*.py")}
    every |= {*(place / "configs").rglob("*.yaml")}  # whose comments have words of other fields
    every -= {place / "tests/integration" / name for name in ("test_cut.py", "without_a_room.py")}
    found = {path for path in every if named.search(re.sub(r"^# .*", "", path.read_text(), flags=re.MULTILINE))}
    found |= {path for path in every if path.name.startswith("test_") and commands.search(path.read_text())}
    while True:
        shared = "|".join(path.stem for path in found if path.stem != "__init__") or "-"
        imports = re.compile(rf"^(?:from|import) (?:references import )?(?:{shared})\b", re.MULTILINE)
        more = {path for path in every - found if imports.search(path.read_text())}
        if not more:
            return found
        found |= more


def copy_without(room, place):
    """A copy of the repository without a room and what names it."""
    for name in ("lit_fed", "configs", "tests", "scripts", "docs"):
        shutil.copytree(ROOT / name, place / name)  # with what Python has compiled
    for name in ("pyproject.toml", "README.md", "SECURITY.md", "CHANGELOG.md", "mkdocs.yml", ".ci/lowest_tests"):
        (place / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, place / name)
    for path in names(room, place):
        path.unlink()
    for name in ("tests/long_tests", ".ci/lowest_tests"):
        lines = (place / name).read_text().splitlines()
        files = [re.sub(r"^[\d.]+ (?:1/\d+ )?", "", one).partition("::")[0] for one in lines]
        there = [one for one, file in zip(lines, files, strict=True) if one and (place / file).exists()]
        (place / name).write_text("\n".join(there) + "\n")
    for name in ROOMS[room]:
        path = place / "lit_fed" / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


@pytest.mark.parametrize("room", ROOMS)
def test_the_rest_is_green(room, tmp_path):
    """All tests of the rest are collected, with the examples of docstrings, and so every module is imported.

    Those of `without_a_room.py` run, and of every other file one of forty that are not long, at least one. Tests of
    the documentation are left out: its pages name all rooms.
    """
    copy_without(room, tmp_path)
    there = os.pathsep.join((str(tmp_path), str(tmp_path / "tests/integration")))
    environment = os.environ | {"PYTHONPATH": there}
    environment.pop("PYTEST_XDIST_WORKER", None)
    options = ["-o", "addopts=--strict-markers --doctest-modules", "-q", "-p", "no:cacheprovider", "--tb=short"]
    options += ["--ignore", "tests/docs", "--ignore", "tests/integration/test_documentation.py"]
    own = ["-p", "without_a_room", "--without", room, "tests/integration/without_a_room.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *own, "tests", "lit_fed"],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:]
    assert int(re.search(r"(\d+) deselected", done.stdout)[1]) > 7000  # as many of them as were collected
