"""The settings of a training as a server sends them, and the objects that a node makes of them.

Only classes of lit_fed are made, and those in modules that the person at the node trusts: to import any other module
may run any code. Nothing is parsed beyond JSON, so no text can hold a configuration of its own.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import partial
from typing import Any, Union, get_args, get_origin, get_type_hints

from torch import nn

from lit_fed.algorithms.base import Algorithm
from lit_fed.clients.session import ModelSettings
from lit_fed.core.aggregation import Rule
from lit_fed.core.attacks import Attack
from lit_fed.core.codecs import Codec
from lit_fed.core.errors import ConfigError
from lit_fed.core.graphs.topology import Topology
from lit_fed.core.losses import Loss
from lit_fed.core.mixtures.surrogate import Surrogate
from lit_fed.wrappers.privacy import Privacy
from lit_fed.wrappers.secure_aggregation import SecureAggregation

__all__ = ["settings_from_json"]

KINDS = (Algorithm, nn.Module, Loss, Privacy, SecureAggregation, Codec, Rule, Attack, Topology, Surrogate)
"""What a class of lit_fed that a server asks for derives from; no function is ever called, and no other class."""

METRICS = "model.metrics"
"""Where texts name classes."""

PLAIN = (str, int, float, bool, type(None))


def settings_from_json(section: Mapping[str, Any], trusted: Sequence[str] = ()) -> ModelSettings:
    """The settings of a module from the section `model` of a configuration.

    Args:
        section: classes as `class_path` and `init_args`, all else in plain types.
        trusted: modules whose classes may be made beside those of lit_fed.

    Raises:
        ConfigError: naming a class or a setting that a node does not make.
    """
    hints = get_type_hints(ModelSettings)
    if unknown := section.keys() - hints.keys():
        raise ConfigError(f"the server sends the settings {sorted(unknown)}, which this version does not know")
    made = {name: _made(value, hints[name], f"model.{name}", trusted) for name, value in section.items()}
    return ModelSettings(**made)


def _made(value: Any, hint: Any, place: str, trusted: Sequence[str]) -> Any:
    """An object of a type from plain types."""
    if isinstance(value, dict) and "class_path" in value:
        kind = _class_of(value["class_path"], place, trusted)
        return _call(kind, value.get("init_args") or {}, place, trusted, delayed=_is_maker(hint, kind))
    if isinstance(value, dict):
        structure: Any = next((one for one in _alternatives(hint) if is_dataclass(one)), None)
        if structure is not None:
            return _call(structure, value, place, trusted)
        return {str(key): _made(one, Any, f"{place}.{key}", trusted) for key, one in value.items()}
    if isinstance(value, list):
        inner = next((get_args(one) for one in _alternatives(hint) if get_origin(one) in (list, tuple)), ())
        made = [_made(one, inner[0] if inner else Any, place, trusted) for one in value]
        return tuple(made) if any(get_origin(one) is tuple for one in _alternatives(hint)) else made
    if not isinstance(value, PLAIN):
        raise ConfigError(
            f"the server sends a {type(value).__name__} as {place}; give plain types in its configuration"
        )
    if isinstance(value, str) and place.startswith(METRICS):
        for name in value.replace(",", " ").split():
            if "." in name:  # those of torchmetrics have none
                _class_of(name, place, trusted)
    elif isinstance(value, str) and _takes_objects(hint):
        return _made({"class_path": value}, hint, place, trusted)
    return value


def _call(kind: Callable[..., Any], given: Any, place: str, trusted: Sequence[str], *, delayed: bool = False) -> Any:
    """What a class or function makes of its options; `delayed`: something that can still be called with more."""
    made_by: Any = kind.__init__ if isinstance(kind, type) else kind  # type: ignore[misc] # of that very class
    hints = get_type_hints(made_by)
    if not isinstance(given, dict):
        raise ConfigError(f"the server sends no options for {place}, but a {type(given).__name__}")
    options = {name: _made(value, hints.get(name, Any), f"{place}.{name}", trusted) for name, value in given.items()}
    if delayed:
        return partial(kind, **options) if options else kind
    try:
        return kind(**options)
    except TypeError as error:
        raise ConfigError(f"{place} cannot be made of what the server sends: {error}") from error


def _class_of(path: Any, place: str, trusted: Sequence[str]) -> Any:
    module, _, name = str(path).rpartition(".")
    known = any(f"{module}.".startswith(f"{one}.") for one in ("lit_fed", *trusted))
    if not known:
        raise ConfigError(
            f"the server asks for {path} ({place}), which is no class of lit_fed; if you know that code and it is "
            f"installed here, start the client with --trust {module or path}"
        )
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the server asks for {path} ({place}), which cannot be imported here: {error}") from error
    own = not any(f"{module}.".startswith(f"{one}.") for one in trusted)
    if not callable(found) or (own and not (isinstance(found, type) and issubclass(found, KINDS))):
        raise ConfigError(f"the server asks for {path} ({place}), which is none of the classes that settings may name")
    return found


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _is_maker(hint: Any, kind: Any) -> bool:
    """Whether an option takes something that makes objects, such as a network from the sizes of the data."""
    wants = any(get_origin(one) is not None and callable(get_origin(one)) and "Callable" in str(one) for one in
                _alternatives(hint))  # fmt: skip
    return wants and (not isinstance(kind, type) or issubclass(kind, nn.Module))


def _takes_objects(hint: Any) -> bool:
    """Whether a text in this place could be the path of a class: nothing else may be meant by it."""
    kinds = _alternatives(hint)
    texts = any(one in (str, Any) or "Literal" in str(one) or get_origin(one) is list for one in kinds)
    return not texts
