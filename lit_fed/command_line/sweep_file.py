"""Sweep files in W&B's format: reading, checking with the command line, and searching with Optuna."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import optuna
import yaml
from jsonargparse import Namespace
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import TrialState

from lit_fed.callbacks.monitors import evaluation_keys, no_evaluation
from lit_fed.command_line.arguments import CONFIG, config_files, shipped, with_values
from lit_fed.command_line.parser import FederatedParser
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError
from lit_fed.metrics.selection import choose_metrics
from lit_fed.system.names import import_path

__all__ = ["Point", "Search", "Sweep", "check_arguments", "choices_of", "read_sweep"]

Point = Mapping[str, Any]
"""Arguments of a run by their full names."""

METHODS = ("grid", "random", "bayes")
IGNORED = ("name", "description", "project", "entity", "program")
KNOWN = ("command", "method", "metric", "parameters", "run_cap", *IGNORED)
OURS = ("name", "ckpt_path", "trainer.default_root_dir", "trainer.logger")
"""Arguments that the sweep sets itself."""

FIELDS: dict[str, tuple[str, ...]] = {
    "categorical": ("values",), "constant": ("value",), "uniform": ("min", "max"), "int_uniform": ("min", "max"),
    "q_uniform": ("min", "max", "q"), "log_uniform_values": ("min", "max"),
}  # fmt: skip
"""W&B's distributions, and the fields that each needs."""


def choices_of(distribution: BaseDistribution) -> list[Any]:
    """The values of a key with `values`, which Optuna keeps as JSON.

    Raises:
        TypeError: if the key has a range.
    """
    if not isinstance(distribution, CategoricalDistribution):
        raise TypeError(f"{distribution} has no choices")
    return [json.loads(str(one)) for one in distribution.choices]


class Sweep(NamedTuple):
    """The content of a sweep file."""

    path: Path
    method: str
    metric: str  # key of summary.json
    goal: str  # maximize or minimize
    command: tuple[str, ...]  # after `lit_fed`, with "${args}" in it
    parameters: Mapping[str, BaseDistribution]  # those that vary; choices are JSON
    constants: Point
    run_cap: int | None

    def arguments(self, point: Point) -> list[str]:
        """The command line of a point, with options as W&B's agent passes them: a class before its own arguments."""
        options = [f"--{key}={value}" for key, value in sorted((dict(self.constants) | dict(point)).items())]
        position = self.command.index("${args}")
        return [*self.command[:position], *options, *self.command[position + 1 :]]

    def grid_size(self) -> int:
        """Number of points, if all keys have values."""
        return math.prod(len(choices_of(one)) for one in self.parameters.values())

    def meaning(self) -> dict[str, Any]:
        """Everything that results depend on, in plain types: no names and comments, but digests of configurations."""
        files = config_files(self.command)
        return {
            "method": self.method, "metric": self.metric, "goal": self.goal, "command": list(self.command),
            "parameters": {key: repr(distribution) for key, distribution in self.parameters.items()},
            "constants": dict(self.constants),
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
def read_sweep(path: Path) -> Sweep:
    """Read and check a sweep file.

    Raises:
        ConfigError: naming the file, the key and the fix.
    """
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; give a file of configs/sweep/") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is no sweep; give method, metric, parameters and command")
    return _File(path).read(content)


class _File(NamedTuple):
    """Reads the parts of a sweep file; its path is for the messages."""

    path: Path

    def refuse(self, key: str, message: str) -> NoReturn:
        raise ConfigError(f"{self.path}: {key} {message}")

    def read(self, content: dict[str, Any]) -> Sweep:
        for key in content:
            if key not in KNOWN:
                known = ", ".join(KNOWN)
                self.refuse(key, f"is not supported on this machine, where a file has {known}; leave it out")
        method = content.get("method")
        if method not in METHODS:
            self.refuse("method", f"is {method}; choose {', '.join(METHODS)}")
        metric, goal = self.metric(content.get("metric"))
        parameters, constants = self.parameters(content.get("parameters"))
        continuous = [key for key, one in parameters.items() if not isinstance(one, CategoricalDistribution)]
        if method == "grid" and continuous:
            self.refuse(f"parameters.{continuous[0]}", "has no values, which method: grid needs; give values: [...]")
        cap = content.get("run_cap")
        if cap is not None and (not isinstance(cap, int) or cap < 1):
            self.refuse("run_cap", f"is {cap}; give a whole number >= 1, or leave it out")
        command = self.command(content.get("command"))
        return Sweep(self.path, method, metric, goal, command, parameters, constants, cap)

    def metric(self, metric: Any) -> tuple[str, str]:
        if not isinstance(metric, dict) or not isinstance(metric.get("name"), str):
            example = "{name: val/seen/accuracy, goal: maximize}"
            self.refuse("metric", f"has no name; give one of summary.json, such as {example}")
        goal = metric.get("goal", "minimize")  # W&B's default
        if goal not in ("maximize", "minimize"):
            self.refuse("metric.goal", f"is {goal}; choose maximize or minimize")
        for key in metric:
            if key not in ("name", "goal"):
                self.refuse(f"metric.{key}", "is not supported on this machine; leave it out")
        if metric["name"].startswith("test/"):
            instead = f"val/{metric['name'].removeprefix('test/')}"
            fix = f"give {instead}, and --data.val_fraction=0.1 in command; the table shows the test beside it"
            self.refuse("metric.name", f"is {metric['name']}, and test samples choose nothing; {fix}")
        return metric["name"], goal

    def parameters(self, given: Any) -> tuple[dict[str, BaseDistribution], dict[str, Any]]:
        if not isinstance(given, dict) or not given:
            example = "model.solver.lr: {values: [0.1, 1.0]}"
            self.refuse("parameters", f"are missing; give arguments with values, such as {example}")
        varied, constants = {}, {}
        for key, one in given.items():
            place = f"parameters.{key}"
            if key in OURS:
                self.refuse(place, "is given by the sweep itself; leave it out")
            if not isinstance(one, dict):
                self.refuse(place, f"is {one}; give it as {{value: {one}}}")
            if "value" in one or one.get("distribution") == "constant":
                constants[key] = self.fields(place, one, "constant")["value"]
            else:
                varied[key] = self.distribution(place, one)
        if not varied:
            self.refuse("parameters", "do not vary; give one of them values: [...]")
        return varied, constants

    def fields(self, place: str, given: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
        """The fields of a parameter: those of its distribution, and no others."""
        needed = FIELDS[kind]
        missing = [name for name in needed if name not in given]
        if missing:
            self.refuse(place, f"has no {missing[0]}; give {', '.join(needed)}")
        for name in given:
            if name not in (*needed, "distribution"):
                self.refuse(f"{place}.{name}", f"is not supported here; give {', '.join(needed)} only")
        return given

    def distribution(self, place: str, given: Mapping[str, Any]) -> BaseDistribution:
        """W&B's distribution as Optuna's; if it has no name, the fields decide, as with W&B."""
        if "parameters" in given:
            self.refuse(place, "is nested; write the full key, with dots")
        whole = all(isinstance(given.get(name), int) for name in ("min", "max"))
        kind = given.get("distribution", "categorical" if "values" in given else "int_uniform" if whole else "uniform")
        if kind not in FIELDS:
            self.refuse(f"{place}.distribution", f"is {kind}; choose {', '.join(FIELDS)}")
        fields = self.fields(place, given, kind)
        if kind == "categorical":
            values = fields["values"]
            if not isinstance(values, list) or not values:
                self.refuse(f"{place}.values", f"is {values}; give a list")
            choices = [json.dumps(value) for value in values]
            if len(set(choices)) < len(choices):
                self.refuse(f"{place}.values", "has one value twice; leave one of them out")
            return CategoricalDistribution(choices)
        low, high, *step = (self.number(f"{place}.{name}", fields[name], kind) for name in FIELDS[kind])
        if low >= high:
            self.refuse(f"{place}.max", f"is {high}; give a number above min, {low}")
        if kind == "int_uniform":
            return IntDistribution(int(low), int(high))
        if kind == "log_uniform_values" and low <= 0:
            self.refuse(f"{place}.min", f"is {low}; log_uniform_values needs a number above 0")
        return FloatDistribution(low, high, log=kind == "log_uniform_values", step=step[0] if step else None)

    def number(self, place: str, value: Any, kind: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            hint = "; YAML needs a point, as in 1.0e-4" if isinstance(value, str) else ""
            self.refuse(place, f"is {value!r}; give a number{hint}")
        if isinstance(value, float) and kind == "int_uniform":
            self.refuse(place, f"is {value}; int_uniform needs a whole number")
        return value

    def command(self, given: Any) -> tuple[str, ...]:
        """The arguments after `lit_fed`, without files that log to W&B."""
        example = "[${env}, python, -m, lit_fed, fit, --config, FILE, ${args}]"
        if not isinstance(given, list) or "fit" not in given or given.count("${args}") != 1:
            self.refuse("command", f"is {given}; give {example}")
        words = [str(word) for word in given]
        start = words.index("fit")
        if not any("lit_fed" in word or "lit-fed" in word for word in words[:start]):
            self.refuse("command", f"does not start lit_fed; give {example}")
        macros = [word for word in words[start:] if "${" in word and word != "${args}"]
        if macros:
            self.refuse("command", f"has {macros[0]}, which W&B alone fills in; give {example}")
        kept = _without_loggers(words[start:])
        kept = with_values(kept, lambda name, value: shipped(value) if name in CONFIG else value)
        for file in config_files(kept):
            if not Path(file).is_file():
                self.refuse("command", f"has --config {file}, which is not there; start from the folder that holds it")
        return tuple(kept)


def _without_loggers(words: Sequence[str]) -> list[str]:
    """The command without `--config` of files in a folder `logger`: runs are logged to their folders only."""
    kept: list[str] = []
    for word in words:
        follows = bool(kept) and kept[-1] in CONFIG
        file = word if follows else word.removeprefix("--config=") if word.startswith("--config=") else None
        if file is None or Path(file).parent.name != "logger":
            kept.append(word)
        elif follows:
            kept.pop()
    return kept


# ---------------------------------------------------------------------- checking
MEASURED = ("model.metrics", "model.target")
"""Arguments beside those of the data that decide what is measured."""

Parse = Callable[[list[str]], Namespace]
"""Parses a command line without running it."""


def check_arguments(sweep: Sweep, parse: Parse) -> None:
    """Parse the first point, then one with each other value, and check that those of other data measure the metric.

    Raises:
        ConfigError: naming the file, the key and the refused value, with the reason; or a metric that no run has.
    """
    values = {key: [value] for key, value in sweep.constants.items()}
    values |= {key: _probes(distribution) for key, distribution in sweep.parameters.items()}
    first = {key: some[0] for key, some in values.items()}
    if _refusal(sweep, parse, first) is not None:  # find the command, or the key, that is to blame
        bare, given = sweep._replace(constants={}), dict[str, Any]()
        if (error := _refusal(bare, parse, {})) is not None:
            raise ConfigError(f"{sweep.path}: command is refused: {error}")
        for key in sorted(first):
            given[key] = first[key]
            _check(bare, parse, given, key)
    for key, some in values.items():
        for value in some[1:]:
            _check(sweep, parse, {**first, key: value}, key)
    _check_metric(sweep, parse(sweep.arguments(first)).fit)
    for key, some in values.items():
        if key in MEASURED or (key.startswith("data.") and key != "data.seed"):
            for value in some[1:]:
                _check_metric(sweep, parse(sweep.arguments({**first, key: value})).fit, f" with {key} {value}")


def _probes(distribution: BaseDistribution) -> list[Any]:
    """Values to try: all choices, or both ends."""
    if isinstance(distribution, CategoricalDistribution):
        return choices_of(distribution)
    return [distribution.low, distribution.high]  # type: ignore[attr-defined]


def _check(sweep: Sweep, parse: Parse, point: Mapping[str, Any], key: str) -> None:
    error = _refusal(sweep, parse, point)
    if error is not None:
        raise ConfigError(f"{sweep.path}: parameters.{key}: {point[key]} is refused: {error}")


def _refusal(sweep: Sweep, parse: Parse, point: Mapping[str, Any]) -> str | None:
    """The command line's message about a point, as one line; None if the point is accepted."""
    try:
        config = parse(sweep.arguments(point))
    except ConfigError as error:
        return " ".join(str(error).split())
    if config.fit.trainer.logger not in (True, False, None):
        return (
            "trainer.logger is set, but runs are logged to their folders alone; set it by --config in a folder logger"
        )
    if sweep.metric.startswith("val/") and (reason := no_evaluation(config.fit.trainer)):
        return f"there is no {sweep.metric}: {reason}"
    return None


def _check_metric(sweep: Sweep, config: Namespace, point: str = "") -> None:
    """Refuse a metric of clients that a point does not measure, by loading its data.

    Metrics of the training depend on the algorithm, and the data of a federation are on its nodes.
    """
    split, place = sweep.metric.partition("/")[0], f"{sweep.path}: metric {sweep.metric}{point}"
    if split != "val":
        if "/" not in sweep.metric and sweep.metric not in ("rounds", "seconds"):
            raise ConfigError(f"{place} is not in summary.json; give the whole key, such as val/seen/{sweep.metric}")
        return
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
        raise ConfigError(f"{place}: no client has validation samples; give --data.val_fraction 0.2, say")
    known = evaluation_keys(data, choose_metrics(config.model.metrics, data.target), "val")
    if sweep.metric not in known:
        raise ConfigError(f"{place} is not measured; give one of {', '.join(sorted(known))}")


# ---------------------------------------------------------------------- searching
class Search:
    """Asks Optuna for points, and tells it their results; its file survives any kill.

    A point without a result is unfinished, whether it was cut off or failed.

    Args:
        sweep: the sweep.
        folder: gets the file `study.log`.
    """

    def __init__(self, sweep: Sweep, folder: Path) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.sweep = sweep
        self.study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(_mended(folder / "study.log")))), study_name="sweep",
            direction=StudyDirection[sweep.goal.upper()], load_if_exists=True, sampler=RandomSampler(),
        )  # fmt: skip
        for trial in self.study.get_trials(states=[TrialState.RUNNING]):
            if len(trial.params) < len(sweep.parameters):  # killed while it was asked for
                self.study.tell(trial.number, state=TrialState.FAIL)
        if sweep.method == "grid":
            self._enqueue_grid()

    def _enqueue_grid(self) -> None:
        """Let Optuna propose the missing points of the grid, in the order of the file."""
        trials = [one for one in self.study.get_trials() if one.state != TrialState.FAIL]
        known = [one.params or one.system_attrs["fixed_params"] for one in trials]
        keys, distributions = zip(*self.sweep.parameters.items(), strict=True)
        for values in itertools.product(*(one.choices for one in distributions)):
            point = dict(zip(keys, values, strict=True))
            if point not in known:
                self.study.enqueue_trial(point)

    def asked(self) -> dict[int, Point]:
        """The points proposed so far, by number."""
        states = [TrialState.RUNNING, TrialState.COMPLETE]
        return {one.number: self._point(one.params) for one in self.study.get_trials(states=states)}

    def finished(self) -> set[int]:
        """The numbers of those whose result is known."""
        return {one.number for one in self.study.get_trials(states=[TrialState.COMPLETE])}

    def ask(self) -> tuple[int, Point]:
        """A new point and its number; they depend on the known results only, not on interruptions."""
        sampler = TPESampler if self.sweep.method == "bayes" else RandomSampler
        self.study.sampler = sampler(seed=len(self.study.get_trials(deepcopy=False)))
        trial = self.study.ask(dict(self.sweep.parameters))
        return trial.number, self._point(trial.params)

    def tell(self, number: int, value: float) -> None:
        """Report the result of a point."""
        self.study.tell(number, value)

    def _point(self, params: dict[str, Any]) -> Point:
        kinds = self.sweep.parameters
        return {
            key: json.loads(params[key]) if isinstance(kinds[key], CategoricalDistribution) else params[key]
            for key in kinds
        }


def _mended(path: Path) -> Path:
    """The file without a line that a kill cut off, and without the lock of a dead process."""
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    if path.is_file():
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            path.write_bytes(whole)
    return path
