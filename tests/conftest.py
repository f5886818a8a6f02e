"""Options of the tests, and what they share."""

import importlib

import pytest

pytest_plugins = ["side_by_side"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """What is chosen on the command line."""
    parser.addoption(
        "--both-client-trainers", action="store_true", help="run the tests of algorithms with each client trainer"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Load what tests share."""
    config.pluginmanager.register(importlib.import_module("shared"), "shared")
