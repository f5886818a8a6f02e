"""Packages that only some settings need: imported on demand; missing optional ones are refused by name."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lit_fed.errors import ConfigError

__all__ = ["DataFrame", "imported_later", "mpl", "nx", "optional_package", "pd", "without_hub"]


def optional_package(name: str, requirement: str, extra: str, asked_by: str) -> Any:
    """Import an optional package.

    Args:
        name: import name.
        requirement: requirement for pip.
        extra: the extra of this package that holds the requirement.
        asked_by: the setting that needs it, for the message.

    Raises:
        ConfigError: naming the setting and the requirement, or the error of the import.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        why = "" if isinstance(error, ModuleNotFoundError) and error.name == name else f" ({error})"
        raise ConfigError(
            f'{asked_by} needs the package {name}{why}; pip install "{requirement}" (the extra {extra})'
        ) from error


@contextmanager
def without_hub(is_here: bool) -> Iterator[None]:
    """Context in which Hugging Face's libraries reach no hub, if what is read `is_here`: its files may name others."""
    constants: Any = importlib.import_module("huggingface_hub.constants")
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or is_here
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def imported_later(name: str) -> Any:
    """A package that is imported on first access.

    Discovery imports every algorithm and every network; a command should only import packages that it uses.

    Args:
        name: name of the package; errors of its import are raised at the first access.
    """
    return _Later(name)


class _Later(ModuleType):
    """Stands where a module stands that imports a package at its top."""

    def __getattr__(self, name: str) -> Any:
        if name in ("__wrapped__", "__test__"):  # doctest's questions to any module, also where the package is absent
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(self.__name__), name)


if TYPE_CHECKING:
    import matplotlib as mpl
    import networkx as nx
    import pandas as pd
    from pandas import DataFrame
else:
    DataFrame = Any  # the parser of the command line looks up every annotation, and would load pandas for it
    mpl, nx, pd = map(imported_later, ("matplotlib", "networkx", "pandas"))
