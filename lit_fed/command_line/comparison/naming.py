"""Short names of configurations, from what differs between them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from lit_fed.command_line.comparison.runs import FinishedRun, Group, without_seeds

__all__ = ["differences", "named"]

MOST_DIFFERENCES = 3
"""More of them make no short name."""

Flat = dict[str, str]
"""Arguments by their dotted names; values as text."""


def named(groups: Sequence[list[FinishedRun]]) -> list[Group]:
    """Groups with names: what differs between their configurations, else those of their runs, else of their folders."""
    first = [runs[0] for runs in groups]
    for names in (
        differences([without_seeds(run.config) for run in first]),
        [run.name for run in first],
        [f"{run.name}/{run.folder.name}" for run in first],
    ):
        if all(names) and len(set(names)) == len(groups):
            return [Group(name, runs) for name, runs in zip(names, groups, strict=True)]
    return [Group(str(runs[0].folder), runs) for runs in groups]


def differences(configs: Sequence[dict[str, Any]]) -> list[str]:
    """What differs, as `FedEM, lr=0.1`, for each configuration; empty where nothing does, or too much."""
    flats = [_flat(config) for config in configs]
    names = [[_part(key, flat[key]) for key in flat if _differs(key, flat, flats)] for flat in flats]
    if any(len(parts) > MOST_DIFFERENCES for parts in names):
        return [""] * len(configs)
    return [", ".join(parts) for parts in names]


def _flat(config: Any, path: str = "") -> Flat:
    """How a run is carried out (`trainer`) names nothing, but for the number of rounds."""
    if isinstance(config, dict):
        parts = [_flat(value, f"{path}.{key}" if path else str(key)) for key, value in config.items()]
        return {key: value for part in parts for key, value in part.items()}
    if path.startswith("trainer.") and path != "trainer.max_epochs":
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
