"""Settings from a server or a checkpoint: the classes that they may name, and the objects built from them.

Importing a module runs its code, so every key and value is checked before anything is imported. Classes of lit_fed are
known; a checkpoint may also name layers of `torch.nn`, data sets of PyTorch, metrics of torchmetrics, and networks,
data sets and transforms of torchvision. Any other class must be named or trusted by the user. Settings of a server are
parsed as JSON only, so no text in them can hold a configuration.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import json
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

import yaml
from torch import nn
from torch.utils.data import Dataset

from lit_fed.clients.session import ModelSettings
from lit_fed.core.algorithm import Algorithm
from lit_fed.core.graphs.topology import Topology
from lit_fed.core.local_solver import LocalSolver, is_rule_of_torch
from lit_fed.core.mixtures.surrogate import Surrogate
from lit_fed.core.targets import Loss, Target
from lit_fed.data.data_sets.base import DataSet
from lit_fed.data.partitions.base import Partition
from lit_fed.data.poison import Poison
from lit_fed.errors import ConfigError, notice
from lit_fed.metrics.selection import with_classes
from lit_fed.models.base import Network
from lit_fed.system.names import LONGEST_SHOWN, import_path, lies_below, names_in
from lit_fed.wrappers.compression.codecs import Codec
from lit_fed.wrappers.mixture_start import MixtureStart
from lit_fed.wrappers.privacy.settings import Privacy
from lit_fed.wrappers.robust.attacks import Attack
from lit_fed.wrappers.robust.rules import Rule
from lit_fed.wrappers.secure.wrapper import SecureAggregation
from lit_fed.wrappers.selection import Selection

__all__ = ["CLASSES", "check_modules", "classes_in", "settings_from_json", "trusted_arguments"]

CLASSES: dict[str, type] = {
    "model.algorithm": Algorithm,
    "model.algorithm.base": Algorithm,
    "model.algorithm.start": MixtureStart,
    "model.algorithm.surrogate": Surrogate,
    "model.algorithm.topology": Topology,
    "model.network": Network,
    "model.loss": Loss,
    "model.target": Target,
    "model.privacy": Privacy,
    "model.secure_aggregation": SecureAggregation,
    "model.compression": Codec,
    "model.downlink_compression": Codec,
    "model.robust_aggregation": Rule,
    "model.attack": Attack,
    "model.selection": Selection,
    "data.dataset": DataSet,
    "data.partition": Partition,
    "data.poison": Poison,
}
"""The settings that name a class, and the base of the classes that each takes."""

PLAIN = (str, int, float, bool, type(None))
"""Types of values beside lists and dictionaries."""

VALUES = (*PLAIN, Path)
"""Types of options whose texts name nothing."""

MANY = (list, tuple, dict, object, Sequence, Mapping, Collection)
"""Types of options that hold any other values."""

OPTIMIZER = "model.solver.optimizer"
"""The setting in which the path of a PyTorch optimizer is the name of a rule and is never imported."""

METRICS = "model.metrics"
"""The setting in which names without a module are those of torchmetrics, and keys may be paths."""

DEEPEST = 32
"""Levels of nesting."""

LARGEST = 2**64
"""Upper limit of whole numbers; seeds come close."""

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

Kind = Literal["values", "anything", "names", "object"]
"""Texts that an option takes: plain ones, those that may hold a configuration, those that may be imported.

An `object` is one name or one class with its options: no list and no number.
"""


class Whitelist(ABC):
    """Checks settings from elsewhere; a subclass says which classes are known and how a refusal reads.

    Args:
        named: paths of classes that the user named.
        trusted: modules that the user trusts.

    Attributes:
        packages: packages whose modules may be imported.
        short: packages that offer their classes by a short path; other modules below them are not included.
        bases: base classes of the classes that may be named.
    """

    packages: tuple[str, ...]
    short = ("lit_fed", "torchmetrics")
    bases: tuple[type, ...]

    def __init__(self, named: Collection[str] = (), trusted: Sequence[str] = ()) -> None:
        self.named, self.trusted = named, trusted

    # ------------------------------------------------------------------ given by subclasses
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
        """Refuse values that are not plain or nested too deep."""
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
                if _could_be_imported(path):
                    self.check_path(path, place)

    def check_object(self, value: dict[str, Any], place: str) -> None:
        """Check a class or function with its options."""
        path = value["class_path"]
        if not isinstance(path, str) or value.keys() - {"class_path", "init_args", "dict_kwargs"}:
            self.refuse(place, "is no class with its options")
        of = self.check_path(path, place)
        self.check_options(value.get("init_args") or {}, of, place)
        self.check_value(value.get("dict_kwargs"), place, "names")

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
        if place == OPTIMIZER and is_rule_of_torch(path):
            return None
        if not all(part.isidentifier() for part in path.split(".")):
            self.refuse(place, f"names {path[:LONGEST_SHOWN]!r}, which is no path of a class")
        is_named = path in self.named or any(lies_below(path, one) for one in self.trusted)
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
        hints, parameters = get_type_hints(made), inspect.signature(of).parameters
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


# ---------------------------------------------------------------------- settings of a server
class _Sent(Whitelist):
    """The classes that the settings of a server may name."""

    packages = (
        "lit_fed.algorithms", "lit_fed.core", "lit_fed.models", "lit_fed.wrappers",
        "torchmetrics.classification", "torchmetrics.regression",
    )  # fmt: skip
    bases = (nn.Module, *(base for option, base in CLASSES.items() if option.startswith("model.")))

    def is_known(self, found: Any, place: str) -> bool:
        """Whether something is a class of lit_fed for one of the settings, or of torchmetrics for the metrics."""
        if not isinstance(found, type) or not issubclass(found, self.bases) or found in self.bases:
            return False
        return lies_below(found.__module__, "lit_fed") or (
            place == METRICS and lies_below(found.__module__, "torchmetrics")
        )

    def distrust(self, path: str, place: str) -> NoReturn:
        module = path.rpartition(".")[0]
        raise ConfigError(
            f"the server asks for {path} ({place}), which is no class of lit_fed that settings may name; if you know "
            f"that code and it is installed here, start the client with --trust {module or path}"
        )

    def cannot_import(self, path: str, place: str, error: Exception) -> NoReturn:
        raise ConfigError(f"the server asks for {path} ({place}), which cannot be imported here: {error}") from error

    def refuse(self, place: str, what: str) -> NoReturn:
        raise ConfigError(f"the server sends settings whose {place} {what}; start both sides from the same lit_fed")


def settings_from_json(section: Mapping[str, Any], trusted: Sequence[str] = ()) -> ModelSettings:
    """The settings of a module from the section `model` of a configuration.

    All of them are checked before anything is imported or made.

    Args:
        section: classes as `class_path` and `init_args`, all else in plain types.
        trusted: modules whose classes may be made, besides those of lit_fed.

    Raises:
        ConfigError: naming a class or a setting that a node does not make.
    """
    known, hints = _Sent(trusted=trusted), get_type_hints(ModelSettings)
    known.check_plain(section, "model")
    if not isinstance(section, dict) or section.keys() != hints.keys():
        wrong = sorted(section.keys() ^ hints.keys()) if isinstance(section, dict) else type(section).__name__
        raise ConfigError(f"the server sends the settings {wrong}, which this version does not know or misses")
    known.check_options(section, ModelSettings, "model")
    metrics = with_classes(section["metrics"], lambda path: known.check_path(path, METRICS))
    given, made = section | {"metrics": metrics}, _Maker(known)
    settings = ModelSettings(**{name: made.value(one, hints[name], f"model.{name}") for name, one in given.items()})
    settings.check()
    return settings


class _Maker:
    """Builds objects from checked settings."""

    def __init__(self, known: Whitelist) -> None:
        self._known = known

    def value(self, value: Any, hint: Any, place: str) -> Any:
        """An object of a type from plain types."""
        if place == METRICS:
            return value
        if isinstance(value, dict) and "class_path" in value:
            kind = self._known.check_path(value["class_path"], place)
            return self._call(kind, value.get("init_args") or {}, place, delayed=_is_maker(hint, kind))
        if isinstance(value, str) and not _fits(value, hint):
            return self.value({"class_path": value}, hint, place)
        if isinstance(value, dict):
            structure: Any = next((one for one in _alternatives(hint) if is_dataclass(one)), None)
            if structure is not None:
                return self._call(structure, value, place)
        if not _fits(value, hint):
            self._known.refuse(place, f"is {str(value)[:LONGEST_SHOWN]!r}, which is no value of this setting")
        if isinstance(value, dict):
            return {key: self.value(one, Any, f"{place}.{key}") for key, one in value.items()}
        if isinstance(value, list):
            inner = next((get_args(one) for one in _alternatives(hint) if get_origin(one) in (list, tuple)), ())
            made = [self.value(one, inner[0] if inner else Any, place) for one in value]
            return tuple(made) if any(get_origin(one) is tuple for one in _alternatives(hint)) else made
        return float(value) if type(value) is int and not _fits_whole(hint) else value

    def _call(self, kind: Callable[..., Any], given: Any, place: str, *, delayed: bool = False) -> Any:
        """The object built by a class or function from its options; `delayed`: a callable that takes more options."""
        if not callable(kind):
            self._known.refuse(place, "is an object that cannot be called")
        made_by: Any = kind.__init__ if isinstance(kind, type) else kind  # type: ignore[misc] # of that very class
        hints = get_type_hints(made_by)
        options = {name: self.value(value, hints.get(name, Any), f"{place}.{name}") for name, value in given.items()}
        if delayed:
            return partial(kind, **options) if options else kind
        try:
            return kind(**options)
        except (
            ArithmeticError,
            LookupError,
            TypeError,
            ValueError,
        ) as error:  # values that its own checks do not cover
            raise ConfigError(f"{place} cannot be made of what the server sends: {error}") from error


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a plain value may stand where an option has this type."""
    return any(_fits_one(value, one) for one in _alternatives(hint))


def _fits_one(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    if get_origin(hint) is Literal:
        return any(value == one and type(value) is type(one) for one in get_args(hint))
    kind = get_origin(hint) or (type(None) if hint is None else hint)
    if not isinstance(kind, type):
        return False
    if isinstance(value, list | dict):
        return issubclass(type(value), kind) or (kind is tuple and isinstance(value, list))
    if type(value) is int:
        return kind in (int, float)
    return kind is type(value) and kind in PLAIN


def _fits_whole(hint: Any) -> bool:
    """Whether an integer may stay an integer; for options of type float it becomes one."""
    return any(one in (int, Any) or get_origin(one) is Literal for one in _alternatives(hint))


def _is_maker(hint: Any, kind: Any) -> bool:
    """Whether an option takes a factory, such as a network to be built from the sizes of the data."""
    wants = any(get_origin(one) is not None and callable(get_origin(one)) and "Callable" in str(one) for one in
                _alternatives(hint))  # fmt: skip
    return wants and (not isinstance(kind, type) or issubclass(kind, nn.Module))


# ---------------------------------------------------------------------- arguments in a checkpoint
class _Stored(Whitelist):
    """The classes that the arguments in a checkpoint may name.

    Args:
        checkpoint: its path.
        named: paths of classes that the command line names itself.
        trusted: modules that the user trusts.
    """

    packages = (
        "lit_fed.algorithms", "lit_fed.core", "lit_fed.data", "lit_fed.deployment", "lit_fed.models",
        "lit_fed.wrappers", "torch.nn", "torch.utils.data", "torchmetrics.classification", "torchmetrics.regression",
        "torchvision.datasets", "torchvision.models", "torchvision.ops", "torchvision.transforms",
    )  # fmt: skip
    bases = (LocalSolver, nn.Module, Dataset, *CLASSES.values())  # metrics are modules; transforms may have no base

    def __init__(self, checkpoint: Path, named: Collection[str], trusted: Sequence[str]) -> None:
        super().__init__(named, trusted)
        self.checkpoint = checkpoint

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
            if "class_path" in text or isinstance(yaml.safe_load(text), dict | list):
                return True
            return kind != "anything" and Path(text).is_file()
        except (yaml.YAMLError, RecursionError, ValueError, OSError):  # a name that no file can have
            return False

    def cannot_import(self, path: str, place: str, error: Exception) -> NoReturn:
        raise ConfigError(
            f"--ckpt_path {self.checkpoint} names {path} ({place}), which cannot be imported ({error}); start where it "
            "can be, or install what it needs"
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


def check_modules(trusted: Sequence[str]) -> None:
    """Refuse names that are not names of modules.

    Raises:
        ConfigError: naming it.
    """
    for name in trusted:
        if name.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
            meant = Path(name).stem if name.endswith(".py") else "my_module"
            raise ConfigError(f"--trust {name}: give the name of a module that Python imports, such as {meant}")


def classes_in(config: Any) -> set[str]:
    """The paths of classes and functions in a parsed configuration, those of metrics and update rules among them."""
    if isinstance(config, argparse.Namespace):  # jsonargparse's derives from it
        config = vars(config)
    if isinstance(config, Mapping):
        own = {config["class_path"]} if isinstance(config.get("class_path"), str) else set()
        own |= {one for name in ("metrics", "optimizer") for one in _paths_in(config.get(name))}
        return own.union(*map(classes_in, config.values()))
    return set().union(*map(classes_in, config)) if isinstance(config, list | tuple) else set()


def _paths_in(given: Any) -> set[str]:
    """The paths in a choice of metrics, where a key or a text may be one, or of a user-defined update rule."""
    if isinstance(given, str):
        return {one.strip() for one in given.split(",") if "." in one and not is_rule_of_torch(one)}
    if isinstance(given, Mapping):
        given = [*given, *given.values()]
    return set().union(*map(_paths_in, given)) if isinstance(given, list | tuple) else set()


def trusted_arguments(stored: Any, checkpoint: Path, named: Collection[str], trusted: Sequence[str]) -> dict[str, Any]:
    """The arguments in a checkpoint, if taking them runs no code but that of known packages.

    Args:
        stored: the arguments.
        checkpoint: where they are from.
        named: paths of classes that the command line names itself.
        trusted: modules that the user trusts.

    Returns:
        The arguments, without those that write to a folder, which are named on stderr.

    Raises:
        ConfigError: naming the class, its module, the checkpoint and what to do; or a value of no argument.
    """
    from lit_fed.data.module import FederatedDataModule  # loads Lightning, which a node does not need

    known = _Stored(checkpoint, named, trusted)
    try:
        given = json.loads(json.dumps(stored))
    except (TypeError, ValueError, RecursionError):
        known.refuse("arguments", "is no plain value")
    sections: dict[str, Any] = {"model": ModelSettings, "data": FederatedDataModule}
    if not isinstance(given, dict) or given.keys() - {"seed_everything", "trainer", *sections}:
        known.refuse("arguments", "has other sections than those of a run")
    trainer = given.get("trainer", {})
    if not isinstance(trainer, dict) or trainer.keys() - {"precision"}:
        known.refuse("trainer", "has other settings than the precision")
    for key in ("seed_everything", *(f"trainer.{one}" for one in trainer)):
        value = given.get(key) if key == "seed_everything" else trainer["precision"]
        if not isinstance(value, str | int | None):
            known.refuse(key, "is no plain value")
    for name, of in sections.items():
        known.check_plain(given.get(name, {}), name)
        known.check_options(given.get(name, {}), of, name)
    for place in _leave_out_writes(given.get("data"), "data"):
        notice(f"--ckpt_path {checkpoint}: its {place} writes to a folder and is ignored; give --{place} yourself")
    return given


def _leave_out_writes(value: Any, place: str) -> Iterator[str]:
    """Reset the options in plain settings that write to a folder; yields their places."""
    if isinstance(value, list):
        for one in value:
            yield from _leave_out_writes(one, place)
    for name, one in value.items() if isinstance(value, dict) else ():
        where = place if name in ("init_args", "dict_kwargs") else f"{place}.{name}"
        if name in WRITES and one not in (False, None):
            value[name] = WRITES[name]
            yield where
        else:
            yield from _leave_out_writes(one, where)


def _described(module: str) -> str:
    """A module with its file, where that can be found without importing anything."""
    first = module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(first)
    except (ImportError, ValueError):
        return module
    return f"{module} (there is no such module here)" if spec is None else f"{module} ({spec.origin or 'a folder'})"
