"""The two lanes of the tests, their options, and what they share.

`pytest` runs the short lane, `pytest --everything` or a path all tests. Long is a test
- that `tests/long_tests` names,
- marked `every_combination`, of an algorithm whose class does not promise that (`in_every_combination`),
- of an algorithm that differs from another in the client trainer alone.
"""

import hashlib
import importlib
import math
import re
import signal
import zlib
from typing import NamedTuple

import pytest
from xdist.scheduler import LoadScopeScheduling

DRAWN_SECONDS = 150
"""CPU time of the long tests that `--drawn` adds."""

USUAL_SECONDS = 0.2
"""CPU time of a test that `tests/long_tests` does not name."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what can be chosen on the command line."""
    parser.addoption("--everything", action="store_true", help="run the long tests as well")
    parser.addoption(
        "--drawn", metavar="TEXT", help=f"run long tests of about {DRAWN_SECONDS} s as well, drawn by a text"
    )
    parser.addoption(
        "--public-names", action="store_true", help="run as with a PyTorch that has no private names that speed uses"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Load what tests share; a path on the command line stands for all of its tests."""
    if not hasattr(config, "workerinput") and config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        config.option.everything = True
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in the background of a shell
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(importlib.import_module("shared"), "shared")


# ---------------------------------------------------------------------- the lanes
class Row(NamedTuple):
    """A line of `tests/long_tests`."""

    seconds: float
    of: int
    """Of so many tests whose names start so, one stays in the short lane; 0 if none does."""
    start: str


def rows_of(config: pytest.Config, items: list[pytest.Item]) -> dict[str, list[Row]]:
    """Rows of long tests by their file, the longest start of a name first: that is the one meant where several fit."""
    rows: dict[str, list[Row]] = {}
    for line in (config.rootpath / "tests/long_tests").read_text().splitlines():
        if line and not line.startswith("#"):
            seconds, of, start = re.fullmatch(r"(\S+) (?:1/(\d+) )?(.+)", line).groups()
            rows.setdefault(start.partition("::")[0], []).append(Row(float(seconds), int(of or 0), start))
    if gone := [file for file in rows if not (config.rootpath / file).exists()]:
        raise pytest.UsageError(f"tests/long_tests names missing files: {', '.join(gone)}")
    if not config.option.everything:
        names: dict[str, list[str]] = {}
        for item in items:
            names.setdefault(item.nodeid.partition("::")[0], []).append(item.nodeid)
        starts = [row.start for file in rows.keys() & names.keys() for row in rows[file]]
        if gone := [one for one in starts if not any(name.startswith(one) for name in names[one.partition("::")[0]])]:
            raise pytest.UsageError(f"tests/long_tests names tests that are not there: {', '.join(gone)}")
    return {file: sorted(of_file, key=lambda row: -len(row.start)) for file, of_file in rows.items()}


def promised(item: pytest.Item) -> bool:
    """Whether the test is not of a combination, or the class of its algorithm promises every one."""
    if item.get_closest_marker("every_combination") is None:
        return True
    algorithms = importlib.import_module("lit_fed.algorithms")
    params = item.callspec.params.values() if hasattr(item, "callspec") else ()
    values = [getattr(algorithms, one.partition(" ")[0], None) if isinstance(one, str) else one for one in params]
    return all(getattr(one, "in_every_combination", True) for one in values)


def of_the_chosen_trainer(item: pytest.Item) -> bool:
    """Whether no other test differs in the client trainer alone, or this is the one of the two that its name chooses.

    That both trainers give the same is what the conformance tests check, for every algorithm.
    """
    if item.path.parent.name not in ("algorithms", "conformance"):
        return True
    params = item.callspec.params if hasattr(item, "callspec") else {}
    trainers = [params[name] for name in ("client_trainer", "strict_trainer") if name in params]
    if not trainers:
        return True
    name = item.nodeid.replace(trainers[0].name, "")
    return zlib.crc32(name.encode()) % 2 == (trainers[0].name == "vectorized")


def long_ones(config: pytest.Config, items: list[pytest.Item]) -> dict[pytest.Item, float]:
    """Long tests → CPU time of each."""
    rows = rows_of(config, items)
    long: dict[pytest.Item, float] = {}
    divided: dict[Row, list[pytest.Item]] = {}
    for item in items:
        of_file = rows.get(item.nodeid.partition("::")[0], [])
        row = next((row for row in of_file if item.nodeid.startswith(row.start)), None)
        is_short = promised(item) and of_the_chosen_trainer(item)
        if row is not None and row.of and is_short:
            divided.setdefault(row, []).append(item)
        if seconds := row.seconds if row is not None else 0.0 if is_short else USUAL_SECONDS:
            long[item] = seconds
    for row, of_row in divided.items():
        of_row.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
        for item in of_row[: math.ceil(len(of_row) / row.of)]:
            del long[item]
    return long


def drawn(long: dict[pytest.Item, float], text: str) -> set[pytest.Item]:
    """Long tests of `DRAWN_SECONDS` in all, drawn by a text."""
    order = sorted(long, key=lambda item: hashlib.sha256(f"{text} {item.nodeid}".encode()).digest())
    taken, left = set(), DRAWN_SECONDS
    for item in order:
        if long[item] <= left:
            taken.add(item)
            left -= long[item]
    return taken


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out long tests, and begin with the files that take longest: workers take one file after the other."""
    places = (config.rootpath / ".ci/lowest_tests").read_text().split()
    if gone := [place for place in places if not (config.rootpath / place.partition("::")[0]).exists()]:
        raise pytest.UsageError(f".ci/lowest_tests names missing files: {', '.join(gone)}")
    long = long_ones(config, items)
    for item in long:
        item.add_marker("long")
    if not config.option.everything:
        left_out = set(long) - (drawn(long, config.option.drawn) if config.option.drawn else set())
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    of_files: dict[object, float] = {}
    for item in items:
        of_files[item.path] = of_files.get(item.path, 0.0) + long.get(item, 0.0)
    items.sort(key=lambda item: -of_files[item.path])


# ---------------------------------------------------------------------- the workers
class Scheduling(LoadScopeScheduling):
    """A worker takes the tests of a file; those of the longest are divided by the algorithm."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        algorithm = re.search(r"[\[-]([A-Z]\w+)", nodeid) if path == "tests/conformance/test_algorithms.py" else None
        return path if algorithm is None else f"{path} {algorithm[1]}"


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling:
    """Divide tests so."""
    return Scheduling(config, log)
