"""What the benchmark compares: an algorithm, alone or with features whose settings are tuned beside its own."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

from jsonargparse.typing import import_object  # type: ignore[attr-defined]

import lit_fed.algorithms
from lit_fed.benchmark.protocol import Point, trial_points
from lit_fed.command_line.classes import near_class
from lit_fed.core.algorithm import Algorithm, tuning_space
from lit_fed.errors import ConfigError
from lit_fed.system.names import did_you_mean
from lit_fed.wrappers.feature import features

__all__ = ["Method", "is_own", "method_of", "model_arguments"]

JOINS = "+"
"""Between the names of an algorithm and of sections, as in `FedEM+serving`."""


class Method(NamedTuple):
    """An algorithm, and sections of `--model` with settings that are tuned with it.

    Example:
        >>> from lit_fed.algorithms.fedem import FedEM
        >>> Method(FedEM, ("serving",)).points[0].keys()
        dict_keys(['lr', 'serving.fine_tune_epochs'])
    """

    algorithm: type[Algorithm]
    sections: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Of the algorithm's class, with its module unless it is one of lit_fed; of the sections."""
        inside = self.algorithm.__module__.startswith("lit_fed.")
        name = self.algorithm.__name__ if inside else f"{self.algorithm.__module__}.{self.algorithm.__name__}"
        return JOINS.join((name, *self.sections))

    @property
    def points(self) -> list[Point]:
        """The points of its trials; settings of sections come before the algorithm's own."""
        of_sections = {
            f"{section}.{name}": values
            for section in self.sections
            for name, values in tuning_space(_sections()[section]).items()
        }
        return trial_points(of_sections | tuning_space(self.algorithm))

    @property
    def source(self) -> str:
        """Digest of the algorithm's file."""
        path = sys.modules[self.algorithm.__module__].__file__
        return "" if path is None else hashlib.sha256(Path(path).read_bytes()).hexdigest()


def method_of(name: str) -> Method:
    """A method by its name: an algorithm of lit_fed, or a user's by its path, and sections.

    Raises:
        ConfigError: if there is none.
    """
    base, *sections = name.split(JOINS)
    try:
        found = getattr(lit_fed.algorithms, base) if is_own(base) else import_object(base) if "." in base else None
    except (ImportError, AttributeError, ValueError) as error:
        fix = "correct the path, and start in the folder of the module or set PYTHONPATH"
        raise ConfigError(f"--algorithms {name}: cannot be imported ({error}); {fix}") from error
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise ConfigError(f"--algorithms: there is no algorithm {base!r}; {near_class('model.algorithm', base)}")
    for section in sections:
        if section not in _sections():
            near = did_you_mean(section, _sections(), f"choose from {', '.join(_sections())}")
            raise ConfigError(f"--algorithms {name}: no section {section!r} has settings to tune; {near}")
    return Method(found, tuple(sections))


def is_own(name: str) -> bool:
    """Whether the algorithm of a method is one of lit_fed, whose import runs nothing foreign."""
    return name.partition(JOINS)[0] in lit_fed.algorithms.__all__


def model_arguments(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The part of the section `model` that a method decides: its algorithm and the options of its sections."""
    base, *sections = name.split(JOINS)
    own = {key: value for key, value in settings.items() if "." not in key}
    parts: dict[str, Any] = {section: {} for section in sections}
    for key, value in settings.items():
        section, _, option = key.partition(".")
        if option:
            parts[section][option] = value
    return {"algorithm": {"class_path": base, "init_args": own}, **parts}


def _sections() -> dict[str, type]:
    """Sections of features that have settings to tune, by their names."""
    held = {one.name: type(one.default) for feature in features() for one in fields(feature)}
    return {name: kind for name, kind in held.items() if is_dataclass(kind) and tuning_space(kind)}
