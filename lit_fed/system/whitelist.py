"""Settings that a checkpoint or a server brings: the classes that they may name, checked before anything is imported.

Importing a module runs its code. So every place of such settings is looked at first: keys and values, nested to any
depth, and each text in a place where a text may become an import.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

__all__ = ["LONGEST_SHOWN", "METRICS", "PLAIN", "Whitelist", "import_path", "lies_below"]

PLAIN = (str, int, float, bool, type(None))
"""Types of values beside lists and dictionaries."""

VALUES = (*PLAIN, Path)
"""Types of options whose texts name nothing."""

MANY = (list, tuple, dict, object, Sequence, Mapping, Collection)
"""Types of options that hold other values, whatever these are."""

METRICS = "model.metrics"
"""The place where names without a module are those of torchmetrics, and keys may be paths."""

DEEPEST = 32
"""Levels of nesting."""

LARGEST = 2**64
"""Whole numbers have to be smaller; seeds come close."""

LONGEST_SHOWN = 100
"""Characters of a foreign text that a message repeats."""

Kind = Literal["values", "anything", "names", "object"]
"""What an option takes: texts that mean themselves, those that may hold a configuration, those that may be imported.

An `object` is one name or one class with its options: no list and no number.
"""


class Whitelist(ABC):
    """Checks settings from elsewhere; a subclass says which classes are known and how a refusal reads.

    Args:
        named: paths of classes that the person at the keyboard named.
        trusted: modules that they trust.

    Attributes:
        packages: packages whose modules may be imported.
        short: packages that offer classes of theirs by a short path; modules below them are not meant.
    """

    packages: tuple[str, ...]
    short: tuple[str, ...]

    def __init__(self, named: Collection[str] = (), trusted: Sequence[str] = ()) -> None:
        self.named, self.trusted = named, trusted

    # ------------------------------------------------------------------ what a subclass says
    @abstractmethod
    def is_known(self, found: Any, place: str) -> bool:
        """Whether an object of a known package is a class that settings may name in this place."""

    @abstractmethod
    def distrust(self, path: str, place: str) -> NoReturn:
        """Refuse a class that is neither known nor trusted."""

    @abstractmethod
    def cannot_import(self, path: str, place: str, error: Exception) -> NoReturn:
        """Refuse a class whose import fails."""

    @abstractmethod
    def refuse(self, place: str, what: str) -> NoReturn:
        """Refuse anything else."""

    def holds_configuration(self, text: str, kind: Kind) -> bool:
        """Whether a text would be read as more settings, or as the name of a file with some."""
        return False

    # ------------------------------------------------------------------ checks
    def check_plain(self, value: Any, place: str, depth: int = 0) -> None:
        """Refuse what is no plain value, or nested too deep to be settings."""
        if depth > DEEPEST:
            self.refuse(place.partition(".")[0], f"is nested more than {DEEPEST} levels deep")
        if isinstance(value, dict):
            for key, one in value.items():
                if not isinstance(key, str):
                    self.refuse(place, f"has the key {key!r}, which is no text")
                self.check_plain(one, f"{place}.{key}", depth + 1)
        elif isinstance(value, list):
            for one in value:
                self.check_plain(one, place, depth + 1)
        elif not isinstance(value, PLAIN):
            self.refuse(place, f"is a {type(value).__name__}, no plain value")
        elif isinstance(value, int) and abs(value) >= LARGEST:
            self.refuse(place, "is a whole number of more than 64 bits")

    def check_options(self, options: Any, of: Callable[..., Any], place: str) -> None:
        """Options of a class or function; the type of an option decides what a text in it may mean."""
        if not isinstance(options, dict) or not all(key.isidentifier() for key in options):
            self.refuse(place, "is no list of options")
        kinds = _kinds_of_options(of)
        for name, value in options.items():
            self.check_value(value, f"{place}.{name}", kinds.get(name, "names"))

    def check_value(self, value: Any, place: str, kind: Kind) -> None:
        """A value with all that it holds."""
        if place == METRICS:
            self._check_metrics(value)
        elif isinstance(value, dict) and "class_path" in value:
            self.check_object(value, place)
        elif kind == "object" and not isinstance(value, dict | str | None):
            self.refuse(place, f"is a {type(value).__name__}, where one object belongs")
        elif isinstance(value, dict | list):
            for one in value if isinstance(value, list) else (*value, *value.values()):
                self.check_value(one, place, "names" if kind == "object" else kind)
        elif isinstance(value, str) and kind != "values":
            if self.holds_configuration(value, kind):
                self.refuse(place, f"is {value[:LONGEST_SHOWN]!r}, which may hold another configuration")
            for path in value.replace(",", " ").split() if kind != "anything" else ():
                if _could_be_imported(path):
                    self.check_path(path, place)

    def check_object(self, value: dict[str, Any], place: str) -> None:
        """A class or function with its options."""
        path = value["class_path"]
        if not isinstance(path, str) or value.keys() - {"class_path", "init_args", "dict_kwargs"}:
            self.refuse(place, "is no class with its options")
        of = self.check_path(path, place)
        self.check_options(value.get("init_args") or {}, of, place)
        self.check_value(value.get("dict_kwargs"), place, "names")

    def _check_metrics(self, value: Any) -> None:
        """Names of metrics, their paths, and their arguments, which are words and numbers."""
        if isinstance(value, dict | list):
            for one in value if isinstance(value, list) else (*value, *value.values()):
                self._check_metrics(one)
        elif isinstance(value, str):
            for part in value.split(","):
                if "." in (path := part.strip()):
                    self.check_path(path, METRICS)
                elif path not in ("class_path", "init_args") and self.holds_configuration(path, "names"):
                    self.refuse(METRICS, f"is {path[:LONGEST_SHOWN]!r}, which may hold another configuration")

    def check_path(self, path: str, place: str) -> Any:
        """The object at a path, which is imported only if it is known, named or trusted."""
        if not all(part.isidentifier() for part in path.split(".")):
            self.refuse(place, f"names {path[:LONGEST_SHOWN]!r}, which is no path of a class")
        is_named = path in self.named or any(lies_below(path, one) for one in self.trusted)
        if not is_named and not self._may_be_imported(path):
            self.distrust(path, place)
        try:
            found = import_path(path)
        except Exception as error:  # whatever a user-defined module raises
            self.cannot_import(path, place, error)
        if not is_named and not self.is_known(found, place):
            self.distrust(path, place)
        return found

    def _may_be_imported(self, path: str) -> bool:
        module = path.rpartition(".")[0]
        below = any(lies_below(module, one) for one in self.packages)
        return (below or module in self.short) and not any(part.startswith("_") for part in path.split("."))


def import_path(path: str) -> Any:
    """The object at a path, in a module or in a class of one.

    Args:
        path: a module and names in it, divided by dots.

    Raises:
        ValueError: if it is no such path.
        Exception: what the module's code raises.
    """
    module, _, name = path.rpartition(".")
    if not module or not all(part.isidentifier() for part in path.split(".")):
        raise ValueError(f"{path[:LONGEST_SHOWN]!r} is no path of a class")
    try:
        place: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        outer, _, inner = module.rpartition(".")
        if not outer or error.name != module:
            raise
        place = getattr(importlib.import_module(outer), inner)
    return getattr(place, name)


def lies_below(path: str, package: str) -> bool:
    """Whether a path is a package, or something in it."""
    return f"{path}.".startswith(f"{package}.")


def _could_be_imported(text: str) -> bool:
    """Whether a text is the path of something in an installed module; the module itself is not imported."""
    first, *rest = text.split(".")
    if not rest or not all(part.isidentifier() for part in (first, *rest)):
        return False
    try:
        return importlib.util.find_spec(first) is not None
    except (ImportError, ValueError):  # a module without a specification, such as that of a program
        return True


@lru_cache(maxsize=256)
def _kinds_of_options(of: Callable[..., Any]) -> dict[str, Kind]:
    """What the parameters of a class or function take; those that are not known here may take names."""
    made = of.__init__ if isinstance(of, type) and not hasattr(of, "_fields") else of  # type: ignore[misc]
    try:
        hints, parameters = get_type_hints(made), inspect.signature(of).parameters
    except Exception:  # names that are not there, in user-defined code
        return {}
    untold: Kind = "names" if _is_of_torch(made) else "anything"
    return {name: _kind(hints[name]) if name in hints else untold for name in parameters}


def _is_of_torch(made: Any) -> bool:
    """Whether this is code in which a parameter without a type is often a function, and never an unusual text."""
    return str(getattr(made, "__module__", "")).partition(".")[0] in ("torch", "torchvision")


def _kind(hint: Any) -> Kind:
    origin = get_origin(hint)
    if origin is None:
        return "values" if hint in VALUES else "anything" if hint is Any else "names" if hint in MANY else "object"
    if origin is Literal:
        return "values"
    inside = {_kind(one) for one in get_args(hint) if one not in (..., type(None))}
    if origin in (Union, types.UnionType) and inside == {"object"}:
        return "object"
    if {"names", "object"} & inside or origin not in (Union, types.UnionType, list, tuple, dict, Sequence, Mapping):
        return "names"
    return "anything" if "anything" in inside else "values"
