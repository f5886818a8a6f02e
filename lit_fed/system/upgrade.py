"""Settings of version 0.2: the line to write in a configuration, and checkpoints read in today's names.

docs/upgrade.md lists the same lines.
"""

from __future__ import annotations

from typing import Any

from lit_fed.errors import ConfigError

__all__ = ["GONE", "instead_of", "upgraded"]

PAGE = "docs/upgrade.md has the line to write for each option of version 0.2"

GONE: dict[str, str] = {
    "model.algorithm.average": (
        "leave out samples and clients, the paper's rules; for responsibility, and for auto outside of privacy, robust "
        "rules, EF21 and nodes, write --model.algorithm ResponsibilityFedEM (ResponsibilityDFedEM); rescaled is gone"
    ),
    "model.algorithm.min_weight": "leave it out: clients send all components",
    "model.algorithm.most_components": "leave it out: clients send all components",
    "model.algorithm.shuffle_per_component": (
        "leave out false; for true write --model.algorithm OfficialFedEM "
        "--model.algorithm.refresh_mixture_at_eval false"
    ),
    "model.algorithm.refresh_mixture_at_eval": (
        "leave out false; for true write --model.algorithm OfficialFedEM --model.algorithm.shuffle_per_component false"
    ),
    "model.algorithm.start Annealing": "write --model.algorithm.start Clustering, or leave it out",
    "model.algorithm.start FarthestClients": "write --model.algorithm.start Clustering, or leave it out",
    "model.algorithm.start Restarts": "write --model.algorithm.start Clustering, or leave it out",
    "model.algorithm.start SplitAndMerge": "write --model.algorithm.start Clustering, or leave it out",
    **dict.fromkeys(
        [f"model.solver.optimizer {name}" for name in ("rmsprop", "adagrad", "adadelta", "adamax", "radam")],
        "write --model.solver.optimizer adam, or the path of a function such as my_file.lion",
    ),
}
"""Options of version 0.2 that are gone, some with the class that is → what to write instead."""

HABITS = ("shuffle_per_component", "refresh_mixture_at_eval")
"""Options that are those of OfficialFedEM now."""

TOGETHER = [f"model.algorithm.{name}" for name in ("average", "min_weight", "most_components", *HABITS)]
"""Options that every config.yaml of FedEM of version 0.2 holds."""


def instead_of(option: str) -> list[str]:
    """Lines about an option that is gone: what to write instead; none if it is not known.

    Args:
        option: its name without dashes, with a space and the class if that is gone.

    Example:
        >>> instead_of("model.algorithm.min_weight")[0]
        '--model.algorithm.min_weight is gone since version 0.2'
    """
    if option not in GONE:
        return []
    said = TOGETHER if option in TOGETHER else [option]
    return [f"--{option} is gone since version 0.2", *(f"  --{one}: {GONE[one]}" for one in said), PAGE]


def upgraded(entry: dict[str, Any], place: str) -> dict[str, Any]:
    """The entry of lit_fed in a checkpoint, with the settings of version 0.2 in today's names.

    Args:
        entry: identity and arguments of the run, and more.
        place: the option and its file, for messages.

    Raises:
        ConfigError: if the run used what is gone.
    """
    averages = _averages(entry["identity"])  # where `auto` is decided
    return entry | {name: _today(entry[name], averages, place) for name in ("identity", "arguments")}


def _averages(settings: Any) -> set[str]:
    """The values of `average` in all mixtures of version 0.2 among these settings."""
    if not isinstance(settings, dict):
        return set()
    found = set().union(*map(_averages, settings.values()))
    return found | ({str(settings["average"])} if _mixture_of(settings) and "average" in settings else set())


def _mixture_of(settings: dict[str, Any]) -> str:
    """FedEM or DFedEM if a dict of settings is of one of these, else ""."""
    package, _, name = str(settings.get("class_path")).rpartition(".")
    return name if name in ("FedEM", "DFedEM") and package.partition(".")[0] in ("", "lit_fed") else ""


def _today(settings: Any, averages: set[str], place: str) -> Any:
    if not isinstance(settings, dict):
        return settings
    settings = {name: _today(value, averages, place) for name, value in settings.items()}
    name, is_argument = _mixture_of(settings), "init_args" in settings
    options = settings["init_args"] if is_argument else {key: v for key, v in settings.items() if key != "class_path"}
    if not name or not {"average", "min_weight", "shuffle_per_component"} & options.keys():
        return settings
    average = options.get("average", "samples")
    average = next(iter(averages), "samples") if average == "auto" else average
    habits = [key for key in HABITS if options.get(key)]
    start = options.get("start")
    if (
        average == "rescaled" or options.get("min_weight") or options.get("most_components")
        or (habits and average == "responsibility")
        or (start and not str(start["class_path"]).endswith("Clustering"))
    ):  # fmt: skip
        raise ConfigError(f"{place} is of version 0.2, of a run of {name} with settings that are gone; {PAGE}")
    if average == "responsibility":
        name = f"Responsibility{name}"
    elif habits:
        name, options = "OfficialFedEM", dict.fromkeys(HABITS, False) | options
    gone = {"average", "min_weight", "most_components", *(() if habits else HABITS)}
    options = {key: value for key, value in options.items() if key not in gone}
    if is_argument:
        return settings | {"class_path": f"lit_fed.{name}", "init_args": options}
    inside = {"class_path": name} | options
    return {"class_path": "StartByClustering", "inner": inside} if start else inside
