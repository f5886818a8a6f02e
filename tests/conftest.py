"""The two lanes of the tests, their options, and what they share.

`pytest` runs the short lane, `pytest --everything` or a path all tests. Long is a test
- that `tests/long_tests` names,
- marked `every_combination`, of an algorithm whose class does not promise that (`in_every_combination`),
- of an algorithm that differs from another in the client trainer alone.
"""

import hashlib
import importlib
import re
import signal
import zlib

import pytest
from xdist.scheduler import LoadScopeScheduling

DRAWN_SECONDS = 240
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
def named_long(config: pytest.Config, items: list[pytest.Item]) -> dict[str, float]:
    """Starts of the names of long tests → seconds of each test; where several fit, the longest is meant."""
    lines = (config.rootpath / "tests/long_tests").read_text().splitlines()
    rows = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    files = {item.nodeid.partition("::")[0] for item in items}
    starts = [start for _, start in rows if start.partition("::")[0] in files and not config.option.everything]
    if gone := [start for start in starts if not any(item.nodeid.startswith(start) for item in items)]:
        raise pytest.UsageError(f"tests/long_tests names tests that are not there: {', '.join(gone)}")
    return {start: float(seconds) for seconds, start in rows}


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


def seconds_of(item: pytest.Item, named: dict[str, float]) -> float:
    """CPU time of a long test; 0 if it belongs to the short lane."""
    starts = [start for start in named if item.nodeid.startswith(start)]
    if starts:
        return named[max(starts, key=len)]
    return 0.0 if promised(item) and of_the_chosen_trainer(item) else USUAL_SECONDS


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
    named = named_long(config, items)
    places = [start.partition("::")[0] for start in named]
    places += [line.partition("::")[0] for line in (config.rootpath / ".ci/lowest_tests").read_text().split()]
    if gone := [place for place in places if not (config.rootpath / place).exists()]:
        raise pytest.UsageError(f"tests/long_tests or .ci/lowest_tests names missing files: {', '.join(gone)}")
    long = {item: seconds for item in items if (seconds := seconds_of(item, named))}
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
