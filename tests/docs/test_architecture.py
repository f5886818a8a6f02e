"""The places that docs/architecture.md walks through are there."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
STEP = re.compile(r"^([a-z_/]+\.py) +([A-Za-z_.]+)  +\S", re.M)


def defined(body, prefix=""):
    """Qualified names of the classes and functions of a file."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield prefix + node.name
            yield from defined(node.body, f"{prefix}{node.name}.")


def test_every_step_of_a_way_is_a_function_or_class():
    ways = (ROOT / "docs/architecture.md").read_text().split("## 5. Six ways")[1]
    lines = [line for fence in ways.split("```text\n")[1:] for line in fence.split("\n```")[0].splitlines()]
    steps = STEP.findall("\n".join(lines))
    assert len(steps) == len(lines) == 44
    missing = [
        f"{file}: {name}" for file, name in steps
        if name not in defined(ast.parse((ROOT / "lit_fed" / file).read_text()).body)
    ]  # fmt: skip
    assert not missing
