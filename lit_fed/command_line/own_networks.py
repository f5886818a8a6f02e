"""Networks that do not derive from `Network`: plain classes and functions by their paths, and their options."""

from __future__ import annotations

import json
from functools import partial
from itertools import pairwise
from typing import Any

from jsonargparse import Namespace
from jsonargparse.typing import import_object  # type: ignore[attr-defined]
from torch import nn

from lit_fed.models.base import Network, size_names

__all__ = ["as_function", "options_of_own_network", "with_functions"]

OPTION = "--model.network"


def with_functions(given: list[str]) -> list[str]:
    """The arguments of a command, where a function that makes a network is a class path, so that it can have options.

    Args:
        given: the arguments.
    """
    return [_spelled_out(before, one) for before, one in pairwise(["", *given])]


def _spelled_out(before: str, argument: str) -> str:
    option, mark, value = argument.partition("=") if argument.startswith(f"{OPTION}=") else (before, "", argument)
    if option != OPTION or "." not in value or value.lstrip().startswith("{"):
        return argument
    try:
        found = import_object(value)
    except (ImportError, ValueError, AttributeError):  # the parser says what is wrong with it
        return argument
    is_function = callable(found) and not isinstance(found, type)
    return f"{option if mark else ''}{mark}{json.dumps({'class_path': value})}" if is_function else argument


def options_of_own_network(maker: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """What the parser is told of a plain class or a function: no sizes, which the data tell, and any types.

    Args:
        maker: a class or a function.
        kwargs: what the parser is told of a class derived from `Network`.
    """
    is_class = isinstance(maker, type)
    if is_class and (not issubclass(maker, nn.Module) or Network in maker.__mro__):
        return kwargs
    return {**kwargs, "skip": size_names(maker), "fail_untyped": False}


def as_function(config: Namespace) -> Namespace:
    """A configuration whose network, where it is a function by its path, is that function with its options bound.

    The parser itself would call the function, which needs the sizes of the data first.

    Args:
        config: of a command, or of all commands.
    """
    command = config.get("subcommand")
    key = f"{command}.model.network" if command else "model.network"
    chosen = config.get(key)
    if not isinstance(chosen, Namespace) or "class_path" not in chosen:
        return config
    found = import_object(chosen.class_path)
    if isinstance(found, type):
        return config
    config = config.clone()
    options: Any = chosen.get("init_args")
    config[key] = partial(found, **(vars(options) if options else {}), **(chosen.get("dict_kwargs") or {}))
    return config
