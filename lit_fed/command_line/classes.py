"""Options that name a class: which classes there are, and what is said of a name that is none of them."""

from __future__ import annotations

import difflib
import inspect
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from jsonargparse.typing import import_object  # type: ignore[attr-defined]
from torch.utils.data import Dataset

from lit_fed.core.algorithm import Algorithm
from lit_fed.core.graphs.topology import Topology
from lit_fed.core.mixtures.surrogate import Surrogate
from lit_fed.core.targets import Loss
from lit_fed.data.data_sets.base import DataSet
from lit_fed.data.partitions.base import Partition
from lit_fed.data.poison import Poison
from lit_fed.errors import ConfigError
from lit_fed.models.base import Network
from lit_fed.wrappers.compression.codecs import Codec
from lit_fed.wrappers.privacy.settings import Privacy
from lit_fed.wrappers.robust.attacks import Attack
from lit_fed.wrappers.robust.rules import Rule
from lit_fed.wrappers.secure.settings import SecureAggregation

__all__ = ["CLASSES", "check_classes", "class_names", "explain_class", "refuse_files", "subclasses"]

CLASSES: dict[str, tuple[str, type]] = {
    "--model.algorithm": ("model.algorithm", Algorithm),
    "--model.algorithm.surrogate": ("surrogate", Surrogate),
    "--model.algorithm.topology": ("topology", Topology),
    "--model.network": ("model.network", Network),
    "--model.loss": ("model.loss", Loss),
    "--model.privacy": ("model.privacy", Privacy),
    "--model.secure_aggregation": ("model.secure_aggregation", SecureAggregation),
    "--model.compression": ("model.compression", Codec),
    "--model.downlink_compression": ("model.downlink_compression", Codec),
    "--model.robust_aggregation": ("model.robust_aggregation", Rule),
    "--model.attack": ("model.attack", Attack),
    "--data.dataset": ("data.dataset", DataSet),
    "--data.partition": ("data.partition", Partition),
    "--data.poison": ("data.poison", Poison),
}
"""For each option that names a class: what jsonargparse's messages call the option, and the base of the classes."""

NO_CLASS = re.compile(
    r"Expected a dot import path string: (?P<a>.*)|Problem with given class_path '(?P<b>.*?)'|"
    r"Import path (?P<c>\S+) does not correspond|(?:No module named|has no attribute) .*Got value: (?P<d>\S+)"
)
"""What jsonargparse says of a class that cannot be found."""

ABSTRACT = re.compile(
    r"[Ee]xpected (?:an )?instantiatable class, but (?:([\w.]+) )?is abstract(?:.*Given value: (\S+))?", re.DOTALL
)
"""What it says of a class that is only a base of others."""

NO_CLASS_YET = re.compile(r"Expected an instantiatable class, but lit_fed\.\S+ is abstract")
"""What it says of options of a class where no class is given, and it takes the base."""

OTHER_KIND = re.compile(r"Expected '(\S+)' to be a (?:subclass of|function that returns) <class '")
"""What it says of a module that is no network of lit_fed."""

REQUIRED = re.compile(r"the following arguments are required: (?:--)?([\w, -]+)")
"""What it says of a class or function that does not get all that it needs."""

OF_OTHERS: dict[str, tuple[str, type]] = {
    "--data.dataset.source": ("source", Dataset),
    "--data.dataset.test_source": ("test_source", Dataset),
}
"""The same for classes that others bring, of which there is no list."""

RELATIVES = {
    "fedrep": "FedPer", "fedbabu": "FedPer", "lgfedavg": "FedPer", "fedrod": "FedPer", "fedalt": "FedPer",
    "fedsim": "FedPer", "fedamp": "FedFOMO", "fedala": "APFL", "feddyn": "SCAFFOLD", "mime": "SCAFFOLD",
    "mimelite": "SCAFFOLD", "moon": "FedProx", "fedopt": "FedAdam", "maml": "PerFedAvg", "reptile": "PerFedAvg",
    "cfl": "ClusteredFL", "hypcluster": "IFCA", "fedasync": "FedBuff", "dfedavg": "DFedEM", "dfedavgm": "DFedEM",
    "fedbn": "FedAvg with --model.batch_norm local", "dpfedavg": "FedAvg with --model.privacy ClientPrivacy",
    "krum": "FedAvg with --model.robust_aggregation Krum", "secagg": "FedAvg with --model.secure_aggregation SecureSum",
}  # fmt: skip
"""Well-known algorithms that are not here, in small letters without signs, and the nearest that is."""

EXAMPLE = "the path of a class that derives from torch.utils.data.Dataset, such as my_module.MyDataset"

FILES = {".py", ".csv", ".tsv", ".parquet", ".npz", ".npy", ".pt", ".pth", ".ckpt", ".txt", ".zip", ".gz"}
"""Endings of files that are given by mistake where a class, or a configuration of one, is wanted."""


def subclasses(base: type) -> list[type]:
    """All classes below one, without private ones and those that are only bases of others."""
    direct: list[type] = base.__subclasses__()
    found = [one for each in direct for one in (each, *subclasses(each))]
    return [
        one
        for one in dict.fromkeys(found)
        if not (getattr(one, "__abstractmethods__", None) or one.__name__.startswith("_"))
    ]


def class_names(base: type) -> list[str]:
    """Names of all classes below one, without those that are only bases of others."""
    return [one.__name__ for one in subclasses(base)]


def explain_class(message: str) -> list[str]:
    """What to say of an option whose value is no class that it takes.

    Args:
        message: jsonargparse's.

    Returns:
        Lines; none if the message is about something else.
    """
    for option, (key, base) in (OF_OTHERS | CLASSES).items():
        if f'"{key}"' in message or f"'{key}'" in message:
            return _explain(option, base, message)
    return []


def _explain(option: str, base: type, message: str) -> list[str]:
    known = f"{', '.join(sorted(class_names(base)))}, or the path of a class of your own"
    takes = EXAMPLE if option in OF_OTHERS else known
    takes = f"{option} takes {takes}"
    if "Not a valid subclass" in message and "Got value: None" in message:
        return [f"{option} is null; leave it out, or give a class", takes]
    if NO_CLASS_YET.search(message):
        return [f"{option} has options and no class; give {option} NAME before them", takes]
    abstract = ABSTRACT.search(message)
    if abstract:
        base_name = (abstract[1] or abstract[2]).rpartition(".")[2]
        return [f"{option} {base_name}: a base of other classes, which cannot be run itself", takes]
    other = OTHER_KIND.search(message)
    if other:
        return [
            f"{option} {other[1]} is no nn.Module and no function that says it returns one; give the path of a class "
            "derived from torch.nn.Module, or by `class_path:` that of a function"
        ]
    required = REQUIRED.search(message)
    if required and option == "--model.network":
        return [
            f"{option} needs {required[1].strip()}, which the data do not tell; give it as "
            f"{option}.{required[1].partition(',')[0].strip()} VALUE, or give it a default where the network is written"
        ]
    found = NO_CLASS.search(message)
    if found is None:
        return []
    given = next(part for part in found.groups() if part is not None).strip()
    if Path(given).suffix in FILES:
        return [_file_for_class(option, given)]
    relative = RELATIVES.get(re.sub("[^a-z0-9]", "", given.lower())) if base is Algorithm else None
    if relative is not None:
        return [f"{option}: there is no class {given}", f"its nearest relative here is {relative}"]
    near = _near(given, class_names(base))
    missing = re.search(r"No module named '[\w.]+'|module '[\w.]+' has no attribute '\w+'", message)
    why = f" ({missing[0]})" if missing and "." in given else ""
    return [f"{option}: there is no class {given}{why}", f"did you mean {near}?" if near else takes]


def _near(given: str, names: list[str]) -> str | None:
    """The class that was meant, if the name differs in case or in a letter or two."""
    name = given.rpartition(".")[2]
    close = [one for one in names if one.lower() == name.lower()] or difflib.get_close_matches(name, names, 1, 0.75)
    return close[0] if close else None


def refuse_files(given: list[str]) -> None:
    """Refuse files where classes are wanted, before the parser reads them as configurations.

    Args:
        given: arguments of a command.

    Raises:
        ConfigError: naming option and file, and what to give instead.
    """
    for before, argument in pairwise(["", *given]):
        option, _, value = argument.partition("=") if "=" in argument else (before, "", argument)
        if option in OF_OTHERS | CLASSES and Path(value).suffix in FILES:
            raise ConfigError(_file_for_class(option, value))


def _file_for_class(option: str, given: str) -> str:
    """What to give instead of a file."""
    if given.endswith(".py"):
        instead = f"give its name behind the file's, as in {Path(given).stem}.MyClass, from the folder of the file"
    elif option == "--data.dataset":
        instead = "give ClientFolder, and by --data.dataset.root a folder with one .npz file for each client"
    else:
        instead = f"`fit {option}.help NAME` describes a class"
    return f"{option} {given}: that is a file, and a class is wanted; {instead}"


def check_classes(config: Namespace) -> None:
    """Refuse what jsonargparse lets through although no object can be made of it: null, and the base of all classes.

    Args:
        config: what was parsed.

    Raises:
        ConfigError: naming the option.
    """
    for option, (_, base) in CLASSES.items():
        key = option.removeprefix("--")
        chosen = config.get(key, "absent")
        if isinstance(chosen, Namespace) and "class_path" in chosen:
            if import_object(chosen.class_path) is base:
                names = ", ".join(sorted(class_names(base)))
                raise ConfigError(f"{option} {base.__name__}: what all of them derive from; choose one of {names}")
            _check_options(option, chosen)
        elif chosen is None and option == "--model.algorithm":
            raise ConfigError(f"{option} is null; leave it out, or give a class")


def _check_options(option: str, chosen: Namespace) -> None:
    """Refuse null for an option of a class that does not take it."""
    parameters = inspect.signature(import_object(chosen.class_path)).parameters
    for name, value in vars(chosen.get("init_args") or Namespace()).items():  # type: ignore[no-untyped-call]
        if value is None and name in parameters and not _takes_null(parameters[name]):
            raise ConfigError(f"{option}.{name} is null; give a value, or leave it out")


def _takes_null(parameter: Any) -> bool:
    return parameter.default is None or "None" in str(parameter.annotation) or "Optional" in str(parameter.annotation)
