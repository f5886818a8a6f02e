"""Classes are found in the files of a folder."""

import importlib
import sys

import pytest
from lightning.pytorch import Callback

import lit_fed
from lit_fed import algorithms, callbacks, data, models
from lit_fed.core.algorithm import Algorithm
from lit_fed.data import data_sets, partitions
from lit_fed.data.data_sets.base import DataSet
from lit_fed.data.partitions.base import Partition
from lit_fed.models.base import Network
from lit_fed.system.discovery import find_classes

FILES = {
    "__init__": "",
    "base": """
        from abc import ABC, abstractmethod
        class Shape(ABC):
            @abstractmethod
            def area(self): ...
        """,
    "round": """
        from rooms.base import Shape
        class Circle(Shape):
            def area(self): return 3.14
        class _Ellipse(Circle): pass
        class Unrelated: pass
        Ring = Circle
        """,
    "square": """
        from rooms.base import Shape
        from rooms.round import Circle
        class Square(Shape):
            def area(self): return 1.0
        """,
}


@pytest.fixture
def room(tmp_path, monkeypatch):
    """A package with a base and three shapes, one of which is private."""
    folder = tmp_path / "rooms"
    folder.mkdir()
    for name, text in FILES.items():
        write(folder, name, text)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "rooms"]:
        del sys.modules[name]


def write(folder, name, text):
    lines = text.splitlines()
    (folder / f"{name}.py").write_text("\n".join(line.removeprefix("        ") for line in lines))


def found_in(package):
    importlib.import_module(package)
    return find_classes(package, importlib.import_module("rooms.base").Shape)


def test_public_concrete_classes_are_found_where_they_are_defined(room):
    found = found_in("rooms")
    assert {name: cls.__module__ for name, cls in found.items()} == {"Circle": "rooms.round", "Square": "rooms.square"}


def test_a_new_file_is_found(room):
    write(room, "line", "from rooms.base import Shape\nclass Line(Shape):\n    def area(self): return 0.0")
    assert list(found_in("rooms")) == ["Line", "Circle", "Square"]


def test_a_folder_counts_as_a_file(room):
    (room / "solids").mkdir()
    write(room / "solids", "__init__", "from rooms.solids.cube import Cube")
    write(room / "solids", "cube", "from rooms.base import Shape\nclass Cube(Shape):\n    def area(self): return 6.0")
    assert found_in("rooms")["Cube"].__module__ == "rooms.solids.cube"


def test_a_name_that_is_there_twice_is_refused(room):
    write(room, "table", "from rooms.base import Shape\nclass Square(Shape):\n    def area(self): return 2.0")
    with pytest.raises(ImportError, match=r"rooms\.square and rooms\.table both define Square; rename one"):
        found_in("rooms")


@pytest.mark.parametrize(
    ("package", "base"),
    [(algorithms, Algorithm), (data_sets, DataSet), (partitions, Partition), (models, Network), (callbacks, Callback)],
    ids=lambda one: one.__name__.rpartition(".")[2],
)
def test_rooms_hand_on_what_is_found(package, base):
    found = find_classes(package.__name__, base)
    assert len(found) >= 9
    assert set(found) <= set(package.__all__)
    assert all(getattr(lit_fed, name) is cls for name, cls in found.items())


def test_no_name_is_handed_on_twice():
    for package in (lit_fed, algorithms, data, data_sets, partitions, models, callbacks):
        assert len(set(package.__all__)) == len(package.__all__)


def test_bases_of_data_sets_are_no_data_sets():
    assert {"DataSet", "PooledDataSet", "ClientDataSet", "TorchvisionSet"} & set(data_sets.__all__) == set()
    assert "Partition" not in partitions.__all__
