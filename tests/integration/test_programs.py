"""Programs in scripts: what they call of lit_fed exists, since most of them run for hours and few tests run them."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

from lit_fed.errors import ConfigError

SCRIPTS = Path(__file__).parents[2] / "scripts"


def imported(program):
    """The classes and functions that the program imports from lit_fed, by the name that it uses."""
    found = {}
    for node in ast.walk(program):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "lit_fed":
            module = importlib.import_module(node.module or "")
            for one in node.names:
                value = getattr(module, one.name, None) or importlib.import_module(f"{node.module}.{one.name}")
                found[one.asname or one.name] = value
    return found


@pytest.mark.parametrize("path", sorted(SCRIPTS.rglob("*.py")), ids=lambda path: path.relative_to(SCRIPTS).as_posix())
def test_arguments_have_their_names(path):
    program = ast.parse(path.read_text())
    known = {name: one for name, one in imported(program).items() if callable(one) and one is not ConfigError}
    for call in ast.walk(program):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in known:
            parameters = inspect.signature(known[call.func.id]).parameters
            if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
                continue
            given = {one.arg for one in call.keywords if one.arg is not None}
            assert given <= parameters.keys(), f"{path.name}, line {call.lineno}"
