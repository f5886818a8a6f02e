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
from lit_fed.deployment.federation import RemoteClients
from lit_fed.deployment.flower_apps import FlowerFederation
from lit_fed.errors import ConfigError
from lit_fed.training.output import check_new_folder, new_folder

__all__ = ["OF_NODES", "RESUMED", "as_yaml", "engine_parser", "flower_app_parser", "parsed_run", "write_flower_app"]

ONE_PROCESS = {"strategy": ("auto",), "devices": (1, "1", "auto"), "num_nodes": (1,)}
"""Arguments of the trainer, and their values if the engine starts one process."""

LONGEST_NAME = 40

RESUMED = "--ckpt_path"

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
    return engine_parser("flower-app", "SuperNodes")


def engine_parser(command: str, nodes: str) -> FederatedParser:
    """The arguments, beside those of `fit`, of a command that writes a run for an engine, which calls nodes so."""
    parser = command_parser(
        command, "[options] --output FOLDER [arguments of fit]",
        "Takes the configurations and arguments of fit, but the clients' samples "
        f"are on the nodes: --data.dataset.num_nodes says how many {nodes} there have to be.",
    )  # fmt: skip
    parser.add_argument("--output", type=str, required=True, help="folder to be written, new or empty.")
    return parser


def write_flower_app(arguments: list[str], parse: Callable[[list[str]], Any]) -> None:
    """Run the command; `parse` makes a command line that has parsed its arguments, without running it.

    Raises:
        ConfigError: if the arguments or the folder are refused, or make no run of Flower; nothing is written then.
    """
    folder, config, common = parsed_run(arguments, flower_app_parser(), FlowerFederation, "Flower", parse)
    if config["ckpt_path"] is not None:
        raise ConfigError(
            f"--ckpt_path is {config['ckpt_path']}; leave it out, and give it to Flower when a run is to go on: "
            "flwr run FOLDER SUPERLINK --run-config 'ckpt-path=\"last\"'"
        )
    with new_folder(folder, owner=True) as partial:
        partial.mkdir()
        (partial / "pyproject.toml").write_text(_app(config), encoding="utf-8")
        (partial / OF_NODES).write_text(as_yaml({"model": common}), encoding="utf-8")
    _tell(folder, config)


def parsed_run(
    arguments: list[str], parser: FederatedParser, dataset: type[RemoteClients], engine: str,
    parse: Callable[[list[str]], Any],
) -> tuple[Path, dict[str, Any], dict[str, Any]]:  # fmt: skip
    """The run that the arguments of such a command make.

    Args:
        arguments: of the command and of `fit`.
        parser: of the command.
        dataset: the data set whose clients are on the engine's nodes.
        engine: its name.
        parse: see `write_flower_app`.

    Returns:
        The folder to be written, the arguments of `fit`, and the settings of the nodes.

    Raises:
        ConfigError: if the arguments or the folder are refused.
    """
    own, of_fit = _divided(arguments, "-h", "--help", "--output")
    resumed, of_fit = _divided(of_fit, RESUMED)  # from a file on the server, which is not looked for here
    configs, others = _divided(of_fit, *CONFIG)  # which may name another data set: that of nodes follows
    folder = check_new_folder(parser.parse_args(own).output)
    path = f"{dataset.__module__}.{dataset.__qualname__}"
    command_line = parse(["fit", *configs, "--data.dataset", path, *others])
    config = json.loads(command_line.parser.dump(command_line.config, skip_unset=False, format="json"))["fit"]
    if config["data"]["dataset"]["class_path"] != path:
        raise ConfigError(
            f"--data.dataset is {config['data']['dataset']['class_path'].rpartition('.')[2]}, and the samples of this "
            "run are on the nodes; leave it out"
        )
    dataset(**config["data"]["dataset"]["init_args"])
    if config["ckpt_path"] is not None:
        raise ConfigError(f"a --config sets ckpt_path to {config['ckpt_path']}; leave it out there, and give {RESUMED}")
    config["ckpt_path"] = resumed[-1].removeprefix(f"{RESUMED}=") if resumed else None
    _check(config, engine)
    return folder, config, node_settings(command_line)[1]


def _divided(given: list[str], *options: str) -> tuple[list[str], list[str]]:
    """The arguments of these options with their values, and all others."""
    chosen: list[str] = []
    others: list[str] = []
    for before, one in zip(["", *given], given, strict=False):
        with_value = set(options) - {"-h", "--help"}
        found = before in with_value or one in options or one.partition("=")[0] in with_value
        (chosen if found else others).append(one)
    return chosen, others


def _check(config: dict[str, Any], engine: str) -> None:
    """Refuse settings that the server would refuse hours later, or that mean something else there."""
    data, trainer = config["data"], config["trainer"]
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
            raise ConfigError(f"--trainer.{name} is {trainer[name]}; {engine} starts one process, give {allowed[0]}")
    if config["init_from"] is not None and not Path(config["init_from"]).is_absolute():
        raise ConfigError(f"--init_from is {config['init_from']}; give the whole path of that file on the server")


def _app(config: dict[str, Any]) -> str:
    """The text of pyproject.toml."""
    from importlib.metadata import version

    name = re.sub(r"[^a-z0-9]+", "-", f"lit-fed-{config['name']}".lower())[:LONGEST_NAME].strip("-")
    return APP.format(
        name=name, version=version("lit-fed"), config=as_yaml(config).replace("\\", "\\\\").replace('"', '\\"')
    )


def as_yaml(config: dict[str, Any]) -> str:
    """A configuration as text."""
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
