"""Classes are found in the files of a folder."""

import importlib
import inspect
import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest
from lightning.pytorch import Callback

import lit_fed
from lit_fed import algorithms, callbacks, core, data, models, wrappers
from lit_fed.cli import arguments_of
from lit_fed.core.algorithm import Algorithm
from lit_fed.core.graphs.topology import Topology
from lit_fed.core.mixtures.surrogate import Surrogate
from lit_fed.core.targets import Loss, Target
from lit_fed.data import data_sets, partitions
from lit_fed.data.data_sets.base import DataSet
from lit_fed.data.partitions.base import Partition
from lit_fed.errors import ConfigError
from lit_fed.models.base import Network
from lit_fed.system.discovery import ROOMS, entry_points, import_named, room, subclasses
from lit_fed.system.names import lies_below
from lit_fed.wrappers.base import WrapperSettings
from lit_fed.wrappers.compression import codecs
from lit_fed.wrappers.compression.codecs.base import Codec
from lit_fed.wrappers.robust import attacks, rules
from lit_fed.wrappers.robust.attacks.base import Attack
from lit_fed.wrappers.robust.rules.base import Rule

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
def shapes(tmp_path, monkeypatch):
    """A package with a base and three shapes, one of which is private."""
    folder = tmp_path / "rooms"
    folder.mkdir()
    for name, text in FILES.items():
        write(folder, name, text)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    ROOMS.pop("rooms", None)
    for name in [name for name in sys.modules if name.partition(".")[0] == "rooms"]:
        del sys.modules[name]


def write(folder, name, text):
    lines = text.splitlines()
    (folder / f"{name}.py").write_text("\n".join(line.removeprefix("        ") for line in lines))


def names_in_rooms():
    """The names that the package of the fixture hands on, with the modules of their classes."""
    importlib.import_module("rooms")
    get, names = room("rooms", "Shape")
    return {name: get(name).__module__ for name in names}


@pytest.mark.usefixtures("shapes")
def test_public_concrete_classes_are_found_where_they_are_defined():
    assert names_in_rooms() == {"Circle": "rooms.round", "Square": "rooms.square"}


@pytest.mark.usefixtures("shapes")
def test_names_are_read_without_an_import():
    importlib.import_module("rooms")
    get, names = room("rooms", "Shape")
    assert names == ["Circle", "Square"]
    assert "rooms.round" not in sys.modules
    assert get("Circle")().area() == 3.14
    assert "rooms.square" not in sys.modules
    with pytest.raises(AttributeError, match="module 'rooms' has no attribute 'Triangle'"):
        get("Triangle")


def test_a_new_file_is_found(shapes):
    write(shapes, "line", "from rooms.base import Shape\nclass Line(Shape):\n    def area(self): return 0.0")
    assert list(names_in_rooms()) == ["Line", "Circle", "Square"]


def test_generic_bases_and_bases_of_a_package_count(shapes):
    statement = "class Line(\n    rooms.base.Shape, dict[str, list[int]],\n):"
    write(shapes, "line", f"import rooms.base\n{statement}\n    def area(self): return 0.0")
    assert list(names_in_rooms()) == ["Line", "Circle", "Square"]


def test_a_folder_counts_as_a_file(shapes):
    (shapes / "solids").mkdir()
    write(shapes / "solids", "__init__", "from rooms.solids.cube import Cube")
    write(shapes / "solids", "cube", "from rooms.base import Shape\nclass Cube(Shape):\n    def area(self): return 6.0")
    assert names_in_rooms()["Cube"] == "rooms.solids.cube"


def test_a_name_that_is_there_twice_is_refused(shapes):
    write(shapes, "table", "from rooms.base import Shape\nclass Square(Shape):\n    def area(self): return 2.0")
    with pytest.raises(ImportError, match=r"rooms\.square and rooms\.table both define Square; rename one"):
        names_in_rooms()


@pytest.mark.parametrize(
    ("package", "bases"),
    [
        (algorithms, [Algorithm]), (data_sets, [DataSet]), (partitions, [Partition]), (models, [Network]),
        (callbacks, [Callback]), (rules, [Rule]), (attacks, [Attack]), (codecs, [Codec]), (wrappers, [WrapperSettings]),
        (core, [Target, Loss, Topology, Surrogate]),
    ],
    ids=lambda one: one.__name__.rpartition(".")[2] if isinstance(one, ModuleType) else "",
)  # fmt: skip
def test_class_statements_say_what_an_import_finds(package, bases):
    """The names of a package are those of the public classes below its bases that can be made."""
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    every = [one for base in bases for one in subclasses(base) if not inspect.isabstract(one)]
    found = {one.__name__: one for one in every if lies_below(one.__module__, package.__name__)}
    assert ROOMS[package.__name__] == {name: cls.__module__ for name, cls in found.items()}
    assert set(found) <= set(package.__all__)
    assert all(getattr(package, name) is cls for name, cls in found.items())
    if package.__name__ in lit_fed._ROOMS:
        assert all(getattr(lit_fed, name) is cls for name, cls in found.items())


def test_no_name_is_handed_on_twice():
    for package in (lit_fed, algorithms, data, data_sets, partitions, models, callbacks):
        assert len(set(package.__all__)) == len(package.__all__)


def test_bases_of_data_sets_are_no_data_sets():
    assert {"DataSet", "PooledDataSet", "ClientDataSet", "TorchvisionSet"} & set(data_sets.__all__) == set()
    assert "Partition" not in partitions.__all__


# ---------------------------------------------------------------------- what a command imports
FIT = """
import sys
from lit_fed.cli import arguments_of
arguments_of(["fit", "--config", "configs/experiment/quickstart.yaml", "--model.algorithm", "Ditto"])
print(*(one for one in sys.modules if one.startswith("lit_fed.algorithms.")))
"""


def test_a_command_imports_the_algorithms_that_it_names():
    done = subprocess.run([sys.executable, "-c", FIT], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"lit_fed.algorithms.fedem", "lit_fed.algorithms.ditto"}


@pytest.fixture
def other_package(tmp_path, monkeypatch):
    """An installed distribution whose entry points bring an algorithm and a partition."""
    (tmp_path / "others.py").write_text(OTHERS)
    folder = tmp_path / "others-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[lit_fed.algorithms]\nTheirs = others:Theirs\nFedAvg = others:FedAvg\n[lit_fed.data]\nHalves = others:Halves\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    entry_points.cache_clear()
    yield
    entry_points.cache_clear()
    sys.modules.pop("others", None)


OTHERS = """
from lit_fed.algorithms import FedAvg
from lit_fed.data.partitions import Shards

class Theirs(FedAvg):
    pass

class Halves(Shards):
    pass
"""


@pytest.mark.usefixtures("other_package")
def test_classes_of_other_packages_have_names():
    config = arguments_of(["fit", "--model.algorithm", "Theirs", "--data.partition", "Halves"])
    assert config.fit.model.algorithm.class_path == "others.Theirs"
    assert config.fit.data.partition.class_path == "others.Halves"
    assert "Theirs" in {one.__name__ for one in subclasses(Algorithm)}


@pytest.mark.usefixtures("other_package")
def test_a_name_of_lit_fed_stays_its_own():
    assert set(entry_points()) == {"Theirs", "Halves"}


def test_a_package_that_cannot_be_imported_is_named(other_package, tmp_path):
    (tmp_path / "others.py").write_text("import a_module_that_is_not_there")
    with pytest.raises(
        ConfigError, match=r"Theirs is others:Theirs of an installed package.*a_module_that_is_not_there"
    ):
        import_named("Theirs")


def test_a_module_that_a_package_lacks_is_no_absent_package(monkeypatch):
    def lacking(name):
        raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

    monkeypatch.setattr("lit_fed.system.discovery.importlib.import_module", lacking)
    with pytest.raises(ModuleNotFoundError, match="numpy"):
        import_named("FedAvg")
