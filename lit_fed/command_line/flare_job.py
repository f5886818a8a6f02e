"""`lit-fed flare-job`: a training as a job of NVFlare, which holds the whole configuration and no code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NoReturn

from lightning.pytorch import Trainer

from lit_fed.command_line.classes import CLASSES
from lit_fed.command_line.flower_app import OF_NODES, RESUMED, as_yaml, engine_parser, parsed_run
from lit_fed.command_line.parser import FederatedParser
from lit_fed.core.local_solver import LocalSolver, is_rule_of_torch
from lit_fed.data.module import FederatedDataModule
from lit_fed.deployment.flare_apps import OF_RUN, TASK, FitController, RelayExecutor
from lit_fed.deployment.flare_transport import FlareFederation
from lit_fed.errors import ConfigError
from lit_fed.system.whitelist import Whitelist
from lit_fed.training.module import FederatedModule
from lit_fed.training.output import new_folder
from lit_fed.training.round_logger import KEYWORDS

__all__ = ["check_job", "flare_job_parser", "write_flare_job"]

SECONDS_BETWEEN_TASKS = 0.05
"""After which a site asks for its next task; NVFlare's own pause is 2 s."""

COMMON = {"format_version": 2, "components": [], "task_data_filters": [], "task_result_filters": []}

SECTIONS = {"model": FederatedModule, "data": FederatedDataModule, "trainer": Trainer}

PLAIN = {"seed_everything", "name", "ckpt_path", "resume_with_changes", "init_from", "report", "seeds"}
"""Arguments of fit beside the sections."""


def flare_job_parser() -> FederatedParser:
    """The arguments of the command beside those of `fit`."""
    return engine_parser("flare-job", "sites")


def write_flare_job(arguments: list[str], parse: Callable[[list[str]], Any]) -> None:
    """Run the command; `parse` makes a command line that has parsed its arguments, without running it.

    Raises:
        ConfigError: if the arguments or the folder are refused, or make no run of NVFlare; nothing is written then.
    """
    folder, config, common = parsed_run(arguments, flare_job_parser(), FlareFederation, "NVFlare", parse)
    resumed = config["ckpt_path"]
    if resumed is not None and resumed not in KEYWORDS and not Path(resumed).is_absolute():
        raise ConfigError(f"{RESUMED} is {resumed}; give last, or the whole path of a file on the server")
    root = Path(config["trainer"]["default_root_dir"])
    if not root.is_absolute():
        raise ConfigError(
            f"--trainer.default_root_dir is {root}; give the whole path of a folder on the server, since NVFlare "
            "deletes the folder of a job at its end"
        )
    num_nodes = config["data"]["dataset"]["init_args"]["num_nodes"]
    meta = {"name": config["name"], "min_clients": num_nodes, "deploy_map": {"app": ["@ALL"]}, "resource_spec": {}}
    workflow = {"id": "fit", "path": _path(FitController), "args": {}}
    server = COMMON | {"server": {"task_request_interval": SECONDS_BETWEEN_TASKS}, "workflows": [workflow]}
    client = COMMON | {"executors": [{"tasks": [TASK], "executor": {"path": _path(RelayExecutor), "args": {}}}]}
    with new_folder(folder, owner=True) as partial:
        place = partial / "app" / "config"
        place.mkdir(parents=True)
        (partial / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")
        (place / "config_fed_server.json").write_text(json.dumps(server, indent=1), encoding="utf-8")
        (place / "config_fed_client.json").write_text(json.dumps(client, indent=1), encoding="utf-8")
        (place / OF_RUN).write_text(as_yaml(config), encoding="utf-8")
        (place / OF_NODES).write_text(as_yaml({"model": common}), encoding="utf-8")
    sys.stdout.write(
        f"job: {folder}\n"
        f"sites need a copy of {folder / 'app' / 'config' / OF_NODES}: lit-fed client --config FILE\n"
        f"next: nvflare job submit -j {folder}; results: {root / config['name']} on the server\n"
    )


def _path(one: type) -> str:
    return f"{one.__module__}.{one.__qualname__}"


# ---------------------------------------------------------------------- at the server
class JobWhitelist(Whitelist):
    """Checks the configuration in a job."""

    def cannot_import(self, path: str, place: str, error: Exception) -> NoReturn:
        raise ConfigError(f"--{place} names {path}, which cannot be imported ({error}); install it on the server")

    def distrust(self, path: str, place: str) -> NoReturn:
        raise ConfigError(
            f"--{place} names {path}, which is no class of lit_fed, torch or torchvision that a job may name; the "
            "operator of the server allows it by adding it to class_allow_list in local/resources.json"
        )

    def refuse_reach(self, path: str, place: str, what: str) -> NoReturn:
        raise ConfigError(
            f"--{place} names {path}, which {what}; the operator of the server allows it by adding it to "
            "class_allow_list in local/resources.json"
        )

    def refuse(self, place: str, what: str) -> NoReturn:
        raise ConfigError(f"--{place} {what}; write the job by `lit-fed flare-job`")


def check_job(config: Any, allowed: Collection[str]) -> None:
    """Refuse the configuration in a job whose parsing could run other code than lit_fed's.

    Args:
        config: the configuration of `fit`.
        allowed: paths of classes that it may name beside those that a checkpoint may.

    Raises:
        ConfigError: naming the argument, the value and the fix.
    """
    own = f"{FlareFederation.__module__}.{FlareFederation.__qualname__}"
    named = [*allowed, own]  # the sites themselves
    known = JobWhitelist(Path(OF_RUN), (LocalSolver, *CLASSES.values()), is_rule_of_torch, named, ())
    if not isinstance(config, dict) or config.keys() - PLAIN - SECTIONS.keys():
        known.refuse(OF_RUN, "has other sections than those of a run")
    for name in PLAIN & config.keys():
        if not isinstance(config[name], str | int | None):
            known.refuse(name, "is no plain value")
    for name, of in SECTIONS.items():
        known.check_plain(config.get(name, {}), name)
        known.check_options(config.get(name, {}), of, name)
