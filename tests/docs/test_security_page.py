"""Every promise in SECURITY.md names tests that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
WITHOUT_PROMISES = {"Security", "What is not promised", "Reporting"}


def sections():
    """Heading and text of each section."""
    parts = re.split(r"^#+ (.+)$", PAGE, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def rows(text):
    """Promise and tests of each row of the tables in a text."""
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("|")]
    return [(one[0].strip(), one[1].strip()) for one in cells if one[0].strip() not in ("promise", "---")]


PROMISES = [row for heading, text in sections().items() if heading not in WITHOUT_PROMISES for row in rows(text)]


@pytest.mark.parametrize(("promise", "held_by"), PROMISES, ids=[one[:40] for one, _ in PROMISES])
def test_a_promise_is_a_test(promise, held_by):
    named = re.findall(r"`([^`]+?)::(\w+)`", held_by)
    assert named, promise
    assert held_by == ", ".join(f"`{path}::{name}`" for path, name in named)
    for path, name in named:
        tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert name in functions, f"{path} has no {name}, which holds: {promise}"


def test_promises_stand_in_tables():
    """A section with promises begins with a sentence or two, and has no list beside its table."""
    assert len(PROMISES) > 20
    for heading, text in sections().items():
        if heading not in WITHOUT_PROMISES:
            assert rows(text), heading
            assert not re.search(r"^[-*] ", text, flags=re.MULTILINE), heading
