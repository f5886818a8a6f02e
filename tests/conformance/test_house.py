"""Rules that hold for the source of the whole package: names, lengths, and where what one paper needs stands.

An algorithm is a file of `lit_fed/algorithms/`, or a folder there. The length of its class is counted without the
docstring of the class.
"""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "lit_fed"

LONGEST_FILE = 400
LONGEST_CLASS = 115  # "at most about 110"
ENTRY_POINTS = {"main"}  # of the installed command, and of the command line behind it


def parsed(package):
    """Syntax tree of each file, by its path in the package."""
    return {str(path.relative_to(package)): ast.parse(path.read_text()) for path in sorted(package.rglob("*.py"))}


def defined_twice(package):
    """The files of each public class or function that more than one of them defines."""
    found = defaultdict(list)
    for path, module in parsed(package).items():
        for node in module.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                found[node.name].append(path)
    return {name: paths for name, paths in found.items() if len(paths) > 1 and name not in ENTRY_POINTS}


def long_files(package):
    """The number of lines of each file that has too many."""
    lines = {str(path.relative_to(package)): len(path.read_text().splitlines()) for path in package.rglob("*.py")}
    return {path: count for path, count in lines.items() if count > LONGEST_FILE}


def long_classes(package):
    """The number of lines of each class of an algorithm that has too many; the interface in base.py is none."""
    found = {}
    for path, module in parsed(package / "algorithms").items():
        for node in module.body:
            if isinstance(node, ast.ClassDef) and path != "base.py":
                first = node.body[0]
                docstring = first.end_lineno - first.lineno + 1 if ast.get_docstring(node) is not None else 0
                found[f"algorithms/{path}: {node.name}"] = node.end_lineno - node.lineno + 1 - docstring
    return {name: count for name, count in found.items() if count > LONGEST_CLASS}


def imports(module, modules):
    """Which of the package's modules a file imports, by their names."""
    names = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= inside if inside <= modules else inside | {node.module}
    return names & modules


def owner(name):
    """The algorithm that a module is or belongs to, else the module."""
    parts = name.split(".")
    return parts[2] if parts[1:2] == ["algorithms"] and parts[2:] not in ([], ["base"]) else name


def used_by_one_algorithm(package):
    """The algorithm that alone uses a module of core, directly or by way of other modules of core."""
    trees = {f"lit_fed.{path.removesuffix('.py').replace('/', '.')}": tree for path, tree in parsed(package).items()}
    trees = {name.removesuffix(".__init__"): tree for name, tree in trees.items()}
    users = defaultdict(set)
    for name, module in trees.items():
        for used in imports(module, set(trees)):
            users[used].add(name)

    def outside_core(name, seen):
        seen.add(name)
        inside = {one for one in users[name] if one.startswith("lit_fed.core.")}
        found = {owner(one) for one in users[name] - inside}
        return found.union(*(outside_core(one, seen) for one in inside - seen))

    found = {name: outside_core(name, set()) for name in trees if name.startswith("lit_fed.core.")}
    algorithms = {owner(name) for name in trees} - set(trees)
    return {name: next(iter(who)) for name, who in found.items() if len(who) == 1 and who <= algorithms}


def refuse(found):
    assert not found, "\n".join(f"{name}: {why}" for name, why in found.items())


def test_no_public_name_is_defined_twice():
    refuse(defined_twice(PACKAGE))


def test_no_file_is_too_long():
    refuse(long_files(PACKAGE))


def test_classes_of_algorithms_read_like_pseudo_code():
    refuse(long_classes(PACKAGE))


def test_what_one_algorithm_needs_stands_in_its_file():
    refuse(used_by_one_algorithm(PACKAGE))


# ---------------------------------------------------------------------- a house in which the rules are broken
@pytest.fixture
def house(tmp_path):
    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    write("core/tree.py", "def add(): ...\n")
    write("core/alone.py", "from lit_fed.core import tree\n")
    write("core/shared.py", "from lit_fed.core.tree import add\n")
    write("core/deep.py", "def deep(): ...\n")
    write("core/between.py", "from lit_fed.core.deep import deep\n")
    write("core/needed.py", "def needed(): ...\n")
    write("core/interface.py", "def interface(): ...\n")
    write("algorithms/base.py", "from lit_fed.core import interface\n")
    write("algorithms/one.py", "from lit_fed.core import alone, needed\nfrom lit_fed.core.shared import tree\n")
    write("algorithms/two/__init__.py", "import lit_fed.core.shared\nfrom lit_fed.algorithms.two import steps\n")
    write("core/shelf/__init__.py", "")
    write("core/shelf/both.py", "")
    write("algorithms/two/steps.py", "from lit_fed.core import between\nfrom lit_fed.core.shelf import both\n")
    write("clients.py", "from lit_fed.core import needed\nfrom lit_fed.core.shelf.both import x\n\ndef main(): ...\n")
    write("tasks.py", "def _private(): ...\n")
    return tmp_path


def test_core_files_of_one_algorithm_are_found(house):
    """Also behind another file of core, and of an algorithm that is a folder."""
    assert used_by_one_algorithm(house) == {
        "lit_fed.core.alone": "one",
        "lit_fed.core.between": "two",
        "lit_fed.core.deep": "two",
    }


def test_names_in_two_files_are_found(house):
    (house / "models.py").write_text("class add: ...\n\ndef main(): ...\n\ndef _private(): ...\n")
    assert defined_twice(house) == {"add": ["core/tree.py", "models.py"]}


def test_lengths_are_counted(house):
    body = "    a = 1\n" * (LONGEST_CLASS - 1)
    (house / "algorithms/one.py").write_text(f'class Fits:\n    """Two\n    lines."""\n{body}')
    assert long_classes(house) == {}
    (house / "algorithms/one.py").write_text(f"class Long:\n{body}    b = 1\n")
    assert long_classes(house) == {"algorithms/one.py: Long": LONGEST_CLASS + 1}
    (house / "core/tree.py").write_text("a = 1\n" * LONGEST_FILE)
    assert long_files(house) == {}
    (house / "core/tree.py").write_text("a = 1\n" * (LONGEST_FILE + 1))
    assert long_files(house) == {"core/tree.py": LONGEST_FILE + 1}
