"""Sweep files in W&B's format: reading, checking with the command line, and searching with Optuna."""

from __future__ import annotations

import hashlib
import itertools
import json
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import optuna
import yaml
from jsonargparse import Namespace
from jsonargparse.typing import PositiveInt
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import RandomSampler, TPESampler
from optuna.trial import TrialState, create_trial

from lit_fed.callbacks.monitors import evaluation_keys, no_evaluation
from lit_fed.command_line.arguments import CONFIG, config_files, shipped
from lit_fed.command_line.parser import FederatedParser
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError
from lit_fed.metrics.selection import choose_metrics
from lit_fed.system.files import write_atomically
from lit_fed.system.names import import_path
from lit_fed.system.plain_yaml import read_yaml

__all__ = ["Point", "Search", "Sweep", "check_arguments", "read_sweep"]

Point = Mapping[str, Any]
"""Arguments of a run by their full names."""

OURS = ("name", "ckpt_path", "trainer.default_root_dir", "trainer.logger")
"""Arguments that the sweep sets itself."""

FIELDS: dict[str, tuple[str, ...]] = {
    "categorical": ("values",), "constant": ("value",), "int_uniform": ("min", "max"), "uniform": ("min", "max"),
    "q_uniform": ("min", "max", "q"), "log_uniform_values": ("min", "max"),
}  # fmt: skip
"""W&B's distributions, and the fields of each; without a name it is the first one with the given fields."""


class Sweep(NamedTuple):
    """The content of a sweep file."""

    path: Path
    method: str
    metric: str  # key of summary.json
    goal: Literal["minimize", "maximize"]
    command: tuple[str, ...]  # after `lit_fed`, with "${args}" in it
    parameters: Mapping[str, Any]  # those that vary: a list of choices, or a range of Optuna's
    constants: Point
    run_cap: int | None

    def arguments(self, point: Point) -> list[str]:
        """The command line of a point, with options as W&B's agent passes them: a class before its own arguments."""
        options = [f"--{key}={value}" for key, value in sorted((dict(self.constants) | dict(point)).items())]
        position = self.command.index("${args}")
        return [*self.command[:position], *options, *self.command[position + 1 :]]

    def grid(self) -> list[Point]:
        """The points of a sweep whose keys all have values, in the order of the file."""
        return [dict(zip(self.parameters, one, strict=True)) for one in itertools.product(*self.parameters.values())]

    def meaning(self) -> dict[str, Any]:
        """Everything that results depend on, in plain types: no names and comments, but digests of configurations."""
        files = config_files(self.command)
        return {
            "method": self.method, "metric": self.metric, "goal": self.goal, "command": list(self.command),
            "parameters": {key: repr(one) for key, one in self.parameters.items()}, "constants": dict(self.constants),
            "configurations": {file: hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files},
        }  # fmt: skip

    def short_names(self) -> dict[str, str]:
        """The last parts of the keys that vary, as few as tell them apart: `solver.lr` for `model.solver.lr`."""
        names = {}
        for key in self.parameters:
            parts = key.split(".")
            endings = [".".join(parts[first:]) for first in range(len(parts) - 1, -1, -1)]
            names[key] = next(
                one for one in endings if sum(f".{other}".endswith(f".{one}") for other in self.parameters) == 1
            )
        return names


# ---------------------------------------------------------------------- reading
@dataclass
class _Metric:
    name: str
    goal: Literal["minimize", "maximize"] = "minimize"  # W&B's default


@dataclass
class _File:
    """The keys of a sweep file; the last five say nothing about the runs."""

    method: Literal["grid", "random", "bayes"]
    metric: _Metric
    parameters: dict
    command: list
    run_cap: PositiveInt | None = None
    name: str | None = None
    description: str | None = None
    project: str | None = None
    entity: str | None = None
    program: str | None = None


def read_sweep(path: Path) -> Sweep:
    """Read and check a sweep file.

    Raises:
        ConfigError: naming the file, the key and the fix.
    """
    parser = FederatedParser()
    parser.add_class_arguments(_File)
    try:
        content = read_yaml(path.read_text())
        file = parser.parse_object(content if isinstance(content, dict) else {})
        return _sweep(path, file)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; give a file of configs/sweep/") from error
    except (ConfigError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from error


def _sweep(path: Path, file: Namespace) -> Sweep:
    """The content of a file whose keys have their types."""
    if file.metric.name.startswith("test/"):
        fix = f"give val/{file.metric.name[5:]}, and --data.val_fraction=0.1 in command"
        raise ConfigError(f"metric.name is {file.metric.name}, and test samples choose nothing; {fix}")
    if file.command.count("${args}") != 1 or "fit" not in file.command:
        raise ConfigError("command needs fit and ${args}: [${env}, python, -m, lit_fed, fit, --config, FILE, ${args}]")
    kinds = {key: _distribution(key, one) for key, one in file.parameters.items()}
    constants = {key: one[0] for key, one in kinds.items() if "value" in file.parameters[key]}
    varied = {key: one for key, one in kinds.items() if key not in constants}
    ranges = [key for key, one in varied.items() if not isinstance(one, list)]
    if not varied:
        raise ConfigError("parameters do not vary; give one of them values: [...]")
    if file.method == "grid" and ranges:
        raise ConfigError(f"parameters.{ranges[0]} has no values, which method: grid needs; give values: [...]")
    command = tuple(_without_loggers(map(str, file.command[file.command.index("fit") :])))
    return Sweep(path, file.method, file.metric.name, file.metric.goal, command, varied, constants, file.run_cap)


def _distribution(key: str, given: Any) -> Any:
    """The choices of a parameter, or its range as Optuna's."""
    if key in OURS:
        raise ConfigError(f"parameters.{key} is given by the sweep itself; leave it out")
    fields = given if isinstance(given, dict) else {}
    whole = all(isinstance(fields.get(name), int) for name in ("min", "max"))
    fitting = [one for one, some in FIELDS.items() if fields.keys() == set(some) and (whole or one != "int_uniform")]
    kind = fields.get("distribution", next(iter(fitting), ""))
    choices = fields.get("values", [fields.get("value")])
    complete = kind in FIELDS and fields.keys() - {"distribution"} == set(FIELDS[kind])
    if not complete or not isinstance(choices, list) or not choices:
        known = ", ".join(f"{one} ({', '.join(some)})" for one, some in FIELDS.items())
        raise ConfigError(
            f"parameters.{key} is {given}; give its full name with dots, and the fields of one of {known}"
        )
    if kind in ("categorical", "constant"):
        return choices
    try:
        if kind == "int_uniform":
            return IntDistribution(operator.index(given["min"]), operator.index(given["max"]))
        low, high, *step = (float(given[name]) for name in FIELDS[kind])
        return FloatDistribution(low, high, log=kind == "log_uniform_values", step=step[0] if step else None)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"parameters.{key}: {error}") from error


def _without_loggers(words: Iterator[str]) -> Iterator[str]:
    """The command without `--config` of files in a folder `logger`: runs are logged to their folders only."""
    for word in words:
        option, _, file = word.partition("=")
        if option not in CONFIG:
            yield word
            continue
        file = file or next(words, "")
        if Path(file).parent.name != "logger":
            yield from (option, shipped(file))


# ---------------------------------------------------------------------- checking
def check_arguments(sweep: Sweep, parse: Callable[[list[str]], Namespace]) -> None:
    """Parse the first point and one with each other value, and check that they measure the metric.

    Args:
        sweep: the sweep.
        parse: parses a command line without running it.

    Raises:
        ConfigError: naming the file, the values of the point, and the reason.
    """
    values = {key: one if isinstance(one, list) else [one.low, one.high] for key, one in sweep.parameters.items()}
    first = {key: some[0] for key, some in values.items()}
    others = [{**first, key: value} for key, some in values.items() for value in some[1:]]
    measured: set[str] = set()
    for point in (first, *others):
        try:
            _check(sweep.metric, parse(sweep.arguments(point)).fit, measured)
        except ConfigError as error:
            shown = ", ".join(f"{key} {value}" for key, value in (dict(sweep.constants) | point).items())
            raise ConfigError(f"{sweep.path}: with {shown}: {' '.join(str(error).split())}") from error


def _check(metric: str, config: Namespace, measured: set[str]) -> None:
    """Refuse a logger, and a metric of clients that the run does not measure, by loading its data.

    Metrics of the training depend on the algorithm, and the data of a federation are on its nodes.
    """
    if config.trainer.logger not in (True, False, None):
        raise ConfigError("trainer.logger is set, and runs log to their folders; set it by --config in a folder logger")
    if not metric.startswith("val/"):
        if "/" not in metric and metric not in ("rounds", "seconds"):
            raise ConfigError(f"metric {metric} is not in summary.json; give the whole key, such as val/seen/{metric}")
        return
    if reason := no_evaluation(config.trainer):
        raise ConfigError(f"there is no {metric}: {reason}")
    told = repr((config.data, config.model.metrics, config.model.target))
    if told in measured:
        return
    measured.add(told)
    parser = FederatedParser()
    parser.add_lightning_class_args(FederatedDataModule, "data")
    data: FederatedDataModule = parser.instantiate(Namespace(data=config.data)).data  # type: ignore[no-untyped-call]
    if data.dataset.is_remote:
        return
    if (target := config.model.target) is not None:
        options = target.get("init_args")
        data.given_target = import_path(target.class_path)(**({} if options is None else vars(options)))
    data.prepare_data()
    data.setup()
    if data.evaluation_split != "val":
        raise ConfigError(f"metric {metric}: no client has validation samples; give --data.val_fraction 0.2, say")
    known = evaluation_keys(data, choose_metrics(config.model.metrics, data.target), "val")
    if metric not in known:
        raise ConfigError(f"metric {metric} is not measured; give one of {', '.join(sorted(known))}")


# ---------------------------------------------------------------------- searching
class Search:
    """The points of a sweep: all of a grid, else those that Optuna has proposed, which are kept for another start.

    Args:
        sweep: the sweep.
        folder: gets the file `points.json` of a search.
    """

    def __init__(self, sweep: Sweep, folder: Path) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.sweep, self.file = sweep, folder / "points.json"
        self.points: list[Point] = json.loads(self.file.read_text()) if self.file.is_file() else []
        if sweep.method == "grid":
            self.points = sweep.grid()
        self.choices = [key for key, one in sweep.parameters.items() if isinstance(one, list)]
        texts = {key: CategoricalDistribution(list(map(json.dumps, sweep.parameters[key]))) for key in self.choices}
        self.kinds = {**sweep.parameters, **texts}
        self.study = optuna.create_study(direction=sweep.goal)
        for point in self.points:
            params = {**point, **{key: json.dumps(point[key]) for key in self.choices}}
            self.study.add_trial(create_trial(state=TrialState.RUNNING, params=params, distributions=self.kinds))

    def ask(self) -> Point:
        """A new point; it depends on the known results only, not on interruptions."""
        sampler = TPESampler if self.sweep.method == "bayes" else RandomSampler
        self.study.sampler = sampler(seed=len(self.points))
        params = self.study.ask(self.kinds).params
        self.points.append({**params, **{key: json.loads(params[key]) for key in self.choices}})
        write_atomically(self.file, json.dumps(self.points) + "\n")
        return self.points[-1]

    def tell(self, number: int, value: float) -> None:
        """Report the result of a point."""
        self.study.tell(number, value)
