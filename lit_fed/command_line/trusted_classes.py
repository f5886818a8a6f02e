"""Classes that a checkpoint names: importing one runs the code of its module, so only known ones are imported unasked.

A checkpoint holds the arguments of its run, and with them paths of classes and functions. Of these the command line
takes the classes of lit_fed, layers of `torch.nn`, data sets of PyTorch, metrics of torchmetrics, and networks, data
sets and transforms of torchvision. Anything else must have been named by the person at the keyboard.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import Namespace
from torch import nn
from torch.utils.data import Dataset

from lit_fed.command_line.classes import CLASSES
from lit_fed.command_line.moved_classes import with_present_paths
from lit_fed.core.local_solver import LocalSolver
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError
from lit_fed.system.library_options import names_in
from lit_fed.system.whitelist import Kind, Whitelist, lies_below
from lit_fed.training.module import FederatedModule

__all__ = ["check_modules", "classes_in", "trusted_arguments"]

BASES = (LocalSolver, nn.Module, Dataset, *(base for _, base in CLASSES.values()))
"""Base classes of what a checkpoint names, metrics among them: those of torchmetrics are modules.

Those of `torchvision.transforms` may have no base.
"""

DATA_SETS = names_in(
    """
    CIFAR10 CIFAR100 Caltech101 Caltech256 CelebA Country211 DTD DatasetFolder EMNIST EuroSAT FER2013 FGVCAircraft
    FakeData FashionMNIST Flowers102 Food101 GTSRB INaturalist ImageFolder ImageNet Imagenette KMNIST LFWPeople MNIST
    Omniglot OxfordIIITPet PCAM Places365 QMNIST RenderedSST2 SEMEION STL10 SUN397 SVHN StanfordCars TensorDataset
    USPS
    """
)
"""Data sets of labelled pictures of torchvision: none of them unpickles a file whose checksum it does not compare."""


class _Stored(Whitelist):
    """The classes that the arguments in a checkpoint may name.

    Args:
        checkpoint: its path.
        named: paths of classes that the command line names itself.
        trusted: modules that it trusts.
    """

    packages = (
        "lit_fed.algorithms", "lit_fed.core", "lit_fed.data", "lit_fed.deployment", "lit_fed.models",
        "lit_fed.wrappers", "torch.nn", "torch.utils.data", "torchmetrics.classification", "torchmetrics.regression",
        "torchvision.datasets", "torchvision.models", "torchvision.ops", "torchvision.transforms",
    )  # fmt: skip
    short = ("lit_fed", "torchmetrics")

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
            return issubclass(found, BASES) or is_dataclass(found)  # settings
        if lies_below(module, "torchvision.datasets"):
            return found.__name__ in DATA_SETS
        known = any(lies_below(module, one) for one in self.packages)
        return known and (issubclass(found, BASES) or lies_below(module, "torchvision.transforms"))

    def holds_configuration(self, text: str, kind: Kind) -> bool:
        """Whether the parser would read a text as a configuration, or as the name of a file with one."""
        try:
            if "class_path" in text or isinstance(yaml.safe_load(text), dict | list):
                return True
            return kind != "anything" and Path(text).is_file()
        except (yaml.YAMLError, RecursionError, ValueError, OSError):  # a name that no file can have
            return False

    def cannot_import(self, path: str, place: str, error: Exception) -> NoReturn:
        """Refuse a class whose import fails."""
        raise ConfigError(
            f"--ckpt_path {self.checkpoint} names {path} ({place}), which cannot be imported ({error}); start where it "
            "can be, or install what it needs"
        ) from error

    def distrust(self, path: str, place: str) -> NoReturn:
        """Refuse a class that is neither known nor named."""
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
    """The paths of classes and functions in a parsed configuration, those of metrics among them."""
    if isinstance(config, Namespace):
        config = vars(config)
    if isinstance(config, Mapping):
        own = {config["class_path"]} if isinstance(config.get("class_path"), str) else set()
        return own.union(_metrics_in(config.get("metrics")), *map(classes_in, config.values()))
    return set().union(*map(classes_in, config)) if isinstance(config, list | tuple) else set()


def _metrics_in(given: Any) -> set[str]:
    """The paths in what chooses metrics, where a key or a text may be one."""
    if isinstance(given, str):
        return {one.strip() for one in given.split(",") if "." in one}
    if isinstance(given, Mapping):
        given = [*given, *given.values()]
    return set().union(*map(_metrics_in, given)) if isinstance(given, list | tuple) else set()


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
        known.check_plain(given.get(name, {}), name)
        known.check_options(given.get(name, {}), of, name)
    return given


def _described(module: str) -> str:
    """A module with its file, where that can be found without importing anything."""
    first = module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(first)
    except (ImportError, ValueError):
        return module
    return f"{module} (there is no such module here)" if spec is None else f"{module} ({spec.origin or 'a folder'})"
