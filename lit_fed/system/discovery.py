"""Discovery of the classes in a folder, so that a new algorithm, data set or callback needs only a new file."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys

__all__ = ["find_classes"]


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
