"""Rules that hold for the source of the whole package: names, lengths, and where what one paper needs stands.

An algorithm is a file of `lit_fed/algorithms/`, or a folder there. The length of its class is counted without the
docstring of the class.
"""

import pytest
from code_shape import (
    CLOSURES,
    LONGEST_CLASS,
    PACKAGE,
    ROOMS,
    SHORTEST_FILE,
    arrows_back,
    closure,
    code_lines,
    flags,
    lonely_files,
    long_classes,
    used_by_one_algorithm,
)  # fmt: skip

LONELY = {"deployment/flower_apps.py", "metrics/forecasts.py", "pictures/partition.py", "training/loop.py"}
"""Short files that one other imports or names, and that stand for themselves all the same."""


def refuse(found):
    assert not found, "\n".join(f"{name}: {why}" for name, why in found.items())


@pytest.mark.parametrize("path", CLOSURES)
def test_few_files_are_read_to_follow_one(path):
    found = closure(PACKAGE, path)
    assert len(found) <= CLOSURES[path], "\n".join(sorted(found))


def test_a_short_file_has_two_importers_or_is_one_of_a_kind():
    refuse({path: f"{lines} lines" for path, lines in lonely_files(PACKAGE).items() if path not in LONELY})


def test_an_algorithm_has_few_flags():
    assert len(flags(PACKAGE)) <= 8


def test_classes_of_algorithms_read_like_pseudo_code():
    refuse(long_classes(PACKAGE))


def test_what_one_algorithm_needs_stands_in_its_file():
    refuse(used_by_one_algorithm(PACKAGE))


def test_arrows_between_rooms_point_down():
    """Also those for annotations alone: kernel, algorithms, clients, rounds, training, callbacks, trainer, CLI."""
    refuse(arrows_back(PACKAGE))
    order = list(ROOMS)
    wanted = ["core", "algorithms", "clients", "rounds", "training", "callbacks", "trainer", "cli"]
    assert [room for room in order if room in wanted] == wanted


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


def test_imports_are_followed(house):
    assert closure(house, "algorithms/two/steps.py") == {
        "lit_fed.algorithms.two.steps", "lit_fed.core.between", "lit_fed.core.deep", "lit_fed.core.shelf.both",
    }  # fmt: skip


def test_short_files_of_one_importer_are_found(house):
    alone = {"alone", "between", "deep", "interface"}
    assert lonely_files(house) == dict.fromkeys(sorted(f"core/{name}.py" for name in alone), 1) | {
        "clients.py": 4, "tasks.py": 1,
    }  # fmt: skip
    (house / "core/deep.py").write_text("a = 1\n" * SHORTEST_FILE)
    assert "core/deep.py" not in lonely_files(house)


def test_lengths_are_counted(house):
    body = "    a = 1\n" * (LONGEST_CLASS - 1)
    (house / "algorithms/one.py").write_text(f'class Fits:\n    """Two\n    lines."""\n{body}')
    assert long_classes(house) == {}
    (house / "algorithms/one.py").write_text(f"class Long:\n{body}    b = 1\n")
    assert long_classes(house) == {"algorithms/one.py: Long": LONGEST_CLASS + 1}
    assert (
        code_lines('"""Module."""\n\n# why\nx = 1\n\n\ndef f():\n    """Two\n\n    lines."""\n    return x  # so\n')
        == 3
    )


def test_arrows_that_point_back_are_found(house):
    """Also from within a function and for annotations alone; a room that nobody has put in order is one, too."""
    (house / "core/deep.py").write_text("def deep():\n    from lit_fed.algorithms import base\n")
    (house / "core/needed.py").write_text("if TYPE_CHECKING:\n    from lit_fed.clients import main\n")
    rooms = ("core", "algorithms", "clients")
    assert arrows_back(house, rooms) == {
        "lit_fed.core.deep": "imports lit_fed.algorithms.base",
        "lit_fed.core.needed": "imports lit_fed.clients",
        "lit_fed.tasks": "its room is not in the list",
    }
    assert arrows_back(house, ("core", "algorithms", "tasks", "clients")).keys() == {
        "lit_fed.core.deep", "lit_fed.core.needed"
    }  # fmt: skip
