"""Names of classes, read from the files of a folder: a new algorithm or data set needs only a new file."""

from __future__ import annotations

import importlib
import re
import sys
from abc import ABCMeta
from collections.abc import Callable, Collection, Mapping
from functools import cache
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, NoReturn, get_args, get_origin, get_type_hints

from lit_fed.errors import ConfigError
from lit_fed.system.names import LONGEST_SHOWN, did_you_mean, import_path, lies_below

__all__ = [
    "bases_of", "entry_points", "import_all", "import_named", "named", "path_of_name", "room", "subclasses",
    "with_objects",
]  # fmt: skip


ROOMS: dict[str, dict[str, str]] = {}
"""Packages whose classes have names on the command line: for each the module of each class, by the class's name."""

PACKAGES = (
    "lit_fed.core", "lit_fed.algorithms", "lit_fed.models", "lit_fed.data.data_sets", "lit_fed.data.partitions",
    "lit_fed.data.poison", "lit_fed.callbacks", "lit_fed.wrappers", "lit_fed.wrappers.compression.codecs",
    "lit_fed.wrappers.robust.rules", "lit_fed.wrappers.robust.attacks", "lit_fed.deployment",
)  # fmt: skip
"""Those of lit_fed; `deployment` or a feature may be absent."""

GROUPS = ("lit_fed.algorithms", "lit_fed.data")
"""Groups of entry points by which other packages bring algorithms, data sets and partitions."""

STATEMENT = re.compile(r"^class (\w+)(?:\((.*?)\))?:\n(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
INSIDE = re.compile(r"\[[^\[\]]*\]")
ABSTRACT = re.compile(r"^    @abstractmethod\n    def (\w+)", re.MULTILINE)
DEFINED = re.compile(r"^    (?:def )?(\w+)(?:\(|: [^\n]* = | = )", re.MULTILINE)
WORD = re.compile(r"\w+")


def room(package: str, *bases: str, beside: str = "") -> tuple[Callable[[str], Any], list[str]]:
    """`__getattr__` and the class names of a package whose classes are imported when they are asked for.

    The names are read from the class statements of its files: public classes below one of the bases that leave no
    abstract method open.

    Args:
        package: name of the package, which is being imported.
        bases: names of their common bases, and of classes below these that come from other packages.
        beside: a package with further classes below the bases, which get no names here.

    Raises:
        ImportError: naming both modules, if two of them define a class of the same name.

    Example:
        >>> getattr_, names = room("lit_fed.data.partitions", "Partition")
        >>> "Shards" in names
        True
    """
    own = _statements(package)
    known = {one.name: one for one in (*(_statements(beside) if beside else ()), *own)}
    found: dict[str, str] = {}
    for one in own:
        if one.name.startswith("_") or not one.can_be_made(bases, known):
            continue
        if (first := found.setdefault(one.name, one.module)) != one.module:
            raise ImportError(f"{first} and {one.module} both define {one.name}; rename one")
    ROOMS[package] = found

    def of_room(name: str) -> Any:
        if name not in found:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(found[name]), name)

    return of_room, list(found)


class _Statement(NamedTuple):
    """A class statement; classes are known by their names."""

    module: str
    name: str
    bases: list[str]
    abstract: list[str]  # methods
    defined: list[str]  # methods and attributes, abstract ones among them

    def can_be_made(self, bases: Collection[str], known: Mapping[str, _Statement]) -> bool:
        """Whether it lies below a base and leaves no abstract method open."""
        line = [self]
        for one in line:  # which grows by the bases that are known
            line += [known[base] for base in one.bases if base in known and known[base] not in line]
        still_open = {name for one in line for name in one.abstract}
        still_open -= {name for one in line for name in one.defined if name not in one.abstract}
        return not still_open and any(base in one.bases for one in line for base in bases)


def _statements(package: str) -> list[_Statement]:
    """The class statements of a package, file by file."""
    folder, found = Path(sys.modules[package].__path__[0]), []
    for file in sorted(folder.rglob("*.py")):
        module = ".".join((package, *file.relative_to(folder).with_suffix("").parts))
        for name, written, body in STATEMENT.findall(file.read_text()):
            bases = written
            while bases != (bases := INSIDE.sub("", bases)):  # arguments of generic bases, from the inside out
                pass
            names = [one.strip().rpartition(".")[2] for one in bases.split(",")]
            found.append(_Statement(module, name, names, ABSTRACT.findall(body), DEFINED.findall(body)))
    return found


@cache
def entry_points() -> dict[str, EntryPoint]:
    """The classes that other packages bring, by their names; a name of lit_fed stays lit_fed's."""
    ours = {name for known in _rooms().values() for name in known}
    found = [one for group in GROUPS for one in metadata.entry_points(group=group)]
    return {one.name: one for one in found if one.name not in ours}


def _load(point: EntryPoint) -> None:
    try:
        point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{point.name} is {point.value} of an installed package, which cannot be imported ({error}); mend that "
            "package, or uninstall it"
        ) from error


def named(package: str, name: str) -> Any:
    """The class of a name in a package, which is imported when it is needed."""
    return getattr(importlib.import_module(package), name)


def path_of_name(name: str) -> str | None:
    """The path of a class of lit_fed that has a name on the command line; None: there is none of this name."""
    return next((f"{known[name]}.{name}" for known in _rooms().values() if name in known), None)


def import_named(text: str) -> None:
    """Import the classes whose names stand in a text: arguments, or a configuration.

    jsonargparse knows classes that are imported.

    Args:
        text: any text; a word that happens to be a name costs an import.
    """
    words = {*WORD.findall(text)}
    for known in _rooms().values():
        for name in words & known.keys():
            importlib.import_module(known[name])
    for name in words & entry_points().keys():
        _load(entry_points()[name])


def import_all() -> None:
    """Import all classes that have names, for lists of them."""
    for known in _rooms().values():
        for module in known.values():
            importlib.import_module(module)
    for one in entry_points().values():
        _load(one)


def _rooms() -> dict[str, dict[str, str]]:
    """The names of all packages that are there, which are imported; a module that one of them lacks is an error."""
    for package in PACKAGES:
        try:
            importlib.import_module(package)
        except ModuleNotFoundError as error:
            if not lies_below(package, error.name or "?"):
                raise
    return ROOMS


def subclasses(base: type) -> list[type]:
    """All public classes below one that are not abstract."""
    import_all()
    return _below(base)


def _below(base: type) -> list[type]:
    direct: list[type] = base.__subclasses__()
    found = dict.fromkeys(one for each in direct for one in (each, *_below(each)))
    return [one for one in found if not (getattr(one, "__abstractmethods__", None) or one.__name__.startswith("_"))]


# ---------------------------------------------------------------------- arguments that are objects
def with_objects(
    made: Callable[..., Any], given: Mapping[str, Any], section: str, fixes: Mapping[str, str]
) -> dict[str, Any]:
    """Arguments in which a class, or its name or path, is replaced by its object, as on the command line.

    Args:
        made: the function whose annotations say which arguments are objects of lit_fed, or makers of such.
        given: its arguments.
        section: section of its options on the command line.
        fixes: name of an argument -> what to write for values of other types.

    Raises:
        ConfigError: naming an argument that is none of these.
    """
    hints = get_type_hints(made)
    return {
        name: _object(given[name], hints[name], f"--{section}.{name}", fixes.get(name, "")) for name in hints
        if name in given
    }  # fmt: skip


def bases_of(made: type) -> dict[str, type]:
    """Fields of a dataclass whose values are objects of a class of lit_fed that others derive from, and that class."""
    each = [(name, one) for name, hint in get_type_hints(made).items() for one in (get_args(hint) or (hint,))]
    return {name: one for name, one in each if isinstance(one, ABCMeta) and lies_below(one.__module__, "lit_fed")}


def _object(value: Any, hint: Any, option: str, fix: str) -> Any:
    """The object for an argument of this type; values of arguments that are no objects of lit_fed stay as they are."""
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    maker = next((get_args(one)[1] for one in kinds if get_origin(one) is get_origin(Callable[..., Any])), None)
    base = maker or next(
        (one for one in kinds if isinstance(one, type) and lies_below(one.__module__, "lit_fed")), None
    )
    if base is None or (value is None and type(None) in kinds):
        return value
    found = _named(value, base, option) if isinstance(value, str) else value
    if maker is not None:
        return found if callable(found) else _refuse(value, base, option, fix)
    if not isinstance(found, type):
        return found if isinstance(found, base) else _refuse(value, base, option, fix)
    if not issubclass(found, base) or (found is base and isinstance(base, ABCMeta)):
        _refuse(value, base, option, fix)
    try:
        return found()
    except TypeError as error:  # arguments without a default
        raise ConfigError(f"{option} {found.__name__} needs arguments ({error}); give {found.__name__}(...)") from error


def _named(name: str, base: type, option: str) -> Any:
    """The class of a name, or what is at a path."""
    if "." in name:
        try:
            return import_path(name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"{option}: there is no class {name[:LONGEST_SHOWN]} ({error})") from error
    import_named(name)
    known = {one.__name__: one for one in (base, *_below(base))}
    if name not in known:
        known = {one.__name__: one for one in subclasses(base)}
        meant = did_you_mean(name, known, f"give one of {', '.join(sorted(known))}, or the path of a class of your own")
        raise ConfigError(f"{option}: there is no class {name[:LONGEST_SHOWN]}; {meant}")
    return known[name]


def _refuse(value: Any, base: type, option: str, fix: str) -> NoReturn:
    shown = value.__name__ if isinstance(value, type) else repr(value)
    shown = shown if len(shown) <= LONGEST_SHOWN else f"a {type(value).__name__}"
    kinds = subclasses(base) if isinstance(base, ABCMeta) else [base]
    known = f"{base.__name__}, such as {', '.join(kind.__name__ for kind in kinds[:3])}"
    raise ConfigError(f"{option} is {shown}; give an object, a class or a name of {known}{fix and f'; {fix}'}")
