"""`lit-fed flower-app`: a training as an app of Flower, which holds the whole configuration and no code."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from lit_fed.command_line.arguments import CONFIG
from lit_fed.command_line.client import node_settings
from lit_fed.command_line.parser import FederatedParser, command_parser
from lit_fed.deployment.flower_apps import FlowerFederation
from lit_fed.errors import ConfigError
from lit_fed.training.output import check_new_folder, new_folder

__all__ = ["flower_app_parser", "write_flower_app"]

DATASET = f"{FlowerFederation.__module__}.{FlowerFederation.__qualname__}"

ONE_PROCESS = {"strategy": ("auto",), "devices": (1, "1", "auto"), "num_nodes": (1,)}
"""Arguments of the trainer, and their values if one process has Flower's Grid."""

LONGEST_NAME = 40

OF_NODES = "nodes.yaml"
"""File with the settings of the nodes, for their operators."""

APP = '''\
# Written by `lit-fed flower-app`; lit-fed has to be installed on the server and on all nodes.
# flwr run FOLDER SUPERLINK                                          begins
# flwr run FOLDER SUPERLINK --run-config 'ckpt-path="last"'          goes on where a run was cut off

[project]
name = "{name}"
version = "{version}"
description = "A training of lit-fed"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "lit-fed"

[tool.flwr.app.components]
serverapp = "lit_fed.deployment.flower_apps:server_app"
clientapp = "lit_fed.deployment.flower_apps:client_app"

[tool.flwr.app.config]
ckpt-path = ""
config = """
{config}"""
'''


def flower_app_parser() -> FederatedParser:
    """The arguments of the command beside those of `fit`."""
    parser = command_parser(
        "flower-app", "[options] --output FOLDER [arguments of fit]",
        "Takes the configurations and arguments of fit, but the clients' samples "
        "are on the nodes: --data.dataset.num_nodes says how many SuperNodes there have to be.",
    )  # fmt: skip
    parser.add_argument("--output", type=str, required=True, help="folder to be written, new or empty.")
    return parser


def write_flower_app(arguments: list[str], parse: Callable[[list[str]], Any]) -> None:
    """Run the command; `parse` makes a command line that has parsed its arguments, without running it.

    Raises:
        ConfigError: if the arguments or the folder are refused, or make no run of Flower; nothing is written then.
    """
    own, of_fit = _divided(arguments, "-h", "--help", "--output")
    configs, others = _divided(of_fit, *CONFIG)  # which may name another data set: that of nodes follows
    folder = check_new_folder(flower_app_parser().parse_args(own).output)
    command_line = parse(["fit", *configs, "--data.dataset", DATASET, *others])
    config = json.loads(command_line.parser.dump(command_line.config, skip_unset=False, format="json"))["fit"]
    _check(config)
    _, common = node_settings(command_line)
    with new_folder(folder, owner=True) as partial:
        partial.mkdir()
        (partial / "pyproject.toml").write_text(_app(config), encoding="utf-8")
        (partial / OF_NODES).write_text(_yaml({"model": common}), encoding="utf-8")
    _tell(folder, config)


def _divided(given: list[str], *options: str) -> tuple[list[str], list[str]]:
    """The arguments of these options with their values, and all others."""
    chosen: list[str] = []
    others: list[str] = []
    for before, one in zip(["", *given], given, strict=False):
        with_value = set(options) - {"-h", "--help"}
        found = before in with_value or one in options or one.partition("=")[0] in with_value
        (chosen if found else others).append(one)
    return chosen, others


def _check(config: dict[str, Any]) -> None:
    """Refuse settings that the server would refuse hours later, or that mean something else there."""
    data, trainer = config["data"], config["trainer"]
    if data["dataset"]["class_path"] != DATASET:
        raise ConfigError(
            f"--data.dataset is {data['dataset']['class_path'].rpartition('.')[2]}, and the samples of this run are on "
            "the nodes; leave it out"
        )
    FlowerFederation(**data["dataset"]["init_args"])
    for name in ("partition", "num_clients", "poison"):
        if data[name] is not None:
            given = data[name]["class_path"].rpartition(".")[2] if isinstance(data[name], dict) else data[name]
            raise ConfigError(f"--data.{name} is {given}, and every node brings its clients; add --data.{name} null")
    if data["unseen_fraction"]:
        raise ConfigError(
            f"--data.unseen_fraction is {data['unseen_fraction']}, and unseen clients are chosen on the nodes, by the "
            "folder `unseen`; add --data.unseen_fraction 0"
        )
    for name, allowed in ONE_PROCESS.items():
        if trainer[name] not in allowed:
            raise ConfigError(f"--trainer.{name} is {trainer[name]}; Flower starts one process, give {allowed[0]}")
    if config["ckpt_path"] is not None:
        raise ConfigError(
            f"--ckpt_path is {config['ckpt_path']}; leave it out, and give it to Flower when a run is to go on: "
            "flwr run FOLDER SUPERLINK --run-config 'ckpt-path=\"last\"'"
        )
    if config["init_from"] is not None and not Path(config["init_from"]).is_absolute():
        raise ConfigError(f"--init_from is {config['init_from']}; give the whole path of that file on the server")


def _app(config: dict[str, Any]) -> str:
    """The text of pyproject.toml."""
    from importlib.metadata import version

    name = re.sub(r"[^a-z0-9]+", "-", f"lit-fed-{config['name']}".lower())[:LONGEST_NAME].strip("-")
    return APP.format(
        name=name, version=version("lit-fed"), config=_yaml(config).replace("\\", "\\\\").replace('"', '\\"')
    )


def _yaml(config: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=100)
    return text


def _tell(folder: Path, config: dict[str, Any]) -> None:
    root = Path(config["trainer"]["default_root_dir"])
    where = "" if root.is_absolute() else ", beneath the folder in which flower-superlink was started"
    sys.stdout.write(
        f"app: {folder}\n"
        f"nodes need a copy of {folder / OF_NODES}: "
        '--node-config \'config="FILE" data-root="FOLDER" state-root="FOLDER"\'\n'
        f"next: flwr run {folder} SUPERLINK; results: {root / config['name']} on the server{where}\n"
    )
