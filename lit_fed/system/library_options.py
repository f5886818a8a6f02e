"""Free-form options that other libraries get: listed names alone, with numbers and words as values."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

from lit_fed.errors import ConfigError

__all__ = ["check_library_options", "names_in"]

WORD = re.compile(r"[A-Za-z0-9_+|-]{0,40}")
"""A text that names a layer, a function or a way of the library: no path, no address, no module."""

SHOWN = 60
"""Characters of a value that a message repeats."""


def names_in(text: str) -> frozenset[str]:
    """The names of a list that is written as a text, divided by white space."""
    return frozenset(text.split())


def check_library_options(given: Mapping[str, Any], allowed: Collection[str], option: str, library: str) -> None:
    """Refuse options that a library could take for a file, an address, a class or code.

    Args:
        given: the options.
        allowed: names that are handed on.
        option: where they are given, for the message.
        library: what gets them.

    Raises:
        ConfigError: naming the option.
    """
    for name, value in given.items():
        if name not in allowed:
            near = get_close_matches(str(name), allowed, n=1)
            meant = f"did you mean {near[0]}?" if near else "leave it out"
            raise ConfigError(f"{option} has {str(name)[:SHOWN]!r}, which is not handed on to {library}; {meant}")
        if not _is_harmless(value):
            raise ConfigError(
                f"{option}.{name} is {str(value)[:SHOWN]!r}; give {library} a number, a word, or a list of these"
            )


def _is_harmless(value: Any) -> bool:
    if isinstance(value, str):
        return WORD.fullmatch(value) is not None
    if isinstance(value, dict):
        return all(map(_is_harmless, (*value, *value.values())))
    if isinstance(value, list | tuple):
        return all(map(_is_harmless, value))
    return value is None or isinstance(value, bool | int | float)
