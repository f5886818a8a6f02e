"""Discovery of the classes in a folder, so that a new algorithm or data set needs only a new file, and by name."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from abc import ABCMeta
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from lit_fed.errors import ConfigError
from lit_fed.system.names import LONGEST_SHOWN, did_you_mean, import_path, lies_below

__all__ = ["find_classes", "subclasses", "with_objects"]


def find_classes(package: str, base: type) -> dict[str, type]:
    """Import the modules of a package, and collect the classes in them that derive from a base.

    Abstract classes, private classes and imported classes are excluded.

    Args:
        package: name of the package, which is imported or being imported.
        base: common base; included if it is defined in the package and not abstract.

    Returns:
        Classes by name, in the order of the files.

    Raises:
        ImportError: naming both modules, if two of them define a class of the same name.

    Example:
        >>> from lit_fed.data.partitions.base import Partition
        >>> "Shards" in find_classes("lit_fed.data.partitions", Partition)
        True
    """
    found: dict[str, type] = {}
    for inside in pkgutil.iter_modules(sys.modules[package].__path__):
        module = importlib.import_module(f"{package}.{inside.name}")
        for name, value in vars(module).items():
            if not (_is_defined_in(module.__name__, name, value) and issubclass(value, base)):
                continue
            if found.setdefault(name, value) is not value:
                raise ImportError(f"{found[name].__module__} and {value.__module__} both define {name}; rename one")
    return found


def _is_defined_in(module: str, name: str, value: object) -> bool:
    """Whether a module's attribute is a public class that is defined there, or in a module below it."""
    if not isinstance(value, type) or value.__name__ != name or name.startswith("_") or inspect.isabstract(value):
        return False
    return f"{value.__module__}.".startswith(f"{module}.")


def subclasses(base: type) -> list[type]:
    """All public classes below one that are not abstract."""
    direct: list[type] = base.__subclasses__()
    found = dict.fromkeys(one for each in direct for one in (each, *subclasses(each)))
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
    for room in ("lit_fed", "lit_fed.wrappers"):  # whatever is discovered in their folders is a subclass from here on
        getattr(importlib.import_module(room), name, None)
    known = {one.__name__: one for one in (base, *subclasses(base))}
    if name not in known:
        meant = did_you_mean(name, known, f"give one of {', '.join(sorted(known))}, or the path of a class of your own")
        raise ConfigError(f"{option}: there is no class {name[:LONGEST_SHOWN]}; {meant}")
    return known[name]


def _refuse(value: Any, base: type, option: str, fix: str) -> NoReturn:
    shown = value.__name__ if isinstance(value, type) else repr(value)
    shown = shown if len(shown) <= LONGEST_SHOWN else f"a {type(value).__name__}"
    kinds = subclasses(base) if isinstance(base, ABCMeta) else [base]
    known = f"{base.__name__}, such as {', '.join(kind.__name__ for kind in kinds[:3])}"
    raise ConfigError(f"{option} is {shown}; give an object, a class or a name of {known}{fix and f'; {fix}'}")
