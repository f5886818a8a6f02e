"""Packages that only some settings need: imported on demand; missing optional ones are refused by name."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lit_fed.errors import ConfigError, notice

__all__ = ["DataFrame", "hub_or_cache", "imported_later", "mpl", "nx", "optional_package", "pd"]


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
def hub_or_cache(is_here: bool) -> Iterator[None]:
    """Context in which Hugging Face's libraries read their cache alone, if they are not to reach the hub, or cannot.

    Args:
        is_here: whether what is read lies on this machine; its files may name others, which are then not fetched.
    """
    constants: Any = importlib.import_module("huggingface_hub.constants")
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or is_here or not _hub_answers()
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@cache
def _hub_answers() -> bool:
    """Whether the hub answers one request, asked once per process; a line says if it does not.

    Otherwise the libraries would repeat each request for half a minute.
    """
    library = importlib.import_module("huggingface_hub")
    address, seconds = library.constants.ENDPOINT, library.constants.HF_HUB_ETAG_TIMEOUT
    try:
        library.get_session().head(address, timeout=seconds)
    except Exception as error:  # of the library's HTTP client, which differs between versions
        notice(
            f"{address} does not answer ({error or type(error).__name__}), so only what was loaded from it before is "
            "read; HF_HUB_OFFLINE=1 skips this request"
        )
        return False
    return True


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
