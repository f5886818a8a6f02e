"""Finished runs: their files, groups of runs that differ in seeds alone, and names by what differs."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lit_fed.errors import ConfigError, notice
from lit_fed.metrics.paired import paired
from lit_fed.metrics.scores import USUAL
from lit_fed.metrics.summary import RunSummary
from lit_fed.system.foreign_files import read_file, read_table, yaml_value
from lit_fed.system.packages import pd
from lit_fed.system.readers import record
from lit_fed.training.round_logger import newest_version, read_history

__all__ = [
    "FIX", "SAME_DATA", "FinishedRun", "Group", "class_name", "compared", "differences", "find_run", "find_runs",
    "further_differences", "grouped", "metric_of", "metrics_of", "named", "read_run", "refuse_other_data",
    "without_seeds",
]  # fmt: skip

FILES = ("metrics.csv", "clients.csv")

FIX = "give a folder that a fit of lit_fed has written"

SECTION = record({}, others=True)

CONFIG = record(
    {"model": record({"solver": SECTION}, may_miss=("solver",), others=True), "data": SECTION, "trainer": SECTION},
    may_miss=("model", "data", "trainer"), others=True,
)  # fmt: skip
"""Reader of the parts of config.yaml that are looked into."""

WHERE_KEPT = {"name", "ckpt_path", "default_root_dir", "report"}
"""Arguments that say where a run is kept, and do not change its results."""

NAMELESS = (
    "model.client_trainer", "model.client_memory_gb", "model.memory_format", "model.metrics", "data.clients_per_block",
    "data.eval_clients", "resume_with_changes", "changes_on_resume",
)  # fmt: skip
"""Arguments that do not change the training, so they name no row."""

NAMING = ("trainer.max_epochs", "trainer.precision")
"""Arguments of the trainer that change the training; the others say how a run is carried out."""

BLEND = "Blend"
"""Algorithm of a run that mixes the predictions of others: its own round trains nothing."""

MOST_DIFFERENCES = 3
"""Upper limit for a name made of differences."""

TRAINING = (
    "batch_size", "client_fraction", "clients_per_round", "client_sampling", "clients_per_block", "augment", "poison",
)  # fmt: skip
"""Arguments of the data that change neither clients nor their test samples."""

SAME_DATA = (*TRAINING, "attackers")
"""Arguments of the data that runs in one table may differ in."""

Flat = dict[str, str]
"""Arguments by their dotted names; values as text."""


class FinishedRun(NamedTuple):
    """The files of a finished run."""

    folder: Path
    config: dict[str, Any]  # {} of a run of a Python program, which leaves no config.yaml
    summary: RunSummary
    history: pd.DataFrame  # a row for each round: metrics.csv and `sent`, bytes of all rounds so far
    clients: pd.DataFrame

    @property
    def is_private(self) -> bool:
        """Whether ε does not cover what its files say about single clients."""
        model = self.config.get("model", {})
        of_private = (model.get("algorithm") or {}).get("init_args", {}).get("is_private")  # a blend of such runs
        return bool(model.get("privacy") or of_private) or "privacy/delta" in self.summary.entries

    @property
    def algorithm(self) -> str:
        """The class of its algorithm; "" if it is not known."""
        return class_name(self.config.get("model", {}).get("algorithm")) or str(
            self.summary.entries.get("algorithm", "")
        )

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.parent.name if self.folder.name.startswith("version_") else self.folder.name


class Group(NamedTuple):
    """Runs of one configuration with different seeds."""

    name: str  # short, from what differs between the configurations
    runs: list[FinishedRun]


def class_name(value: Any) -> str:
    """The name of a class in a configuration."""
    return str(value.get("class_path", "")).rpartition(".")[2] if isinstance(value, dict) else ""


def find_run(folder: Path) -> Path:
    """The folder of a run: the given one, or its newest version.

    Raises:
        ConfigError: if there is no such folder or no run in it.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; give the folder of a run, such as runs/quickstart/version_0")
    if any((folder / name).is_file() for name in ("config.yaml", "metrics.csv", "summary.json")):
        return folder
    version = newest_version(folder)
    if version < 0:
        raise ConfigError(f"{folder} holds no run; give the folder of a run, such as runs/quickstart/version_0")
    return folder / f"version_{version}"


def find_runs(folders: Iterable[Path]) -> list[Path]:
    """The folders of runs, once each: the given ones, their newest versions, or the seeds of `fit --seeds` in them.

    Raises:
        ConfigError: if there is no such folder or no run in it.
    """
    found: list[Path] = []
    for folder in folders:
        seeds = [one for one in folder.glob("seed_*") if one.name.removeprefix("seed_").isdigit()]
        seeds.sort(key=lambda one: int(one.name.removeprefix("seed_")))
        found += map(find_run, seeds or [folder])
    return [*dict.fromkeys(found)]


def read_run(folder: Path) -> FinishedRun:
    """Read the files of a finished run.

    Raises:
        ConfigError: if the run is not finished, or naming a file that is missing or that no run has written.
    """
    if not (folder / "summary.json").is_file():
        raise ConfigError(f"{folder} is not finished, it has no summary.json; {_ending(folder)}")
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise ConfigError(f"{folder} has no {missing[0]}; {FIX}")
    file, summary = folder / "config.yaml", RunSummary.read(folder)
    config = read_file(file, yaml_value, CONFIG, FIX) if file.is_file() else {}
    if config and "changes_on_resume" in summary.entries:
        config["changes_on_resume"] = summary.entries["changes_on_resume"]
    clients = read_table(folder / "clients.csv", FIX, ("client", "population"), ("num_train", "num_test"))
    return FinishedRun(folder, config, summary, read_history(folder), clients)


def _ending(folder: Path) -> str:
    """Advice on how to finish an unfinished run."""
    if not (folder / "config.yaml").is_file():
        return "trainer.test(model, data) writes it"
    last = " --ckpt_path last" if (folder / "checkpoints/last.ckpt").is_file() else ""
    return f"finish it with: python -m lit_fed fit --config {folder}/config.yaml{last}"


def metric_of(runs: Sequence[FinishedRun], asked_for: str | None) -> str:
    """The metric that all runs have: the one asked for, else accuracy, the mean squared error or the loss.

    Raises:
        ConfigError: if a run does not have it, or one run has accuracies and another has squared errors.
    """
    known = {run.folder: metrics_of(run) for run in runs}
    if asked_for is None:
        first, *others = runs
        for other in others:
            if known[first.folder][:1] != known[other.folder][:1]:
                raise ConfigError(
                    f"{first.folder} has {' and '.join(known[first.folder])}, {other.folder} has "
                    f"{' and '.join(known[other.folder])}; compare them apart, or with --metric loss"
                )
        return known[first.folder][0]
    for folder, names in known.items():
        if asked_for not in names:
            raise ConfigError(f"--metric {asked_for}: {folder} has {' and '.join(names)}; give one of these")
    return asked_for


def metrics_of(run: FinishedRun) -> list[str]:
    """The metrics of a run's clients: the usual ones before the chosen ones."""
    measured = run.clients.columns.drop(["client", "population"])
    names = [name for name in dict.fromkeys((*USUAL, *measured)) if name in measured]
    found = [name for name in names if f"test/seen/{name}" in run.summary.entries]
    if not found:
        raise ConfigError(f"{run.folder}: summary.json has no result of the clients in clients.csv; {FIX}")
    return found


def without_seeds(config: Any) -> Any:
    """A configuration without its seeds and without the folder of the run."""
    if isinstance(config, dict):
        left = {key: value for key, value in config.items() if not _is_seed(key) and key not in WHERE_KEPT}
        return {key: without_seeds(value) for key, value in left.items()}
    return [without_seeds(one) for one in config] if isinstance(config, list) else config


def _is_seed(key: str) -> bool:
    return key in ("seed", "seed_everything", "init_seeds")


def grouped(runs: Sequence[FinishedRun]) -> list[list[FinishedRun]]:
    """Runs whose configurations differ in seeds alone, in the order of the first of each.

    Raises:
        ConfigError: if two of them have the same seeds too.
    """
    groups: dict[str, list[FinishedRun]] = {}
    for run in runs:
        config = without_seeds(run.config) or str(run.folder)
        groups.setdefault(json.dumps(config, sort_keys=True), []).append(run)
    for members in groups.values():
        seeds: dict[str, Path] = {}
        for run in members:
            with_seeds = {key: value for key, value in run.config.items() if key not in WHERE_KEPT}
            with_seeds["trainer"] = without_seeds(run.config.get("trainer", {}))
            text = json.dumps(with_seeds, sort_keys=True)
            if text in seeds:
                raise ConfigError(f"{seeds[text]} and {run.folder} have the same configuration and seeds; give one")
            seeds[text] = run.folder
    return list(groups.values())


# ---------------------------------------------------------------------- data
def refuse_other_data(groups: Sequence[Group]) -> None:
    """Refuse rows on different data; a line says where only some of the seeds of the data are the same.

    Raises:
        ConfigError: naming the first difference: a setting of the data, their seeds, or a client's samples.
    """
    first, *others = groups
    for other in others:
        found = _difference("data", _data_of(first.runs[0]), _data_of(other.runs[0]))
        told = first.runs[0].config and other.runs[0].config  # else the samples alone tell
        own, its = ({_seeds_of(run) if told else "": run for run in one.runs} for one in (first, other))
        if not found and not own.keys() & its.keys():
            found = "the seeds of the data", ", ".join(own), ", ".join(its)
        for seeds in own.keys() & its.keys() if not found else ():
            found = found or _other_samples(own[seeds].clients, its[seeds].clients)
        if found:
            what, before, now = found
            raise ConfigError(
                f"{other.name} is on other data than {first.name}: {what}: {now}, and {before} there; compare them "
                "apart, or add --different_data"
            )
        if own.keys() != its.keys():
            notice(
                f"{first.name} is over data with {'; '.join(own)}, and {other.name} over data with {'; '.join(its)}: "
                "their means are of different clients or splits"
            )


def _data_of(run: FinishedRun) -> dict[str, Any]:
    """Arguments of the data, besides seeds, that decide the clients and their test samples."""
    data: dict[str, Any] = without_seeds(run.config.get("data", {}))
    return {key: value for key, value in data.items() if key not in SAME_DATA}


def _seeds_of(run: FinishedRun) -> str:
    flat = _flat({"data": run.config.get("data", {})})
    return ", ".join(f"{key.replace('.init_args', '')} {flat[key]}" for key in flat if _is_seed(key.rpartition(".")[2]))


def _difference(key: str, one: Any, other: Any) -> tuple[str, str, str] | None:
    """Name and values of the first argument that both have and that differs; of other classes, the classes."""
    if isinstance(one, dict) and isinstance(other, dict):
        both = (_difference(f"{key}.{name}", one[name], other[name]) for name in one if name in other)
        return next(filter(None, both), None)
    before, now = (
        str(each["class_path"] if isinstance(each, dict) else each).rpartition(".")[2]
        if key.endswith("class_path") or (isinstance(each, dict) and "class_path" in each)
        else json.dumps(each)
        for each in (one, other)
    )
    return None if before == now else (key.replace(".init_args", "").removesuffix(".class_path"), before, now)


def _other_samples(one: pd.DataFrame, other: pd.DataFrame) -> tuple[str, str, str] | None:
    """The first client whose numbers of samples differ, or that only one has."""
    columns = ["population", "client", "num_train", "num_test"]
    counts = [
        {(population, client): f"{train} training and {test} test samples" for population, client, train, test in rows}
        for rows in (table[columns].astype(str).to_numpy().tolist() for table in (one, other))
    ]
    for who in {**counts[0], **counts[1]}:
        before, now = (each.get(who, "no such client") for each in counts)
        if before != now:
            return f"{who[0]} client {who[1]}", before, now
    return None


# ---------------------------------------------------------------------- names
def named(
    groups: Sequence[list[FinishedRun]], given: Sequence[str] | None = None, hidden: Sequence[str] = ()
) -> list[Group]:
    """Groups with names: given ones, or the first of these that tell all apart.

    Their algorithms, the differences of their configurations, their runs, their folders.

    Args:
        groups: result of `grouped`.
        given: the names; None: chosen here.
        hidden: sections of the configurations that no name may quote.

    Raises:
        ConfigError: if there are not as many given names as groups, or one is given twice.
    """
    if given is not None:
        if len(given) != len(groups) or len(set(given)) < len(given):
            rows = ", ".join(name for name, _ in named(groups))
            raise ConfigError(
                f"--names is {', '.join(given)}; give a different name for each of {len(groups)} rows: {rows}"
            )
        return [Group(name, runs) for name, runs in zip(given, groups, strict=True)]
    first = [runs[0] for runs in groups]
    open_to_all = [{key: value for key, value in run.config.items() if key not in hidden} for run in first]
    for names in (
        [run.algorithm for run in first],
        differences([without_seeds(config) for config in open_to_all]),
        [run.name for run in first],
        [f"{run.name}/{run.folder.name}" for run in first],
    ):
        if all(names) and len(set(names)) == len(groups):
            return [Group(name, runs) for name, runs in zip(names, groups, strict=True)]
    return [Group(str(runs[0].folder), runs) for runs in groups]


def differences(configs: Sequence[dict[str, Any]]) -> list[str]:
    """The differences of each configuration, such as `FedEM, lr=0.1`; empty if there are none or too many."""
    flats = [_flat(config) for config in configs]
    names = [[_part(key, flat[key]) for key in flat if _differs(key, flat, flats)] for flat in flats]
    if any(len(parts) > MOST_DIFFERENCES for parts in names):
        return [""] * len(configs)
    return [", ".join(parts) for parts in names]


def further_differences(groups: Sequence[Group]) -> list[str]:
    """Settings beside the algorithm in which groups differ and that no name says; a blend takes those of its runs."""
    compared = [(name, _flat(without_seeds(runs[0].config))) for name, runs in groups if runs[0].algorithm != BLEND]
    flats = [flat for _, flat in compared]
    keys = [
        key for name, flat in compared for key in flat
        if key != "model.algorithm.class_path" and _part(key, flat[key]) not in name and _differs(key, flat, flats)
    ]  # fmt: skip
    return list(dict.fromkeys(key.removesuffix(".class_path").rpartition(".")[2] for key in keys))


def _flat(config: Any, path: str = "") -> Flat:
    """Arguments that change the training, by their dotted names."""
    if isinstance(config, dict):
        parts = [_flat(value, f"{path}.{key}" if path else str(key)) for key, value in config.items()]
        return {key: value for part in parts for key, value in part.items()}
    if path in NAMELESS or (path.startswith("trainer.") and path not in NAMING):
        return {}
    return {path: config if isinstance(config, str) else json.dumps(config)}


def _differs(key: str, flat: Flat, flats: Sequence[Flat]) -> bool:
    """Whether another configuration has another value; arguments of a class are compared within that class."""
    owner = key.rpartition(".init_args.")[0]
    kind = f"{owner}.class_path"
    others = [one for one in flats if not owner or one.get(kind) == flat.get(kind)]
    return any(one.get(key) != flat[key] for one in others)


def _part(key: str, value: str) -> str:
    """The class without its module, or the argument's own name with its value."""
    name = key.rpartition(".")[2]
    return value.rpartition(".")[2] if name == "class_path" else f"{name}={value}"


# ---------------------------------------------------------------------- clients
def compared(runs: Sequence[FinishedRun], others: Sequence[FinishedRun], metric: str) -> pd.DataFrame:
    """The clients that two groups of runs have in common, as of `paired`.

    `gain` is the difference, positive where the first group is better; NaN if the direction of the metric is unknown.
    """
    table = paired(_clients(runs, metric), _clients(others, metric))
    larger = next((found for run in runs if (found := run.summary.larger_is_better(metric)) is not None), None)
    sign = math.nan if larger is None else 1 if larger else -1
    return table.assign(gain=sign * (table["value"] - table["other"]).round(9))  # means over seeds


def _clients(runs: Sequence[FinishedRun], metric: str) -> pd.DataFrame:
    """The clients of the runs for `paired`, in the order of the runs; `value` is the mean over those of a division."""
    parts = []
    for run in runs:
        part = run.clients[["population", "client", "num_test", metric]].copy()
        part.columns = pd.Index(["population", "client", "samples", "value"])
        parts.append(part.assign(division=_division(run)))
    groups = pd.concat(parts).groupby(["division", "population", "client"], sort=False)
    return groups.agg({"samples": "first", "value": "mean"}).reset_index()


def _division(run: FinishedRun) -> str:
    """Digest of what decides the clients and their samples: arguments of the data, and the numbers of samples."""
    data: dict[str, Any] = run.config.get("data", {})
    kept = {key: value for key, value in data.items() if key not in TRAINING}
    counts = run.clients[["population", "client", "num_train", "num_test"]]
    text = json.dumps([kept, counts.astype(str).to_numpy().tolist()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
