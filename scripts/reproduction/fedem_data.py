"""Data sets and networks of the FedEM paper: Table 1 of https://arxiv.org/abs/2108.10252."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from reproduction.runs import Kept, Record, Run
from reproduction.settings import PAPER, REDUCED, STAND_INS
from reproduction.tables import Scale, Setting, Table, grid, wrap

__all__ = ["TABLES"]

CLIENTS = {  # clients and samples of the paper
    "femnist": (539, 120_772),
    "emnist": (100, 81_425),
    "cifar10": (80, 60_000),
    "cifar100": (100, 60_000),
    "shakespeare": (778, 4_226_158),
    "synthetic": (300, 1_570_507),
}
PRETRAINED = ("cifar10", "cifar100")


def table1_settings(scale: Scale) -> list[Setting]:
    """The paper's data at every scale, since nothing is trained; those of the reduced tables too."""
    ours = [one for name, one in REDUCED.items() if name not in PAPER] if scale == "reduced" else []
    return [*PAPER.values(), *ours]


def table1_run(setting: Setting, scale: Scale, seed: int) -> Run:
    """Loads and divides the data of a setting."""
    random = ("--model.network.weights", "null") if setting.name in PRETRAINED else ()
    arguments = STAND_INS[setting.name] if scale == "smoke" else random
    drawn = ("--data.seed", str(seed)) if setting.draws_data else ()
    name = f"data/{setting.name}-{seed}"
    return Run(name, setting.config, (*arguments, *drawn), ("data_statistics",), fit=False)


def table1_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """The runs of all settings."""
    return [table1_run(setting, scale, seed) for seed in seeds for setting in table1_settings(scale)]


def table1_body(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """A row for each data set."""
    rows = []
    for setting in table1_settings(scale):
        found = kept.find(table1_run(setting, scale, seeds[0]))
        paper = CLIENTS.get(setting.name)
        published = f"{paper[0]} / {paper[1]:,}" if paper else ""
        rows.append([setting.label, setting.config, *_counts(found), published])
    head = ["data", "config", "clients / samples", "of a client: least / median / most", "classes", "parameters"]
    return [
        *wrap(
            "Samples of the training, validation and test splits of all clients, as the loaders give them, and "
            "parameters of one network; nothing is trained. Shakespeare is LEAF's where its files are there, and else "
            "the roles of roles.json with all of their text (docs/data.md), which are others and more."
        ),
        "", *grid([*head, "the paper: clients / samples"], rows), "", *_as_published(kept, scale, seeds),
    ]  # fmt: skip


def _counts(found: Record | None) -> list[str]:
    if found is None:
        return ["not run", "", "", ""]
    counted: dict[str, Any] = found["data_statistics"]
    sizes = counted["samples"]
    spread = f"{min(sizes):,} / {statistics.median(sizes):,.0f} / {max(sizes):,}"
    return [f"{len(sizes)} / {sum(sizes):,}", spread, str(counted["classes"]), f"{counted['parameters']:,}"]


def _as_published(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """Which data sets have the paper's numbers of clients and samples."""
    found = {name: kept.find(table1_run(PAPER[name], scale, seeds[0])) for name in CLIENTS}
    made = {name: one["data_statistics"]["samples"] for name, one in found.items() if one is not None}
    same = [PAPER[name].label for name, sizes in made.items() if (len(sizes), sum(sizes)) == CLIENTS[name]]
    if not made or scale == "smoke":
        return []
    return wrap(f"{len(same)} of the paper's {len(made)} that were loaded have its counts: {', '.join(same)}.")


TABLES = [
    Table("fedem-table1", table1_runs, table1_body),
]
