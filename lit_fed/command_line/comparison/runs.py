"""Finished runs, and those that differ in their seeds alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from lit_fed.errors import ConfigError
from lit_fed.system.spreadsheets import unquoted_table
from lit_fed.training.round_logger import newest_version

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FinishedRun", "Group", "find_run", "grouped", "metric_of", "read_run", "without_seeds"]

FILES = ("metrics.csv", "clients.csv")

METRICS = ("accuracy", "mse", "loss")
"""That clients are always measured by; the first one that all runs have is compared."""

WHERE_KEPT = {"name", "ckpt_path", "default_root_dir"}
"""Arguments that say where a run is kept, and nothing of what it computes."""


class FinishedRun(NamedTuple):
    """What a run left behind."""

    folder: Path
    config: dict[str, Any]  # {} of a run of a Python program, which leaves no config.yaml
    summary: dict[str, Any]
    history: pd.DataFrame  # a row for each round: metrics.csv and `sent`, bytes of all rounds so far
    clients: pd.DataFrame

    @property
    def name(self) -> str:
        """The name that its folder bears."""
        return self.folder.parent.name if self.folder.name.startswith("version_") else self.folder.name


class Group(NamedTuple):
    """Runs of one configuration with different seeds."""

    name: str  # short, from what differs between the configurations
    runs: list[FinishedRun]


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


def read_run(folder: Path) -> FinishedRun:
    """Read what a run left behind.

    Raises:
        ConfigError: if the run is not finished, or a file is missing.
    """
    import pandas as pd

    from lit_fed.pictures.run import read_history

    if not (folder / "summary.json").is_file():
        raise ConfigError(f"{folder} is not finished, it has no summary.json; {_ending(folder)}")
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise ConfigError(f"{folder} has no {missing[0]}; give a folder that a fit of lit_fed has written")
    config = yaml.safe_load((folder / "config.yaml").read_text()) if (folder / "config.yaml").is_file() else {}
    summary = json.loads((folder / "summary.json").read_text())
    if config and "changes_on_resume" in summary:
        config["changes_on_resume"] = summary["changes_on_resume"]
    clients = unquoted_table(pd.read_csv(folder / "clients.csv"))
    return FinishedRun(folder, config, summary, read_history(folder), clients)


def _ending(folder: Path) -> str:
    """How an unfinished run is finished."""
    if not (folder / "config.yaml").is_file():
        return "trainer.test(model, data) writes it"
    last = " --ckpt_path last" if (folder / "checkpoints/last.ckpt").is_file() else ""
    return f"finish it with: python -m lit_fed fit --config {folder}/config.yaml{last}"


def metric_of(runs: Sequence[FinishedRun], asked_for: str | None) -> str:
    """The metric that all runs have: the one asked for, else accuracy, the mean squared error or the loss.

    Raises:
        ConfigError: if a run does not have it, or one run has accuracies and another one squared errors.
    """
    known = {run.folder: _metrics_of(run) for run in runs}
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


def _metrics_of(run: FinishedRun) -> list[str]:
    """What a run's clients were measured by: the usual metrics before those of its own."""
    return [name for name in dict.fromkeys((*METRICS, *run.clients)) if f"test/seen/{name}" in run.summary]


def without_seeds(config: Any) -> Any:
    """A configuration without its seeds, and without what says where it is kept."""
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
