"""The settings of a training as a server sends them, and the objects that a node makes of them.

Only classes of lit_fed are made, and those in modules that the person at the node trusts: to import any other module
may run any code. Nothing is parsed beyond JSON, so no text can hold a configuration of its own.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import partial
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from torch import nn

from lit_fed.clients.session import ModelSettings
from lit_fed.core.algorithm import Algorithm
from lit_fed.core.graphs.topology import Topology
from lit_fed.core.mixtures.surrogate import Surrogate
from lit_fed.core.targets import Loss
from lit_fed.errors import ConfigError
from lit_fed.metrics.selection import with_classes
from lit_fed.system.whitelist import LONGEST_SHOWN, METRICS, PLAIN, Whitelist, lies_below
from lit_fed.wrappers.compression.codecs import Codec
from lit_fed.wrappers.privacy.settings import Privacy
from lit_fed.wrappers.robust.attacks import Attack
from lit_fed.wrappers.robust.rules import Rule
from lit_fed.wrappers.secure.settings import SecureAggregation

__all__ = ["settings_from_json"]

KINDS = (Algorithm, nn.Module, Loss, Privacy, SecureAggregation, Codec, Rule, Attack, Topology, Surrogate)
"""Base classes of what a server may ask for; no function is ever called, and no other class."""


class _Sent(Whitelist):
    """The classes that the settings of a server may name."""

    packages = (
        "lit_fed.algorithms", "lit_fed.core", "lit_fed.models", "lit_fed.wrappers",
        "torchmetrics.classification", "torchmetrics.regression",
    )  # fmt: skip
    short = ("lit_fed", "torchmetrics")

    def is_known(self, found: Any, place: str) -> bool:
        """Whether something is a class of lit_fed that settings may name, or among the metrics one of torchmetrics."""
        if not isinstance(found, type) or not issubclass(found, KINDS) or found in KINDS:
            return False
        return lies_below(found.__module__, "lit_fed") or (
            place == METRICS and lies_below(found.__module__, "torchmetrics")
        )

    def distrust(self, path: str, place: str) -> NoReturn:
        """Refuse a class that is neither of lit_fed nor trusted."""
        module = path.rpartition(".")[0]
        raise ConfigError(
            f"the server asks for {path} ({place}), which is no class of lit_fed that settings may name; if you know "
            f"that code and it is installed here, start the client with --trust {module or path}"
        )

    def cannot_import(self, path: str, place: str, error: Exception) -> NoReturn:
        """Refuse a class whose import fails."""
        raise ConfigError(f"the server asks for {path} ({place}), which cannot be imported here: {error}") from error

    def refuse(self, place: str, what: str) -> NoReturn:
        """Refuse settings that no server of lit_fed sends."""
        raise ConfigError(f"the server sends settings whose {place} {what}; start both sides from the same lit_fed")


def settings_from_json(section: Mapping[str, Any], trusted: Sequence[str] = ()) -> ModelSettings:
    """The settings of a module from the section `model` of a configuration.

    All of them are checked before anything is imported or made.

    Args:
        section: classes as `class_path` and `init_args`, all else in plain types.
        trusted: modules whose classes may be made beside those of lit_fed.

    Raises:
        ConfigError: naming a class or a setting that a node does not make.
    """
    known, hints = _Sent(trusted=trusted), get_type_hints(ModelSettings)
    known.check_plain(section, "model")
    if not isinstance(section, dict) or section.keys() != hints.keys():
        wrong = sorted(section.keys() ^ hints.keys()) if isinstance(section, dict) else type(section).__name__
        raise ConfigError(f"the server sends the settings {wrong}, which this version does not know or misses")
    known.check_options(section, ModelSettings, "model")
    metrics = with_classes(section["metrics"], lambda path: known.check_path(path, METRICS))
    given, made = section | {"metrics": metrics}, _Maker(known)
    settings = ModelSettings(**{name: made.value(one, hints[name], f"model.{name}") for name, one in given.items()})
    settings.check()
    return settings


class _Maker:
    """Makes objects of settings that have been checked."""

    def __init__(self, known: Whitelist) -> None:
        self._known = known

    def value(self, value: Any, hint: Any, place: str) -> Any:
        """An object of a type from plain types."""
        if place == METRICS:
            return value
        if isinstance(value, dict) and "class_path" in value:
            kind = self._known.check_path(value["class_path"], place)
            return self._call(kind, value.get("init_args") or {}, place, delayed=_is_maker(hint, kind))
        if isinstance(value, str) and not _fits(value, hint):
            return self.value({"class_path": value}, hint, place)
        if isinstance(value, dict):
            structure: Any = next((one for one in _alternatives(hint) if is_dataclass(one)), None)
            if structure is not None:
                return self._call(structure, value, place)
        if not _fits(value, hint):
            self._known.refuse(place, f"is {str(value)[:LONGEST_SHOWN]!r}, which is no value of this setting")
        if isinstance(value, dict):
            return {key: self.value(one, Any, f"{place}.{key}") for key, one in value.items()}
        if isinstance(value, list):
            inner = next((get_args(one) for one in _alternatives(hint) if get_origin(one) in (list, tuple)), ())
            made = [self.value(one, inner[0] if inner else Any, place) for one in value]
            return tuple(made) if any(get_origin(one) is tuple for one in _alternatives(hint)) else made
        return float(value) if type(value) is int and not _fits_whole(hint) else value

    def _call(self, kind: Callable[..., Any], given: Any, place: str, *, delayed: bool = False) -> Any:
        """What a class or function makes of its options; `delayed`: something that can still be called with more."""
        if not callable(kind):
            self._known.refuse(place, "is an object that cannot be called")
        made_by: Any = kind.__init__ if isinstance(kind, type) else kind  # type: ignore[misc] # of that very class
        hints = get_type_hints(made_by)
        options = {name: self.value(value, hints.get(name, Any), f"{place}.{name}") for name, value in given.items()}
        if delayed:
            return partial(kind, **options) if options else kind
        try:
            return kind(**options)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # values that no checks of its own met
            raise ConfigError(f"{place} cannot be made of what the server sends: {error}") from error


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a plain value may stand where an option has this type."""
    return any(_fits_one(value, one) for one in _alternatives(hint))


def _fits_one(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    if get_origin(hint) is Literal:
        return any(value == one and type(value) is type(one) for one in get_args(hint))
    kind = get_origin(hint) or (type(None) if hint is None else hint)
    if not isinstance(kind, type):
        return False
    if isinstance(value, list | dict):
        return issubclass(type(value), kind) or (kind is tuple and isinstance(value, list))
    if type(value) is int:
        return kind in (int, float)
    return kind is type(value) and kind in PLAIN


def _fits_whole(hint: Any) -> bool:
    """Whether a whole number may stay one: for an option that takes floating ones alone, it becomes one."""
    return any(one in (int, Any) or get_origin(one) is Literal for one in _alternatives(hint))


def _is_maker(hint: Any, kind: Any) -> bool:
    """Whether an option takes something that makes objects, such as a network from the sizes of the data."""
    wants = any(get_origin(one) is not None and callable(get_origin(one)) and "Callable" in str(one) for one in
                _alternatives(hint))  # fmt: skip
    return wants and (not isinstance(kind, type) or issubclass(kind, nn.Module))
