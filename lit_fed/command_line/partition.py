"""`python -m lit_fed partition`: the samples of each client, without training."""

from __future__ import annotations

import sys
from argparse import SUPPRESS
from pathlib import Path
from typing import Any

import numpy as np
from jsonargparse import ActionConfigFile, Namespace  # type: ignore[attr-defined]

from lit_fed.command_line.arguments import prepared
from lit_fed.command_line.classes import check_parsed
from lit_fed.command_line.help import explain_arguments
from lit_fed.command_line.parser import FederatedParser, command_parser
from lit_fed.core.targets import Target
from lit_fed.core.types import Population
from lit_fed.data.module import FederatedDataModule
from lit_fed.data.partitions.natural import Natural
from lit_fed.system.packages import pd
from lit_fed.training.output import check_new_folder, new_folder, print_rows, write_table

__all__ = ["partition_parser", "partition_table", "print_partition", "show_partition"]

OF_OTHER_COMMANDS = ("model", "trainer", "seed_everything", "name", "ckpt_path")
"""Sections of a run's configuration on which no partition depends, but for `model.target`."""

SPLITS = {"train": "training", "val": "validation", "test": "test"}


def partition_parser() -> FederatedParser:
    """The arguments of the command: those of the data, and where to write."""
    parser = command_parser(
        "partition", None,
        "Prints a table and writes partition.png and partition.csv. Takes the "
        "same configurations as fit; only their section `data` and `model.target` matter.",
    )  # fmt: skip
    parser.add_argument("-c", "--config", action=ActionConfigFile, help="path of a configuration.")
    parser.add_argument("--output", type=str, default="partition", help="folder to be written, new or empty.")
    parser.add_lightning_class_args(FederatedDataModule, "data")
    explain_arguments(parser)
    for name in OF_OTHER_COMMANDS:
        parser.add_argument(f"--{name}", type=Any, default=SUPPRESS, help=SUPPRESS)
    parser.add_argument("--model.target", type=Target | None, help="what labels are, as in fit.")
    return parser


def show_partition(arguments: list[str]) -> None:
    """Run the command.

    Raises:
        ConfigError: if the arguments, the data or the folder are refused; nothing has been written then.
    """
    parser = partition_parser()
    config = parser.parse_args(prepared(arguments))
    check_parsed(parser, config)
    folder = check_new_folder(config.output)
    data: FederatedDataModule = parser.instantiate(Namespace(data=config.data)).data  # type: ignore[no-untyped-call]
    data.given_target = _target(config.model)
    data.prepare_data()
    data.setup()
    table = partition_table(data)
    _write(table, folder)
    print_partition(table, _title(data))
    sys.stdout.write(f"results: {folder}\n")


def _target(model: Any) -> Target | None:
    """The target of the section `model`, which a configuration leaves as it stands there."""
    parser = FederatedParser()
    parser.add_argument("--model.target", type=Target | None)
    given = model.get("target") if isinstance(model, dict | Namespace) else None
    target: Target | None = parser.instantiate(parser.parse_object({"model": {"target": given}})).model.target
    return target


def _write(table: pd.DataFrame, folder: Path) -> None:
    from lit_fed.pictures.partition import draw_partition

    with new_folder(folder, owner=True) as partial:
        partial.mkdir()
        write_table(table, partial / "partition.csv")
        draw_partition(table, partial / "partition.png")


def _title(data: FederatedDataModule) -> str:
    """The data set and its partition."""
    if data.dataset.natural or isinstance(data.partition, Natural):
        return f"{type(data.dataset).__name__}, natural clients"
    return f"{type(data.dataset).__name__}, {data.partition or 'default partition'}"


def partition_table(data: FederatedDataModule) -> pd.DataFrame:
    """One row per client: samples of each split, and of each label in all splits together.

    Returns:
        Columns `client` (name), `client_id`, `population`, `group` where true groups are known, `num_train`, `num_val`,
        `num_test`, and `label_0`, `label_1`, … where samples have one class each and are in memory; where classes have
        names, these instead of numbers.
    """
    tables = []
    for name, population in (("seen", data.seen), ("unseen", data.unseen)):
        if population is None:
            continue
        groups = {} if population.groups is None else {"group": population.groups.tolist()}
        sizes = {f"num_{split}": getattr(population, split).sizes.tolist() for split in SPLITS}
        if population.calibration is not None:
            sizes["num_calibration"] = population.calibration.sizes.tolist()
        counts = _label_counts(population, data.target)
        called = population.class_names or range(data.target.num_classes)
        labels = {} if counts is None else {f"label_{one}": each for one, each in zip(called, counts.T, strict=True)}
        first = population.train.first_id
        named = {"client": population.names, "client_id": range(first, first + len(population.names))}
        tables.append(pd.DataFrame({**named, "population": name, **groups, **sizes, **labels}))
    return pd.concat(tables, ignore_index=True)


def _label_counts(population: Population, target: Target) -> np.ndarray | None:
    """Samples of each client and label, [T, classes]; None: no classes, several in a sample, or drawn when needed."""
    drawn = population.train.samples_per_block is not None
    if target.continuous or target.positions or target.vectors or drawn:
        return None
    num_clients = population.train.num_clients
    counts = np.zeros(num_clients * target.num_classes, dtype=np.int64)
    for split in population.splits:
        client_of_sample = np.repeat(np.arange(num_clients), split.sizes.numpy())
        counts += np.bincount(client_of_sample * target.num_classes + split.y.numpy(), minlength=len(counts))
    return counts.reshape(num_clients, target.num_classes)


def print_partition(table: pd.DataFrame, title: str) -> None:
    """Print the sizes of the clients, a line for each population."""
    found = []
    for population, rows in table.groupby("population"):
        labels = rows.filter(regex="^label_")
        spreads = [_spread(rows[f"num_{split}"]) for split in SPLITS]
        spreads.append(_spread((labels > 0).sum(axis=1)) if len(labels.columns) else "")
        groups = str(rows["group"].nunique()) if "group" in rows else ""
        found.append([str(population), f"{len(rows):,}", *spreads, groups])
    headings = ["", "clients", *SPLITS.values(), "labels", "groups"]
    print_rows(title, headings, found, caption="samples and labels of a client: smallest / median / largest")


def _spread(values: pd.Series) -> str:
    return f"{values.min():,} / {values.median():,.10g} / {values.max():,}"
