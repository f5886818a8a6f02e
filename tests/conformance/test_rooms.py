"""A room of the package imports from itself and from the rooms below it, for annotations too."""

import ast
from pathlib import Path

import pytest
import without_a_room

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "lit_fed"

ROOMS = [
    "errors", "system", "core", "metrics", "models", "data", "wrappers", "algorithms", "clients", "rounds", "settings",
    "session", "logged", "serving", "deployment", "training", "pictures", "callbacks", "command_line", "benchmark",
    "trainer", "commands", "cli", "choosing", "__main__",
]  # fmt: skip
"""From the bottom up; docs/architecture.md says what each is for."""


def imports(path):
    """Names of the modules that a file imports, with those of what it takes from them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def arrows_back(package, rooms):
    """Imports by files from rooms above their own."""
    found = []
    for path in sorted(package.rglob("*.py")):
        room = path.relative_to(package).parts[0].removesuffix(".py")
        if room == "__init__":  # hands on names
            continue
        above = rooms[rooms.index(room) + 1 :]
        used = {name.split(".")[1] for name in imports(path) if name.startswith("lit_fed.")}
        found += [f"{path.relative_to(package)} imports {one}" for one in sorted(used & set(above))]
    return found


def test_arrows_between_rooms_point_down():
    assert not arrows_back(PACKAGE, ROOMS)


@pytest.mark.parametrize(
    "line", ["from lit_fed.clients import main", "from lit_fed import clients", "import lit_fed.clients"]
)
def test_an_arrow_that_points_back_is_found(tmp_path, line):
    (tmp_path / "core").mkdir()
    (tmp_path / "clients.py").write_text("import lit_fed.core.tree\n")
    (tmp_path / "core/tree.py").write_text(f"def deep():\n    {line}\n")
    assert arrows_back(tmp_path, ["core", "clients"]) == ["core/tree.py imports clients"]


@pytest.mark.parametrize("name", [path.parent.name for path in sorted(PACKAGE.glob("wrappers/*/feature.py"))])
def test_a_feature_can_be_taken_out_and_is_on_the_pages(name):
    """The lists of features that are kept by hand."""
    assert f"wrappers/{name}" in {path for paths in without_a_room.ROOMS.values() for path in paths}
    for page in ("docs/architecture.md", "lit_fed/wrappers/README.md"):
        assert f"{name}/" in (ROOT / page).read_text()
    reference = "".join(path.read_text() for path in (ROOT / "docs/reference").glob("*.md"))
    assert f"::: lit_fed.wrappers.{name}.feature\n" in reference
