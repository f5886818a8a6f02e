"""Packages that only some settings need: imported when asked for, refused by name where they are missing."""

from __future__ import annotations

import importlib
from typing import Any

from lit_fed.core.errors import ConfigError

__all__ = ["optional_package"]


def optional_package(name: str, requirement: str, extra: str, asked_by: str) -> Any:
    """A package that is no dependency of this one.

    Args:
        name: what is imported.
        requirement: what pip installs.
        extra: the extra of this package that holds the requirement.
        asked_by: the setting that needs it, for the message.

    Raises:
        ConfigError: naming the setting and what to install, or what its import raises.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        why = "" if isinstance(error, ModuleNotFoundError) and error.name == name else f" ({error})"
        raise ConfigError(
            f'{asked_by} needs the package {name}{why}; pip install "{requirement}" (the extra {extra})'
        ) from error
