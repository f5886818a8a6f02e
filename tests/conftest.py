"""Options of the tests; being here also puts `federated_round` on the path of the tests."""

import importlib


def pytest_addoption(parser):
    parser.addoption(
        "--both-client-trainers", action="store_true", help="run the tests of algorithms with each client trainer"
    )


def pytest_configure(config):
    """Load what tests share, unless this process only hands them out to others."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(importlib.import_module("shared"), "shared")
