"""Functions whose arguments are the fields of dataclasses: a setting is declared once, in its dataclass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar, get_type_hints

from lit_fed.errors import ConfigError
from lit_fed.system.names import did_you_mean

__all__ = ["divided", "options_of", "takes"]

Function = TypeVar("Function", bound=Callable[..., Any])


def options_of(kind: type) -> list[Field[Any]]:
    """The fields of a dataclass that are options: all, but those whose metadata say otherwise."""
    return [one for one in fields(kind) if one.metadata.get("option", True)]


def takes(*kinds: type) -> Callable[[Function], Function]:
    """Give a function with `**settings` the fields of dataclasses as keyword arguments, with their help.

    Signature and docstring are what `help`, notebooks and the command line read.
    """

    def with_fields(function: Function) -> Function:
        own = inspect.signature(function)
        given = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
        named = {one.name for one in given}
        for kind in kinds:
            hints = get_type_hints(kind)
            given += [
                inspect.Parameter(
                    one.name, inspect.Parameter.KEYWORD_ONLY, annotation=hints[one.name],
                    default=inspect.Parameter.empty if one.default is MISSING else one.default,
                )
                for one in options_of(kind)
                if one.name not in named
            ]  # fmt: skip
        function.__signature__ = own.replace(parameters=given)  # type: ignore[attr-defined]
        described = (inspect.getdoc(kind).partition("\nArgs:\n")[2] for kind in kinds)  # type: ignore[union-attr]
        function.__doc__ = "Take settings.\n\nArgs:\n" + "\n".join(described)
        return function

    return with_fields


def divided(given: Mapping[str, Any], kinds: Iterable[type], section: str) -> list[dict[str, Any]]:
    """Settings by the dataclasses that have them as fields.

    Args:
        given: the settings.
        kinds: the dataclasses.
        section: section of the options on the command line.

    Raises:
        ConfigError: naming a setting that none of them has.
    """
    names = [[one.name for one in options_of(kind)] for kind in kinds]
    known = [name for each in names for name in each]
    for name in given:
        if name not in known:
            meant = did_you_mean(name, known, f"give some of {', '.join(known)}")
            raise ConfigError(f"--{section}.{name}: there is no such setting; {meant}")
    return [{name: given[name] for name in each if name in given} for each in names]
