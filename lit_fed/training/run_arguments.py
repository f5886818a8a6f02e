"""The arguments of a Python run in the form of config.yaml, for its loggers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from inspect import signature
from typing import Any, get_type_hints

import lit_fed
from lit_fed.data.module import FederatedDataModule
from lit_fed.settings import ModelSettings
from lit_fed.system.options import options_of
from lit_fed.training.module import FederatedModule
from lit_fed.wrappers.feature import Feature, features

__all__ = ["run_arguments"]


def run_arguments(module: FederatedModule, data: FederatedDataModule, trainer: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a run, nested, in plain types: those that the command line logs for the same run.

    Args:
        module: the module of the run.
        data: its data module.
        trainer: the given arguments of the trainer.
    """
    settings = module.settings
    model = _options(settings)
    for kind in features():
        model |= _options(settings.feature(kind) or kind())
    if module.trials:
        model["solver"]["lr"] = module.searched
    return {
        "seed_everything": int(os.environ.get("PL_GLOBAL_SEED", "0")),
        "trainer": {name: _plain(value) for name, value in trainer.items()},
        "model": {name: _plain(value) for name, value in model.items()},
        "data": {one.name: _plain(getattr(data, one.name)) for one in fields(data)},
    }


def _options(owner: ModelSettings | Feature) -> dict[str, Any]:
    """Options by name; those whose type is a dataclass are sections, by the names of their fields."""
    kinds, found = get_type_hints(type(owner)), {}
    for one in options_of(type(owner)):
        value = getattr(owner, one.name)
        is_section = is_dataclass(kinds[one.name])
        found[one.name] = {part.name: getattr(value, part.name) for part in fields(value)} if is_section else value
    return found


def _plain(value: Any) -> Any:
    """A value in plain types; objects and classes by their paths, dataclasses with the options that they show."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, partial):
        made = _plain(value.func)
        return made | {"init_args": made.get("init_args", {}) | _plain(value.keywords)}
    if hasattr(value, "__qualname__"):  # a class or a function, which gets the sizes of the data later
        usual = {name: one.default for name, one in signature(value).parameters.items() if one.default is not one.empty}
        return {"class_path": _path(value)} | ({"init_args": _plain(usual)} if usual else {})
    shown = [one.name for one in fields(value) if one.repr] if is_dataclass(value) else []
    return {"class_path": _path(type(value)), "init_args": {name: _plain(getattr(value, name)) for name in shown}}


def _path(found: Any) -> str:
    """The import path of a class or a function, the shortest of lit_fed."""
    module, name = found.__module__, found.__qualname__
    public = module.startswith("lit_fed.") and getattr(lit_fed, name, None) is found
    return f"lit_fed.{name}" if public else f"{module}.{name}"
