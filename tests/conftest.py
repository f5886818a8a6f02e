"""Options of the tests, and what they share."""

import importlib
import signal

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what can be chosen on the command line and in pyproject.toml."""
    parser.addoption(
        "--both-client-trainers", action="store_true", help="run the tests of algorithms with each client trainer"
    )
    parser.addoption(
        "--public-names", action="store_true", help="run as with a PyTorch that has no private names that speed uses"
    )
    parser.addini("long_files", "files whose tests begin first, in this order", type="linelist")


def pytest_configure(config: pytest.Config) -> None:
    """Load what tests share."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in the background of a shell
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(importlib.import_module("shared"), "shared")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the files that take longest first: workers take one file after the other."""
    long = [config.rootpath / name for name in config.getini("long_files")]
    if gone := [str(path) for path in long if not path.is_file()]:
        raise pytest.UsageError(f"long_files in pyproject.toml names missing files: {', '.join(gone)}")
    lowest = [line.partition("::")[0] for line in (config.rootpath / ".ci/lowest_tests").read_text().split()]
    if gone := [name for name in lowest if not (config.rootpath / name).exists()]:
        raise pytest.UsageError(f".ci/lowest_tests names missing files: {', '.join(gone)}")
    items.sort(key=lambda item: long.index(item.path) if item.path in long else len(long))
