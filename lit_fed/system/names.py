"""Names given as text: the nearest known one, objects by their import path, options handed on to other libraries."""

from __future__ import annotations

import importlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from lit_fed.errors import ConfigError

__all__ = [
    "LONGEST_SHOWN",
    "check_library_options",
    "did_you_mean",
    "few",
    "import_path",
    "lies_below",
    "names_in",
    "nearest",
]

LONGEST_SHOWN = 100
"""Characters of a foreign text that a message repeats."""

WORD = re.compile(r"[A-Za-z0-9_+|-]{0,40}")
"""A text that names a layer, a function or a mode of the library: no path, no address, no module."""

SHOWN = 60
"""Characters of a library's option that a message repeats."""


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6, most: int = 1) -> list[str]:
    """The known names most similar to an unknown one; a name that differs only in case is the only result.

    Args:
        name: the given name.
        known: names that exist.
        cutoff: minimum similarity, from 0 to 1.
        most: number of names.
    """
    names = list(known)
    return [one for one in names if one.lower() == name.lower()][:1] or get_close_matches(name, names, most, cutoff)


def did_you_mean(
    name: str, known: Iterable[str], otherwise: str, *, cutoff: float = 0.6, most: int = 1, first: Sequence[str] = ()
) -> str:
    """`did you mean …?` with the names of `nearest`, or another hint if there are none.

    Args:
        name: the given name.
        known: names that exist.
        otherwise: the other hint.
        cutoff: minimum similarity, from 0 to 1.
        most: number of names.
        first: better candidates, which are taken if there are any.

    Example:
        >>> did_you_mean("fedavg", ["FedAvg", "FedEM"], "see --help")
        'did you mean FedAvg?'
        >>> did_you_mean("krum", ["FedAvg", "FedEM"], "see --help")
        'see --help'
    """
    near = list(first) or nearest(name, known, cutoff, most)
    return f"did you mean {' or '.join(near)}?" if near else otherwise


def few(names: Iterable[object], most: int = 3, between: str = ", ") -> str:
    """The first of some names, and how many more there are.

    Example:
        >>> few("abcd", 2), few("abcd", 2, "; "), few("ab", 2)
        ('a, b and 2 more', 'a; b; and 2 more', 'a, b')
    """
    texts = [*map(str, names)]
    more = f"{between.rstrip(', ')} and {len(texts) - most} more" if len(texts) > most else ""
    return between.join(texts[:most]) + more


def import_path(path: str) -> Any:
    """The object at a path, in a module or in a class of one.

    Args:
        path: a module and names in it, divided by dots.

    Raises:
        ValueError: if it is no such path.
        Exception: whatever the module's code raises.
    """
    module, _, name = path.rpartition(".")
    if not module or not all(part.isidentifier() for part in path.split(".")):
        raise ValueError(f"{path[:LONGEST_SHOWN]!r} is no path of a class")
    try:
        place: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        outer, _, inner = module.rpartition(".")
        if not outer or error.name != module:
            raise
        place = getattr(importlib.import_module(outer), inner)
    return getattr(place, name)


def same_class(one: Any, other: Any) -> bool:
    """Whether two import paths name one class of lit_fed, which has long paths and short ones."""
    paths = [str(path).rpartition(".") for path in (one, other)]
    return paths[0][2] == paths[1][2] and all(module.partition(".")[0] == "lit_fed" for module, _, _ in paths)


def lies_below(path: str, package: str) -> bool:
    """Whether a path is a package, or something in it.

    Example:
        >>> [lies_below(path, "lit_fed") for path in ("lit_fed", "lit_fed.models.MLP", "lit_fed_of_a_stranger.MLP")]
        [True, True, False]
    """
    return f"{path}.".startswith(f"{package}.")


def names_in(text: str) -> frozenset[str]:
    """The names of a list that is written as a text, divided by white space."""
    return frozenset(text.split())


def check_library_options(given: Mapping[str, Any], allowed: Collection[str], option: str, library: str) -> None:
    """Refuse options that a library could take for a file, an address, a class or code.

    Args:
        given: the options.
        allowed: names that are passed on.
        option: option that holds them, for the message.
        library: the library that gets them.

    Raises:
        ConfigError: naming the option.
    """
    for name, value in given.items():
        if name not in allowed:
            meant = did_you_mean(str(name), allowed, "leave it out")
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
