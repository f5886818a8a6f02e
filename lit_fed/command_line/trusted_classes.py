"""Classes that a checkpoint names: importing one runs the code of its module, so only known ones are imported unasked.

A checkpoint holds the arguments of its run, and with them paths of classes and functions. Of these the command line
takes the classes of lit_fed, layers of `torch.nn`, data sets of PyTorch, and networks, data sets and transforms of
torchvision. Anything else must have been named by the person at the keyboard.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, Union, get_args, get_origin, get_type_hints

import yaml
from jsonargparse import Namespace
from jsonargparse.typing import import_object  # type: ignore[attr-defined]
from torch import nn
from torch.utils.data import Dataset

from lit_fed.command_line.classes import CLASSES
from lit_fed.command_line.moved_classes import with_present_paths
from lit_fed.core.errors import ConfigError
from lit_fed.core.local_solver import LocalSolver
from lit_fed.data.module import FederatedDataModule
from lit_fed.training.module import FederatedModule

__all__ = ["check_modules", "classes_in", "trusted_arguments"]

BASES = (LocalSolver, nn.Module, Dataset, *(base for _, base in CLASSES.values()))
"""What a class that a checkpoint names derives from, metrics among them: those of torchmetrics are modules.

Those of `torchvision.transforms` may have no base.
"""

MODULES = ("lit_fed", "torch.nn", "torch.utils.data.dataset", "torchmetrics", "torchvision")
"""Where such a class is defined."""

OWN_METRICS = "model.metrics"
"""Where names without a module are those of torchmetrics."""

VALUES = (str, int, float, bool, type(None), Path)
"""Types of parameters whose texts name nothing."""

MOST_LETTERS = 100
"""Of a text that a message repeats."""

Kind = Literal["values", "anything", "names"]
"""What an option takes: texts that mean themselves, those that may hold a configuration, those that may be imported."""


class _Stored(NamedTuple):
    """What is known when the arguments in a checkpoint are looked at."""

    checkpoint: Path
    named: Collection[str]  # paths of classes that the command line names itself
    trusted: Sequence[str]  # modules

    def check_options(self, options: Any, of: Callable[..., Any], place: str) -> None:
        """Options of a class or function; what a text in one may mean follows from the option's type."""
        if not isinstance(options, dict) or not all(key.isidentifier() for key in options):
            self.refuse(place, "is no list of options")
        kinds = _kinds_of_options(of)
        for name, value in options.items():
            self.check_value(value, f"{place}.{name}", kinds.get(name, "names"))

    def check_value(self, value: Any, place: str, kind: Kind) -> None:
        """A value, and all that it holds."""
        if isinstance(value, dict) and "class_path" in value:
            self.check_object(value, place)
        elif isinstance(value, dict | list):
            for one in value if isinstance(value, list) else (*value, *value.values()):
                self.check_value(one, place, kind)
        elif isinstance(value, str) and kind != "values":
            if _is_configuration(value, kind):
                self.refuse(place, f"is {value[:MOST_LETTERS]!r}, which may hold another configuration")
            for path in value.replace(",", " ").split() if kind == "names" else ():
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

    def check_path(self, path: str, place: str) -> Any:
        """What a path leads to, once it is known that it may be imported."""
        if "." not in path and place.startswith(OWN_METRICS):
            return _anything
        is_named = path in self.named or any(f"{path}.".startswith(f"{one}.") for one in self.trusted)
        if not is_named and not _lies_in_known_module(path):
            self.distrust(path, place)
        try:
            found = import_object(path)
        except Exception as error:  # whatever code of one's own raises
            raise ConfigError(
                f"--ckpt_path {self.checkpoint} names {path} ({place}), which cannot be imported ({error}); start "
                "where it can be, or install what it needs"
            ) from error
        if not is_named and not _is_known(found):
            self.distrust(path, place)
        return found

    def distrust(self, path: str, place: str) -> NoReturn:
        """Refuse what nobody has named."""
        module = path.rpartition(".")[0] or path
        raise ConfigError(
            f"--ckpt_path {self.checkpoint} names {path} ({place}), and to import {_described(module)} may run any "
            "code: it is no class of lit_fed, and no network, data set or layer of torch or torchvision. If you know "
            f"that code, add --trust {module}, or name the class yourself, as in --{place} {path}"
        )

    def refuse(self, place: str, what: str) -> NoReturn:
        """Refuse arguments that no run has."""
        raise ConfigError(
            f"--ckpt_path {self.checkpoint}: its {place} {what}; give a checkpoint that a fit of lit_fed has written"
        )


def check_modules(trusted: Sequence[str]) -> None:
    """Refuse what is no name of a module.

    Args:
        trusted: what stands behind `--trust`.

    Raises:
        ConfigError: naming it.
    """
    for name in trusted:
        if name.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
            meant = Path(name).stem if name.endswith(".py") else "my_module"
            raise ConfigError(f"--trust {name}: give the name of a module that Python imports, such as {meant}")


def classes_in(config: Any) -> set[str]:
    """The paths of classes and functions in a parsed configuration."""
    if isinstance(config, Namespace):
        config = vars(config)
    if isinstance(config, Mapping):
        own = {config["class_path"]} if isinstance(config.get("class_path"), str) else set()
        return own.union(*map(classes_in, config.values()))
    return set().union(*map(classes_in, config)) if isinstance(config, list | tuple) else set()


def trusted_arguments(stored: Any, checkpoint: Path, named: Collection[str], trusted: Sequence[str]) -> dict[str, Any]:
    """The arguments in a checkpoint, if taking them runs no code but that of known packages.

    Args:
        stored: the arguments.
        checkpoint: where they are from.
        named: paths of classes that the command line names itself.
        trusted: modules that it trusts.

    Returns:
        The arguments, with the present paths of classes that have moved.

    Raises:
        ConfigError: naming the class, its module, the checkpoint and what to do; or what is no argument of a run.
    """
    known = _Stored(checkpoint, named, trusted)
    try:
        given = json.loads(with_present_paths(json.dumps(stored)))
    except (TypeError, ValueError, RecursionError):
        known.refuse("arguments", "is no plain value")
    sections: dict[str, Any] = {"model": FederatedModule, "data": FederatedDataModule}
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
        known.check_options(given.get(name, {}), of, name)
    return given


def _anything(**_: Any) -> None:
    """Stands for a class that is not looked for here; any of its options may name something."""


def _could_be_imported(text: str) -> bool:
    """Whether a text is the path of something in a module that there is; the module itself is not imported."""
    first, *rest = text.split(".")
    if not rest or not all(part.isidentifier() for part in (first, *rest)):
        return False
    try:
        return importlib.util.find_spec(first) is not None
    except (ImportError, ValueError):  # a module without a specification, such as that of a program
        return True


def _described(module: str) -> str:
    """A module with its file, where that can be found without importing anything."""
    first = module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(first)
    except (ImportError, ValueError):
        return module
    return f"{module} (there is no such module here)" if spec is None else f"{module} ({spec.origin or 'a folder'})"


def _lies_in_known_module(path: str) -> bool:
    return any(f"{path}.".startswith(f"{one.partition('.')[0]}.") for one in MODULES)


def _is_known(found: Any) -> bool:
    """Whether something is a class of the right kind from the right place, or makes a network of torchvision."""
    if not isinstance(found, type):
        from torchvision import models  # here, since it takes more than a second, and few checkpoints name functions

        name = getattr(found, "__name__", None)
        return name in models.list_models() and models.get_model_builder(name) is found
    module = f"{found.__module__}."
    if module.startswith("lit_fed."):
        return issubclass(found, BASES) or is_dataclass(found)  # settings
    known = any(module.startswith(f"{one}.") for one in MODULES)
    return known and (issubclass(found, BASES) or module.startswith("torchvision.transforms."))


def _is_configuration(text: str, kind: Kind) -> bool:
    """Whether the parser would read a text as a configuration, or as the name of a file with one."""
    try:
        if "class_path" in text or isinstance(yaml.safe_load(text), dict | list):
            return True
        return kind == "names" and Path(text).is_file()
    except (yaml.YAMLError, RecursionError, ValueError, OSError):  # a name that no file can have
        return False


def _kinds_of_options(of: Callable[..., Any]) -> dict[str, Kind]:
    """What the parameters of a class or function take; those that are not known here may take names."""
    made = of.__init__ if isinstance(of, type) else of  # type: ignore[misc]
    try:
        hints, parameters = get_type_hints(made), inspect.signature(made).parameters
    except Exception:  # names that are not there, of code of one's own
        return {}
    untold: Kind = "names" if _is_of_torch(made) else "anything"
    kinds = {name: _kind(hints[name]) if name in hints else untold for name in parameters}
    if of is FederatedModule:
        kinds["metrics"] = "names"  # not the parser's: they are imported where they are chosen
    return kinds


def _is_of_torch(made: Any) -> bool:
    """Whether this is code in which a parameter without a type is often a function, and never an unusual text."""
    return str(getattr(made, "__module__", "")).partition(".")[0] in ("torch", "torchvision")


def _kind(hint: Any) -> Kind:
    origin = get_origin(hint)
    if origin is None:
        return "values" if hint in VALUES else "anything" if hint is Any else "names"
    if origin is Literal:
        return "values"
    inside = {_kind(one) for one in get_args(hint) if one is not ...}
    if "names" in inside or origin not in (Union, types.UnionType, list, tuple, dict, Sequence, Mapping):
        return "names"
    return "anything" if "anything" in inside else "values"
