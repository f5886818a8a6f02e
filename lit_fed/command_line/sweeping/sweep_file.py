"""A sweep file as W&B reads it, and what of it runs here."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import yaml
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from lit_fed.command_line.arguments import CONFIG, shipped, with_values
from lit_fed.errors import ConfigError

__all__ = ["Point", "Sweep", "choices_of", "option", "read_sweep"]

Point = Mapping[str, Any]
"""Arguments of a run by their full names."""

METHODS = ("grid", "random", "bayes")
IGNORED = ("name", "description", "project", "entity", "program")
KNOWN = ("command", "method", "metric", "parameters", "run_cap", *IGNORED)
OURS = ("name", "ckpt_path", "trainer.default_root_dir", "trainer.logger")
"""Arguments that the sweep gives itself."""

DISTRIBUTIONS = ("categorical", "constant", "uniform", "int_uniform", "q_uniform", "log_uniform_values")


def choices_of(distribution: BaseDistribution) -> list[Any]:
    """The values of a key with `values`, which Optuna keeps as JSON.

    Raises:
        TypeError: if the key has a range.
    """
    if not isinstance(distribution, CategoricalDistribution):
        raise TypeError(f"{distribution} has no choices")
    return [json.loads(str(one)) for one in distribution.choices]


class Sweep(NamedTuple):
    """What a sweep file asks for."""

    path: Path
    method: str
    metric: str  # key of summary.json
    goal: str  # maximize or minimize
    command: tuple[str, ...]  # behind `lit_fed`, with "${args}" in it
    parameters: Mapping[str, BaseDistribution]  # what varies; choices are JSON
    constants: Point
    run_cap: int | None

    def arguments(self, point: Point) -> list[str]:
        """The command line of a point, sorted as W&B does: a class comes before its own arguments."""
        options = [option(key, value) for key, value in sorted((dict(self.constants) | dict(point)).items())]
        position = self.command.index("${args}")
        return [*self.command[:position], *options, *self.command[position + 1 :]]

    def grid_size(self) -> int:
        """Number of points, if all keys have values."""
        return math.prod(len(choices_of(one)) for one in self.parameters.values())

    def meaning(self) -> dict[str, Any]:
        """All that decides about results, as plain types: without names and comments, with what it refers to."""
        digests = {path: _digest(Path(path)) for path in _configurations(self.command)}
        varied = {key: repr(distribution) for key, distribution in self.parameters.items()}
        return {
            "method": self.method, "metric": self.metric, "goal": self.goal, "command": list(self.command),
            "parameters": varied, "constants": dict(self.constants), "configurations": digests,
        }  # fmt: skip


def option(key: str, value: Any) -> str:
    """An argument in the form in which W&B's agent passes it.

    Example:
        >>> option("model.solver.lr", 0.1)
        '--model.solver.lr=0.1'
    """
    return f"--{key}={value}"


def read_sweep(path: Path) -> Sweep:
    """Read and check a sweep file.

    Raises:
        ConfigError: naming the file, the key and the fix.
    """
    content = _load(path)
    for key in content:
        if key not in KNOWN:
            _refuse(path, key, f"is not supported on this machine, where a file has {', '.join(KNOWN)}; leave it out")
    method = content.get("method")
    if method not in METHODS:
        _refuse(path, "method", f"is {method}; choose {', '.join(METHODS)}")
    metric, goal = _metric(path, content.get("metric"))
    parameters, constants = _parameters(path, content.get("parameters"))
    continuous = [key for key, one in parameters.items() if not isinstance(one, CategoricalDistribution)]
    if method == "grid" and continuous:
        _refuse(path, f"parameters.{continuous[0]}", "has no values, which method: grid needs; give values: [...]")
    cap = content.get("run_cap")
    if cap is not None and (not isinstance(cap, int) or cap < 1):
        _refuse(path, "run_cap", f"is {cap}; give a whole number >= 1, or leave it out")
    return Sweep(path, method, metric, goal, _command(path, content.get("command")), parameters, constants, cap)


def _refuse(path: Path, key: str, message: str) -> NoReturn:
    raise ConfigError(f"{path}: {key} {message}")


def _load(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; give a file of configs/sweep/") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is no sweep; give method, metric, parameters and command")
    return content


def _metric(path: Path, metric: Any) -> tuple[str, str]:
    if not isinstance(metric, dict) or not isinstance(metric.get("name"), str):
        _refuse(
            path, "metric", "has no name; give one of summary.json, such as {name: val/seen/accuracy, goal: maximize}"
        )
    goal = metric.get("goal", "minimize")  # W&B's default
    if goal not in ("maximize", "minimize"):
        _refuse(path, "metric.goal", f"is {goal}; choose maximize or minimize")
    for key in metric:
        if key not in ("name", "goal"):
            _refuse(path, f"metric.{key}", "is not supported on this machine; leave it out")
    return metric["name"], goal


# ---------------------------------------------------------------------- parameters
def _parameters(path: Path, given: Any) -> tuple[dict[str, BaseDistribution], dict[str, Any]]:
    if not isinstance(given, dict) or not given:
        _refuse(
            path, "parameters", "are missing; give arguments with values, such as model.solver.lr: {values: [0.1, 1.0]}"
        )
    varied, constants = {}, {}
    for key, one in given.items():
        if key in OURS:
            _refuse(path, f"parameters.{key}", "is given by the sweep itself; leave it out")
        if not isinstance(one, dict):
            _refuse(path, f"parameters.{key}", f"is {one}; give it as {{value: {one}}}")
        if "value" in one or one.get("distribution") == "constant":
            constants[key] = _fields(path, key, one, ("value",))["value"]
        else:
            varied[key] = _distribution(path, key, one)
    if not varied:
        _refuse(path, "parameters", "do not vary; give one of them values: [...]")
    return varied, constants


def _fields(path: Path, key: str, given: Mapping[str, Any], needed: Sequence[str]) -> Mapping[str, Any]:
    """The fields of a parameter, which must be these and at most a distribution besides."""
    missing = [name for name in needed if name not in given]
    if missing:
        _refuse(path, f"parameters.{key}", f"has no {missing[0]}; give {', '.join(needed)}")
    for name in given:
        if name not in (*needed, "distribution"):
            _refuse(path, f"parameters.{key}.{name}", f"is not supported here; give {', '.join(needed)} only")
    return given


def _distribution(path: Path, key: str, given: Mapping[str, Any]) -> BaseDistribution:
    """W&B's distribution as Optuna's; without a name it follows from the fields, as W&B has it."""
    if "parameters" in given:
        _refuse(path, f"parameters.{key}", "is nested; write the full key, with dots")
    whole = all(isinstance(given.get(name), int) for name in ("min", "max"))
    name = given.get("distribution", "categorical" if "values" in given else "int_uniform" if whole else "uniform")
    if name not in DISTRIBUTIONS:
        _refuse(path, f"parameters.{key}.distribution", f"is {name}; choose {', '.join(DISTRIBUTIONS)}")
    if name == "categorical":
        return _choices(path, key, _fields(path, key, given, ("values",))["values"])
    low, high, *step = _numbers(path, key, given, ("min", "max", "q") if name == "q_uniform" else ("min", "max"))
    if name == "int_uniform":
        return IntDistribution(int(low), int(high))
    if name == "log_uniform_values" and low <= 0:
        _refuse(path, f"parameters.{key}.min", f"is {low}; log_uniform_values needs a number above 0")
    return FloatDistribution(low, high, log=name == "log_uniform_values", step=step[0] if step else None)


def _choices(path: Path, key: str, values: Any) -> CategoricalDistribution:
    if not isinstance(values, list) or not values:
        _refuse(path, f"parameters.{key}.values", f"is {values}; give a list")
    choices = [json.dumps(value) for value in values]
    if len(set(choices)) < len(choices):
        _refuse(path, f"parameters.{key}.values", "has one value twice; leave one of them out")
    return CategoricalDistribution(choices)


def _numbers(path: Path, key: str, given: Mapping[str, Any], names: Sequence[str]) -> list[float]:
    numbers = []
    for name in names:
        value = _fields(path, key, given, names)[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            hint = "; YAML needs a point, as in 1.0e-4" if isinstance(value, str) else ""
            _refuse(path, f"parameters.{key}.{name}", f"is {value!r}; give a number{hint}")
        if isinstance(value, float) and given.get("distribution") == "int_uniform":
            _refuse(path, f"parameters.{key}.{name}", f"is {value}; int_uniform needs a whole number")
        numbers.append(value)
    if numbers[0] >= numbers[1]:
        _refuse(path, f"parameters.{key}.max", f"is {numbers[1]}; give a number above min, {numbers[0]}")
    return numbers


# ---------------------------------------------------------------------- command
def _command(path: Path, given: Any) -> tuple[str, ...]:
    """What stands behind `lit_fed`; files that log to W&B are left out."""
    example = "[${env}, python, -m, lit_fed, fit, --config, FILE, ${args}]"
    if not isinstance(given, list) or "fit" not in given or given.count("${args}") != 1:
        _refuse(path, "command", f"is {given}; give {example}")
    words = [str(word) for word in given]
    start = words.index("fit")
    if not any("lit_fed" in word or "lit-fed" in word for word in words[:start]):
        _refuse(path, "command", f"does not start lit_fed; give {example}")
    macros = [word for word in words[start:] if "${" in word and word != "${args}"]
    if macros:
        _refuse(path, "command", f"has {macros[0]}, which W&B alone fills in; give {example}")
    kept = with_values(_without_loggers(words[start:]), lambda name, value: shipped(value) if name in CONFIG else value)
    for file in _configurations(kept):
        if not Path(file).is_file():
            _refuse(path, "command", f"has --config {file}, which is not there; start from the folder that holds it")
    return tuple(kept)


def _without_loggers(words: Sequence[str]) -> list[str]:
    """The command without `--config` of files in a folder `logger`: here the runs are logged to their folders alone."""
    kept: list[str] = []
    for word in words:
        follows = bool(kept) and kept[-1] in ("-c", "--config")
        file = word if follows else word.removeprefix("--config=") if word.startswith("--config=") else None
        if file is None or Path(file).parent.name != "logger":
            kept.append(word)
        elif follows:
            kept.pop()
    return kept


def _configurations(words: Sequence[str]) -> list[str]:
    after = [word for before, word in pairwise(words) if before in ("-c", "--config")]
    return after + [word.removeprefix("--config=") for word in words if word.startswith("--config=")]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
