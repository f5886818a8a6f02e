"""Options that name a class or a function: hints at wrong names, and networks that do not derive from `Network`."""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from jsonargparse.typing import import_object  # type: ignore[attr-defined]
from torch import nn
from torch.utils.data import Dataset

from lit_fed.command_line.help import plain_type
from lit_fed.core.algorithm import Algorithm
from lit_fed.core.graphs.topology import Topology
from lit_fed.core.local_solver import LocalSolver, is_rule_of_torch
from lit_fed.core.mixtures.surrogate import Surrogate
from lit_fed.core.targets import Loss, Target
from lit_fed.data.data_sets.base import DataSet
from lit_fed.data.module import FederatedDataModule
from lit_fed.data.partitions.base import Partition
from lit_fed.data.poison import Poison
from lit_fed.errors import ConfigError, notice
from lit_fed.models.base import Network, size_names
from lit_fed.system.discovery import bases_of, entry_points, subclasses
from lit_fed.system.names import did_you_mean, lies_below, nearest
from lit_fed.system.upgrade import instead_of
from lit_fed.training.module import FederatedModule
from lit_fed.wrappers.feature import features
from lit_fed.wrappers.mixture_start import MixtureStart

__all__ = [
    "CLASSES", "NETWORK", "as_function", "check_modules", "check_parsed", "classes_in", "near_class",
    "options_of_other_classes", "options_of_own_network", "refuse_file", "trusted_arguments", "with_function",
]  # fmt: skip

CLASSES: dict[str, type] = {
    "model.algorithm": Algorithm,
    "model.algorithm.base": Algorithm,
    "model.algorithm.start": MixtureStart,
    "model.algorithm.surrogate": Surrogate,
    "model.algorithm.topology": Topology,
    "model.network": Network,
    "model.loss": Loss,
    "model.target": Target,
    **{f"model.{name}": base for kind in features() for name, base in bases_of(kind).items()},
    "data.dataset": DataSet,
    "data.partition": Partition,
    "data.poison": Poison,
}
"""The settings that name a class, and the base of the classes that each takes."""

NETWORK = "model.network"

OF_OTHERS: dict[str, type] = {"data.dataset.source": Dataset, "data.dataset.test_source": Dataset}
"""Settings whose classes come from elsewhere, so that there is no list of them."""

RELATIVES = {
    "dca": "MixtureDCA", "adca": "MixtureDCA", "l2sgd": "L2GD with --model.algorithm.gradient stochastic",
    "mapper": "APFL", "pfedmac": "PFedMe", "reptile": "FedAvgPlus, with --model.weighting uniform",
    "maml": "PerFedAvg", **dict.fromkeys(["proxskip", "scaffnew"], "SCAFFOLD"),
    "flhc": "ClusteredFL with --model.algorithm.linkage complete",
    "fedasync": "FedBuff with --model.algorithm.buffer_size 1", "apple": "FedFOMO",
    **dict.fromkeys(["mime", "mimelite"], "SCAFFOLD, or FedAvgM"),
    "fedcac": "FedALA", "pfldyn": "FedDyn", **dict.fromkeys(["fedpd", "fedsplit", "feddr"], "FedADMM"),
    **dict.fromkeys(["feddistill", "fd"], "FedProto"), "feddf": "FedGen", "ccvr": "PFedFDA",
    "dittol2sgd": "L2SGDPlus", "meanregularizedmtl": "MOCHA, or FedU", "fedemapfl": "APFL",
    "cfl": "ClusteredFL", "hypcluster": "IFCA", "dfedavg": "DFedEM", "dfedavgm": "DFedEM",
    "dsgd": "DPSGD", "decentralizedsgd": "DPSGD", "dpsgd": "DPSGD, which is decentralised SGD, or FedAvg with "
    "--model.privacy ExamplePrivacy", "powerofchoice": "FedAvg with --model.selection PowerOfChoice",
    "fedbn": "FedAvg with --model.batch_norm local", "dpfedavg": "FedAvg with --model.privacy ClientPrivacy",
    "krum": "FedAvg with --model.robust_aggregation Krum", "secagg": "FedAvg with --model.secure_aggregation SecureSum",
}  # fmt: skip
"""Well-known algorithms that are not here, in small letters without signs, and the nearest that is."""

FILES = {".py", ".csv", ".tsv", ".parquet", ".npz", ".npy", ".pt", ".pth", ".ckpt", ".txt", ".zip", ".gz"}
"""Endings of files that are given by mistake where a class, or a configuration of one, is wanted."""


MOST_NAMES = 10
"""Maximum number of names of a user's module in a message."""


def near_class(place: str, given: str) -> str:
    """A hint at the class that a setting takes in place of a name that it does not take; "" where none is known.

    Args:
        place: the setting, or its last part in the parser of a class.
        given: the name, or path.
    """
    setting = next((one for one in CLASSES if place in (one, one.rpartition(".")[2])), None)
    if setting is None:
        return ""
    if gone := instead_of(f"{setting} {given.rpartition('.')[2]}"):
        return "; ".join(gone)
    base = CLASSES[setting]
    name = given.rpartition(".")[2] if lies_below(given, "lit_fed") else given  # a config.yaml has paths
    relative = RELATIVES.get(re.sub("[^a-z0-9]", "", name.lower())) if base is Algorithm else None
    if relative is not None:
        return f"its nearest relative here is {relative}"
    if "." in given and not lies_below(given, "lit_fed"):
        return _near_in_module(given, base)
    paths = {one.__name__: _written(one) for one in subclasses(base)}
    near = [paths[name] for name in nearest(given.rpartition(".")[2], paths, cutoff=0.75)]
    known = f"--{place} takes {', '.join(sorted(paths))}, or the path of a class of your own"
    return did_you_mean(given, (), known, first=near)


def _near_in_module(given: str, base: type) -> str:
    """A hint at what the module of a path defines: classes below the base, or whatever may make a network."""
    module, _, name = given.rpartition(".")
    try:
        inside = vars(importlib.import_module(module))
    except ModuleNotFoundError:
        return f"Python finds no module {module}; start in the folder of its file, or set PYTHONPATH"
    except Exception as error:  # whatever the module's code raises
        return f"{module} cannot be imported: {error}"
    package = module.partition(".")[0]
    known = [
        one for one, found in inside.items()
        if (callable(found) if base is Network else isinstance(found, type) and issubclass(found, base))
        and lies_below(found.__module__, package)
    ]  # fmt: skip
    near = [f"{module}.{one}" for one in nearest(name, known)]
    few = f"; it has {', '.join(known)}" if 0 < len(known) <= MOST_NAMES else ""
    return did_you_mean(given, (), f"{module} has no {name}{few}", first=near)


def _written(cls: type) -> str:
    """The name of a class on the command line: with its module, unless it is one of lit_fed."""
    return cls.__name__ if lies_below(cls.__module__, "lit_fed") else f"{cls.__module__}.{cls.__name__}"


def refuse_file(option: str, value: str) -> None:
    """Refuse a file given as a class, before the parser reads it as a configuration.

    Raises:
        ConfigError: naming option and file, and the fix.
    """
    if option.removeprefix("--") not in OF_OTHERS | CLASSES or Path(value).suffix not in FILES:
        return
    if value.endswith(".py"):
        instead = f"give its name behind the file's, as in {Path(value).stem}.MyClass, from the folder of the file"
    elif option == "--data.dataset":
        instead = "give ClientFolder, and by --data.dataset.root a folder with one .npz file for each client"
    else:
        instead = f"`fit {option}.help NAME` describes a class"
    raise ConfigError(f"{option} {value}: this is a file, and the option takes a class; {instead}")


def check_parsed(parser: Any, config: Namespace) -> None:
    """Refuse values that jsonargparse accepts although no object can be made of them: null, and base classes.

    Raises:
        ConfigError: naming the option.
    """
    for action in parser._actions:
        chosen = config.get(action.dest, "absent")
        if chosen is None and action.default is not None and hasattr(action, "_typehint"):
            kind = plain_type(str(action._typehint))
            if "null" not in kind.split(" | "):
                raise ConfigError(f"--{action.dest} is null; give a value of type {kind}, or leave it out")
    for setting, base in CLASSES.items():
        chosen = config.get(setting, "absent")
        if _is_class(chosen):
            if import_object(chosen.class_path) is base:
                names = ", ".join(sorted(one.__name__ for one in subclasses(base)))
                raise ConfigError(f"--{setting} {base.__name__}: the base of all of them; choose one of {names}")
            options = inspect.signature(import_object(chosen.class_path)).parameters
            for name, value in vars(chosen.get("init_args") or Namespace()).items():  # type: ignore[no-untyped-call]
                if value is None and name in options and not _takes_null(options[name]):
                    raise ConfigError(f"--{setting}.{name} is null; give a value, or leave it out")
        elif chosen is None and setting == "model.algorithm":
            raise ConfigError(f"--{setting} is null; leave it out, or give a class")


def options_of_other_classes(layers: Sequence[Namespace], config: Namespace, given: Collection[str]) -> Iterator[str]:
    """Options of a configuration's class that stay when another class is named later.

    Args:
        layers: configurations in their order, without defaults.
        config: all arguments.
        given: options of the command line, such as `--model.algorithm`.
    """
    for number, layer in enumerate(layers):
        for key in layer.keys(branches=True):
            block, now = layer.get(key), config.get(key)
            if not (_is_class(block) and _is_class(now)):
                continue
            option = f"--{key.replace('.init_args.', '.')}"
            kept, lost = list[str](), list[str]()
            options: Any = block.get("init_args")
            for name, value in (vars(options) if options else {}).items():
                place = f"{key}.init_args.{name}"
                later = any(place in one for one in layers[number + 1 :])
                if not (later or any(f"{one}.".startswith(f"{option}.{name}.") for one in given)):
                    stays = place in config and _same(value, config[place])
                    shown = name if isinstance(value, Namespace | dict | list) else f"{name}={value}"
                    (kept if stays else lost).append(shown if stays else name)
            if lost or (kept and block.class_path != now.class_path):
                said = [f"{', '.join(names)} {what}" for names, what in ((kept, "kept"), (lost, "left out")) if names]
                old, new = (one.class_path.rpartition(".")[2] for one in (block, now))
                yield f"{option} {new}: of the configuration's options of {old}, {', '.join(said)}"


def _is_class(value: Any) -> bool:
    return isinstance(value, Namespace) and "class_path" in value


def _same(value: Any, now: Any) -> bool:
    """Whether an option is as it was given; a class counts without its options, and a list whatever it holds."""
    if _is_class(value):
        return _is_class(now) and bool(value.class_path == now.class_path)
    return isinstance(value, list) or bool(value == now)


def _takes_null(parameter: Any) -> bool:
    return parameter.default is None or "None" in str(parameter.annotation) or "Optional" in str(parameter.annotation)


# ---------------------------------------------------------------------- arguments in a checkpoint
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


def trusted_arguments(
    stored: Any, checkpoint: Path, named: Collection[str], trusted: Sequence[str], *, reads_data: bool = True
) -> dict[str, Any]:
    """The arguments in a checkpoint, if taking them runs no code but that of known packages.

    Args:
        stored: the arguments.
        checkpoint: where they are from.
        named: paths of classes that the command line names itself.
        trusted: modules that the user trusts.
        reads_data: whether the command reads the data set.

    Returns:
        The arguments, without those that write to a folder, which are named on stderr.

    Raises:
        ConfigError: naming the class, its module, the checkpoint and what to do; or a value of no argument.
    """
    from lit_fed.system.whitelist import Whitelist, without_writes

    known = Whitelist(
        checkpoint, (LocalSolver, *CLASSES.values()), is_rule_of_torch, named, trusted, reads_data=reads_data
    )
    try:
        given = json.loads(json.dumps(stored))
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
    words = {*re.findall(r"\w+", json.dumps(given))} & entry_points().keys()
    for path in (entry_points()[one].value.replace(":", ".") for one in sorted(words)):
        known.check_named(path)
    for name, of in sections.items():
        known.check_plain(given.get(name, {}), name)
        known.check_options(given.get(name, {}), of, name)
    for place in without_writes(given.get("data"), "data"):
        notice(f"--ckpt_path {checkpoint}: its {place} writes to a folder and is ignored; give --{place} yourself")
    return given


# ---------------------------------------------------------------------- networks that do not derive from Network
def with_function(option: str, value: str) -> str:
    """The value of an option; a function that makes a network as a class path, so that it can have options."""
    if option != f"--{NETWORK}" or "." not in value or value.lstrip().startswith("{"):
        return value
    try:
        found = import_object(value)
    except (ImportError, ValueError, AttributeError):  # the parser reports it
        return value
    return json.dumps({"class_path": value}) if callable(found) and not isinstance(found, type) else value


def options_of_own_network(maker: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Options of the parser for a plain class or a function: no sizes, which the data give, and any types."""
    is_class = isinstance(maker, type)
    if is_class and (not issubclass(maker, nn.Module) or Network in maker.__mro__):
        return kwargs
    return {**kwargs, "skip": size_names(maker), "fail_untyped": False}


def as_function(chosen: Any) -> Any:
    """The parsed network; if it is the path of a function, that function with its options bound.

    The parser would call the function at once, which needs the sizes of the data.
    """
    found = import_object(chosen.class_path) if _is_class(chosen) else chosen
    if found is chosen or isinstance(found, type):
        return chosen
    options: Any = chosen.get("init_args")
    return partial(found, **(vars(options) if options else {}), **(chosen.get("dict_kwargs") or {}))
