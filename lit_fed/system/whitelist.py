"""The classes that the arguments in a checkpoint may name.

Importing a module runs its code, so every key and value is checked before anything is imported. Classes of lit_fed are
known, layers of `torch.nn`, data sets of PyTorch, metrics of torchmetrics, and networks, data sets and transforms of
torchvision. Any other class must be named or trusted by the user.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

import yaml
from torch import nn
from torch.utils.data import Dataset

from lit_fed.errors import ConfigError
from lit_fed.system.discovery import path_of_name
from lit_fed.system.foreign_files import yaml_value
from lit_fed.system.names import LONGEST_SHOWN, import_path, lies_below, names_in, same_class
from lit_fed.system.readers import FormError, plain

__all__ = ["Whitelist", "without_writes"]

VALUES = (str, int, float, bool, type(None), Path)
"""Types of options whose texts name nothing."""

MANY = (list, tuple, dict, object, Sequence, Mapping, Collection)
"""Types of options that hold any other values."""

METRICS, OPTIMIZER = "model.metrics", "model.solver.optimizer"
"""The setting in which names without a module are those of torchmetrics, and keys may be paths."""

DATA_SETS = names_in(
    """
    CIFAR10 CIFAR100 CelebA Country211 DTD DatasetFolder EMNIST EuroSAT FER2013 FGVCAircraft FakeData FashionMNIST
    Flowers102 Food101 GTSRB ImageFolder Imagenette KMNIST LFWPeople MNIST Omniglot OxfordIIITPet PCAM Places365 QMNIST
    RenderedSST2 STL10 SUN397 SVHN StanfordCars TensorDataset USPS
    """
)
"""Data sets of labelled images of torchvision.

None of them unpickles a file without comparing its checksum, or writes to its folder unless `download` is set.
"""

WRITES: dict[str, Any] = {"download": False, "cache_dir": None}
"""Options of data sets that write to a folder, with the values that do not."""

DOWNLOADS = dict.fromkeys(("weights", "weights_backbone", "config", "pretrained"), "downloads weights")
"""Options by which networks reach other machines, as `DataSet.reaches`."""

HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
"""A name of weights or data that a library may download."""

FILES = (".pt", ".pth")
"""Endings of files of weights, which are never downloaded."""

Kind = Literal["values", "anything", "names", "object"]
"""Texts that an option takes: plain ones, those that may hold a configuration, those that may be imported.

An `object` is one name or one class with its options: no list and no number.
"""


class Whitelist:
    """Checks the arguments in a checkpoint.

    Args:
        checkpoint: its path.
        bases: base classes of the classes of lit_fed that settings may name.
        is_rule: whether a text is the name of an update rule, which is never imported.
        named: paths of classes that the command line names itself.
        trusted: modules that the user trusts.
        reads_data: whether the command reads the data set.

    Attributes:
        packages: packages whose modules may be imported.
        short: packages that offer their classes by a short path; other modules below them are not included.
    """

    packages = (
        "lit_fed.algorithms", "lit_fed.core", "lit_fed.data", "lit_fed.deployment", "lit_fed.models",
        "lit_fed.wrappers", "torch.nn", "torch.utils.data", "torchmetrics.classification", "torchmetrics.regression",
        "torchvision.datasets", "torchvision.models", "torchvision.ops", "torchvision.transforms",
    )  # fmt: skip
    short = ("lit_fed", "torchmetrics")

    def __init__(
        self, checkpoint: Path, bases: Collection[type], is_rule: Callable[[str], bool], named: Collection[str],
        trusted: Sequence[str], *, reads_data: bool = True,
    ) -> None:  # fmt: skip
        self.checkpoint, self.named, self.trusted, self.reads_data = checkpoint, named, trusted, reads_data
        self.bases = (nn.Module, Dataset, *bases)  # metrics are modules; transforms may have no base
        self._is_rule = is_rule

    def is_known(self, found: Any, place: str) -> bool:
        """Whether something is a class of the right kind from the right place, or makes a network of torchvision."""
        if not isinstance(found, type):
            from torchvision import models  # here: it takes more than a second, and few checkpoints name functions

            name = getattr(found, "__name__", None)
            return name in models.list_models() and models.get_model_builder(name) is found
        module = found.__module__
        if lies_below(module, "lit_fed"):
            return issubclass(found, self.bases) or is_dataclass(found)  # settings
        if lies_below(module, "torchvision.datasets"):
            return found.__name__ in DATA_SETS
        known = any(lies_below(module, one) for one in self.packages)
        return known and (issubclass(found, self.bases) or lies_below(module, "torchvision.transforms"))

    def holds_configuration(self, text: str, kind: Kind) -> bool:
        """Whether the parser would read a text as a configuration, or as the name of a file with one."""
        try:
            if "class_path" in text or isinstance(yaml_value(text), dict | list):
                return True
            return kind != "anything" and Path(text).is_file()
        except FormError:  # an alias
            return True
        except (yaml.YAMLError, RecursionError, ValueError, OSError):  # a name that no file can have
            return False

    def cannot_import(self, path: str, place: str, error: Exception) -> NoReturn:
        fix = "start where it can be, or install what it needs"
        if lies_below(path, "lit_fed"):
            fix = "docs/removed.md has what was removed of lit_fed; use the version that wrote the checkpoint"
        raise ConfigError(
            f"--ckpt_path {self.checkpoint} names {path} ({place}), which cannot be imported ({error}); {fix}"
        ) from error

    def distrust(self, path: str, place: str) -> NoReturn:
        module = path.rpartition(".")[0] or path
        raise ConfigError(
            f"--ckpt_path {self.checkpoint} names {path} ({place}), and to import {_described(module)} may run any "
            "code: it is no class of lit_fed, and no network, data set or layer of torch or torchvision. If you know "
            f"that code, add --trust {module}, or name the class yourself, as in --{place} {path}"
        )

    def refuse(self, place: str, what: str) -> NoReturn:
        raise ConfigError(
            f"--ckpt_path {self.checkpoint}: its {place} {what}; give a checkpoint that a fit of lit_fed has written"
        )

    # ------------------------------------------------------------------ checks
    def check_plain(self, value: Any, place: str) -> None:
        """Refuse values that are not plain or nested too deep."""
        try:
            plain()(value, place)
        except FormError as error:
            self.refuse(place, f"holds something else than it can: {error}")

    def check_options(self, options: Any, of: Callable[..., Any], place: str) -> None:
        """Check options of a class or function; the type of an option decides the meaning of a text in it."""
        if not isinstance(options, dict) or not all(key.isidentifier() for key in options):
            self.refuse(place, "is no list of options")
        kinds = _kinds_of_options(of)
        for name, value in options.items():
            self.check_value(value, f"{place}.{name}", kinds.get(name, "names"))

    def check_value(self, value: Any, place: str, kind: Kind) -> None:
        """Check a value and everything in it."""
        if place == METRICS:
            self._check_metrics(value)
        elif isinstance(value, dict) and "class_path" in value:
            self.check_object(value, place)
        elif kind == "object" and not isinstance(value, dict | str | None):
            self.refuse(place, f"is a {type(value).__name__}, where one object belongs")
        elif isinstance(value, dict | list):
            for one, where in _parts(value, place):
                self.check_value(one, where, "names" if kind == "object" else kind)
        elif isinstance(value, str) and kind != "values":
            if self.holds_configuration(value, kind):
                self.refuse(place, f"is {value[:LONGEST_SHOWN]!r}, which may hold another configuration")
            for path in value.replace(",", " ").split() if kind != "anything" else ():
                of_name = path_of_name(path) if kind == "object" else None
                if of_name is not None or _could_be_imported(path):
                    self.check_reach(self.check_path(of_name or path, place), {}, of_name or path, place)

    def check_object(self, value: dict[str, Any], place: str) -> None:
        """Check a class or function with its options."""
        path = value["class_path"]
        if not isinstance(path, str) or value.keys() - {"class_path", "init_args", "dict_kwargs"}:
            self.refuse(place, "is no class with its options")
        of = self.check_path(path, place)
        self.check_options(value.get("init_args") or {}, of, place)
        self.check_value(value.get("dict_kwargs"), place, "names")
        self.check_reach(of, (value.get("init_args") or {}) | (value.get("dict_kwargs") or {}), path, place)

    def check_reach(self, of: Any, options: dict[str, Any], path: str, place: str) -> None:
        """Refuse a class that reaches other machines, unless the command line names it.

        Args:
            of: the class, or function.
            options: its options.
            path: its path.
            place: the setting that names it.
        """
        if self._is_named(path) or (place.startswith("data.") and not self.reads_data):
            return
        for option, what in getattr(of, "reaches", DOWNLOADS).items():
            value = options.get(option)
            if option and value is not True and not (isinstance(value, str) and _may_be_downloaded(value)):
                continue
            by = f" by its {option} {value}" if option else ""
            self.refuse_reach(path, place, f"{what}{by}")

    def refuse_reach(self, path: str, place: str, what: str) -> NoReturn:
        """Refuse a class for what it does beside reading files.

        Raises:
            ConfigError: naming the class, its place and the fix.
        """
        raise ConfigError(
            f"--ckpt_path {self.checkpoint} names {path} ({place}), which {what}: a checkpoint alone may not do that; "
            f"name the class yourself, as in --{place} {path}"
        )

    def check_named(self, path: str) -> None:
        """Refuse a class of another package that has a name of its own, unless the command line names it."""
        if not self._is_named(path):
            self.distrust(path, "arguments")

    def _is_named(self, path: str) -> bool:
        """Whether the command line names a class, by its long path or the short one, or the user trusts its module."""
        return (
            any(path == one or same_class(path, one) for one in self.named)
            or any(lies_below(path, one) for one in self.trusted)
        )  # fmt: skip

    def _check_metrics(self, value: Any) -> None:
        """Check names of metrics, their paths, and their arguments, which are words and numbers."""
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
        """Import the object at a path, if it is known, named or trusted."""
        if place == OPTIMIZER and self._is_rule(path):
            return None
        if not all(part.isidentifier() for part in path.split(".")):
            self.refuse(place, f"names {path[:LONGEST_SHOWN]!r}, which is no path of a class")
        is_named = self._is_named(path)
        if not is_named and not self._may_be_imported(path):
            self.distrust(path, place)
        try:
            found = import_path(path)
        except Exception as error:  # a user-defined module may raise anything
            self.cannot_import(path, place, error)
        if not is_named and not self.is_known(found, place):
            self.distrust(path, place)
        return found

    def _may_be_imported(self, path: str) -> bool:
        module = path.rpartition(".")[0]
        below = any(lies_below(module, one) for one in self.packages)
        return (below or module in self.short) and not any(part.startswith("_") for part in path.split("."))


def _parts(value: dict[str, Any] | list[Any], place: str) -> list[tuple[Any, str]]:
    """Entries of a list, or keys and entries of an object, with their places."""
    inside = [(one, f"{place}.{key}") for key, one in value.items()] if isinstance(value, dict) else []
    return [(one, place) for one in value] + inside


def _may_be_downloaded(text: str) -> bool:
    """Whether a text names weights or data elsewhere: no file or folder here."""
    return HUB_NAME.fullmatch(text) is not None and not text.endswith(FILES) and not Path(text).exists()


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
    """Kinds of the parameters of a class or function; unknown ones may take names."""
    made = of.__init__ if isinstance(of, type) and not hasattr(of, "_fields") else of  # type: ignore[misc]
    try:
        parameters = inspect.signature(of).parameters
        written = {one.name: one.annotation for one in parameters.values()}
        hints = {name: hint for name, hint in written.items() if hint is not inspect.Parameter.empty}
        hints |= get_type_hints(made)
    except Exception:  # names that are not there, in user-defined code
        return {}
    untold: Kind = "names" if _is_of_torch(made) else "anything"
    return {name: _kind(hints[name]) if name in hints else untold for name in parameters}


def _is_of_torch(made: Any) -> bool:
    """Whether this is code of torch, in which a parameter without a type is often a function."""
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


def without_writes(value: Any, place: str) -> Iterator[str]:
    """Reset the options in plain settings that write to a folder, in place; yields their places."""
    if isinstance(value, list):
        for one in value:
            yield from without_writes(one, place)
    for name, one in value.items() if isinstance(value, dict) else ():
        where = place if name in ("init_args", "dict_kwargs") else f"{place}.{name}"
        if name in WRITES and one not in (False, None):
            value[name] = WRITES[name]
            yield where
        else:
            yield from without_writes(one, where)


def _described(module: str) -> str:
    """A module with its file, where that can be found without importing anything."""
    first = module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(first)
    except (ImportError, ValueError):
        return module
    return f"{module} (there is no such module here)" if spec is None else f"{module} ({spec.origin or 'a folder'})"
