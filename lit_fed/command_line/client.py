"""`python -m lit_fed client`: a node, which trains on the data of this machine for a federation's server.

`client measure`, `client predict` and `client export` serve its clients after the training, without the server.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from lit_fed.command_line.start_page import COMMANDS, PlainParser
from lit_fed.deployment.https_node import AwayError, Link, run_node
from lit_fed.errors import ClientError, ConfigError, logged, notice, stamped
from lit_fed.system.files import given_path, owner_only
from lit_fed.system.folder_lock import FolderLock
from lit_fed.system.packages import DataFrame, pd

if TYPE_CHECKING:
    from lit_fed.deployment.kept import KeptTraining
    from lit_fed.settings import ModelSettings

__all__ = ["client_parser", "end_at_once", "node_settings", "run_client", "serving_parser", "settings_in"]

PATIENCE = 3600.0

SERVING = {
    "measure": "Measure this machine's clients after a training.",
    "predict": "Write the trained models' predictions for each sample of this machine's clients.",
    "verdict": "Say which of this machine's clients gain by joint trainings over training alone.",
    "export": "Write the model of one of this machine's clients as a file that loads without lit_fed.",
}
"""Subcommands of `client`, which need no server."""


def client_parser() -> PlainParser:
    """The arguments of the command."""
    parser = PlainParser(
        "client",
        f"{COMMANDS['client']} Samples and states of clients stay on this machine; messages and sums go to the server. "
        "It may be killed and started again at any time. After the training `client measure`, `client predict` and "
        "`client export` serve this machine's clients, each with its own --help.",
    )
    parser.add_argument("--server", required=True, metavar="HOST:PORT", help="where the server listens")
    _add_files(parser)
    parser.add_argument(
        "--tls", metavar="DIR", help="folder with node.pem, node.key and ca.pem, which `lit-fed certificates` writes"
    )
    parser.add_argument("--name", metavar="NAME", help="of this node, where it has no certificate: on one machine")
    parser.add_argument(
        "--patience", type=float, default=PATIENCE, metavar="SECONDS",
        help="how long to go on without a server (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument(
        "--stay", action="store_true", help="wait for the server's next training when one is over (default: end)"
    )
    parser.add_argument(
        "--reveal-mixture", action="store_true",
        help="let the server learn the clients' mixture weights, which ResponsibilityFedEM and --model.algorithm.start "
        "Clustering send (default: refuse)",
    )  # fmt: skip
    return parser


def _add_files(parser: PlainParser) -> None:
    parser.add_argument(
        "--config", action="append", required=True, metavar="FILE",
        help="configuration of the run; the server's settings have to be these; may be given often, as of fit",
    )  # fmt: skip
    _add_folders(parser)
    parser.gone["--trust"] = "a node imports the classes that its own --config names, and no others; leave --trust out"


def _add_folders(parser: PlainParser) -> None:
    parser.add_argument(
        "--data.root", dest="root", required=True, metavar="DIR",
        help="folder with seen/*.npz, a file for each client, and unseen/*.npz of clients that never train; or with "
        "texts.json and texts of these clients",
    )  # fmt: skip
    parser.add_argument(
        "--states", required=True, metavar="DIR",
        help="folder for the states of this node's clients, used by no other node",
    )  # fmt: skip


def serving_parser(command: str) -> PlainParser:
    """The arguments of a command that serves clients after the training."""
    parser = PlainParser(
        f"client {command}",
        f"{SERVING[command]} Each client is served by its state and the shared state that this node kept when the "
        "training ended. No server is needed.",
    )
    if command == "verdict":
        _add_folders(parser)
        for option, said in (("--training", "a training; may be given often"), ("--alone", "the training of Local")):
            parser.add_argument(
                option, nargs=2, action="append", required=True, metavar=("RUN", "FILE"),
                help=f"{said}: its subfolder of --states, and its configuration",
            )  # fmt: skip
        for option, said in (("--output", "table"), ("--predictions", "table of the test samples as they are served")):
            parser.add_argument(option, metavar="FILE", help=f"{said} to be written, .csv or .parquet")
        return parser
    _add_files(parser)
    many = "; may be given often (default: all)"
    parser.add_argument(
        "--client", action="append", default=[], metavar="NAME", required=command == "export",
        help=f"name of a client, that of its file{'' if command == 'export' else many}",
    )  # fmt: skip
    if command != "export":
        parser.add_argument(
            "--split", choices=["train", "val", "test"], default="test", help="which samples (default: %(default)s)"
        )
    else:
        parser.add_argument(
            "--format", choices=["pt", "onnx", "peft"], default="pt",
            help="torch.export, ONNX, or a folder of adapters (default: %(default)s)",
        )  # fmt: skip
    file = ".pt2 or .onnx, or for peft a new folder" if command == "export" else "table to be written, .csv or .parquet"
    parser.add_argument("--output", metavar="FILE", required=command != "measure", help=file)
    parser.add_argument(
        "--run", default="", metavar="RUN", help="subfolder of --states (default: the training that ended last)"
    )
    return parser


def run_client(arguments: list[str], load: Callable[[], ModuleType]) -> None:
    """Run the command; `load` imports `lit_fed.cli`.

    Raises:
        ConfigError: naming a refused argument, or the reason why the node cannot go on.
    """
    if arguments and arguments[0] in SERVING:
        serve = _say_verdict if arguments[0] == "verdict" else partial(_serve, arguments[0])
        serve(serving_parser(arguments[0]).parse_args(arguments[1:]), load)
        return
    if arguments and not arguments[0].startswith("-"):
        raise ConfigError(f"client {arguments[0]}: no such command; give one of {', '.join(SERVING)}, or options alone")
    given = client_parser().parse_args(arguments)
    end_at_once()
    if not given.patience > 0:
        raise ConfigError(f"--patience is {given.patience:g}; give a number of seconds > 0")
    tls = None if given.tls is None else given_path(given.tls, "--tls")
    root, states = _folders(given)
    link = Link(given.server, tls, given.name, given.patience, logged)
    with FolderLock(states, f"--states {given.states}", "give each node its own folder"):
        from lit_fed.deployment.node import Node  # loads PyTorch

        node = Node(root, states, *settings_in(given.config, load), reveal_mixture=given.reveal_mixture)
        logged(f"{len(list(root.glob('*seen/*.npz')))} clients in {given.root} are ready; asking {given.server}")
        while True:
            try:
                run_node(node.handle, link)
            except ConfigError as error:
                if given.stay or not (node.over and isinstance(error, AwayError)):
                    raise ConfigError(stamped(str(error))) from error
            logged(f"the training is over; `lit-fed client measure --states {given.states}` serves its clients")
            if not given.stay:
                return


def settings_in(configs: Sequence[str], load: Callable[[], ModuleType]) -> tuple[ModelSettings, dict[str, Any]]:
    """The settings of a node from the files of its operator, see `node_settings`.

    Args:
        configs: the files, later ones over earlier ones.
        load: imports `lit_fed.cli`.

    Raises:
        ConfigError: naming a file that cannot be read, or a setting that is refused.
    """
    for one in configs:
        if not given_path(one, "--config").is_file():
            raise ConfigError(f"--config {one}: no such file; give the configuration of the server's run")
    return node_settings(load().ArgumentsCLI(["fit", *(part for one in configs for part in ("--config", one))]))


def node_settings(parsed: Any) -> tuple[ModelSettings, dict[str, Any]]:
    """The settings of a node from parsed arguments of `fit`: as objects, and as a server sends them.

    A seed of noise is left out, since each node draws its own noise.

    Raises:
        ConfigError: naming a setting that no node takes.
    """
    from jsonargparse import Namespace

    from lit_fed.command_line.parser import written
    from lit_fed.deployment.settings import common_settings

    parser, config = parsed._parser("fit"), parsed.config["fit"]
    common = common_settings(json.loads(written(parser, config, format="json"))["model"])
    settings = parser.instantiate(Namespace(model=config.model)).model.settings  # type: ignore[no-untyped-call]
    settings = replace(settings, features=tuple(one.at_node() for one in settings.features))
    settings.check_combination(deployed=True)
    return settings, common


def _folders(given: Namespace) -> tuple[Path, Path]:
    root, states = given_path(given.root, "--data.root"), given_path(given.states, "--states")
    if not root.is_dir():
        raise ConfigError(f"--data.root {given.root}: no such folder; give that of the clients' files")
    return root, states


def _serve(command: str, given: Namespace, load: Callable[[], ModuleType]) -> None:
    """Serve clients after the training; an output that cannot be written is refused before anything is computed."""
    from lit_fed.deployment.kept import KeptTraining  # loads PyTorch
    from lit_fed.training.export import check_program_file
    from lit_fed.training.output import check_table_file

    if command == "export":
        path: Path | None = check_program_file(given.output, given.format)
        if len(given.client) != 1:
            raise ConfigError(f"--client is given {len(given.client)} times; a file holds the model of one client")
    else:
        path = None if given.output is None else check_table_file(given.output)
    folders = _folders(given)
    kept = KeptTraining(*folders, *settings_in(given.config, load), given.run)
    clients = kept.find(given.client)
    if kept.left_out and not given.client:
        notice(f"{', '.join(kept.left_out)} took no part in the training, and is left out")
    try:
        with owner_only(True):  # models, mixture weights and predictions of the node's own clients
            _write(command, given, kept, clients, path)
    except ClientError as error:
        error.client_name = kept.names.get(error.client_id, "")
        raise


def _say_verdict(given: Namespace, load: Callable[[], ModuleType]) -> None:
    """Print the gains of this machine's clients, and write them and predictions only to files that are named."""
    from lit_fed.deployment.kept import KeptTraining  # loads PyTorch
    from lit_fed.deployment.kept_verdict import kept_verdict
    from lit_fed.metrics.verdict import in_words
    from lit_fed.training.output import check_table_file, prediction_table, write_table

    named = {"--output": given.output, "--predictions": given.predictions}
    paths = [None if file is None else check_table_file(file, option) for option, file in named.items()]
    if None not in paths and len({one and one.resolve() for one in paths}) == 1:
        raise ConfigError(f"--output and --predictions are both {given.output}; give each table a file of its own")
    folders = _folders(given)
    trainings = {
        run: KeptTraining(*folders, *settings_in([config], load), run)
        for run, config in given.training + given.alone[-1:]
    }
    run, last = list(trainings.items())[-1]
    if (name := type(last.settings.algorithm).__name__) != "Local":
        raise ConfigError(f"--alone {run} is a training of {name}, which learns from other clients; give one of Local")
    with owner_only(True):
        table, served = kept_verdict(trainings)
        sys.stdout.write(f"{table.to_string(index=False)}\n{in_words(table)}\n")
        tables = table, pd.concat([prediction_table(one, last.names, last.facts) for one in served], ignore_index=True)
        for path, table in zip(paths, tables, strict=True):
            if path is not None:
                write_table(table, path)
                sys.stdout.write(f"table: {path}\n")


def _write(command: str, given: Namespace, kept: KeptTraining, clients: list[int], path: Path | None) -> None:
    """Serve clients, and print and write the results."""
    from lit_fed.core.conformal import described
    from lit_fed.training.output import write_predictions, write_table
    from lit_fed.training.peft_folder import save_client

    if command == "export":
        assert path is not None
        state, x, thresholds = kept.serve(clients[0])
        sets = described(kept.facts.target, kept.settings.conformal, thresholds)
        save_client(path, given.format, kept.training.rounds, kept.facts, state, x, given.client[0], sets)
    else:
        table = _table(command, kept, clients, given.split)
        if command == "measure":
            sys.stdout.write(table.to_string(index=False) + "\n")
        if path is not None:
            (write_predictions if command == "predict" else write_table)(table, path)
    if path is not None:
        sys.stdout.write(f"{'model' if command == 'export' else 'table'}: {path}\n")


def _table(command: str, kept: KeptTraining, clients: list[int], split: str) -> DataFrame:
    """Measurements, a row for each client, or predictions, a row for each sample."""
    from lit_fed.training.output import prediction_table
    from lit_fed.training.thresholds import said_of

    names = kept.names
    if command == "predict":
        blocks = list(kept.predict(clients, split))
        sys.stdout.write(said_of(kept.settings.conformal, blocks))
        tables = [prediction_table(block, names, kept.facts) for block in blocks]
        return pd.concat(tables, ignore_index=True)
    scores = kept.measure(clients, split)
    seen = ["seen" if one < kept.facts.num_clients else "unseen" for one in clients]
    columns = {"client": [names[one] for one in clients], "population": seen}
    return pd.DataFrame(columns | scores.columns(kept.facts.target.metric) | scores.weights())


def end_at_once() -> None:
    """Let Ctrl-C and SIGTERM end this process at once, with a message: a node may be killed at any time."""
    for one in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(one) is not signal.SIG_IGN:  # as that of a shell's background job is
            signal.signal(one, _end)


def _end(signum: int, frame: FrameType | None) -> NoReturn:
    said = stamped("interrupted" if signum == signal.SIGINT else "terminated")
    with contextlib.suppress(Exception):  # a signal in the middle of a write may not write through the same object
        sys.stdout.flush()
        sys.stderr.flush()
    with contextlib.suppress(OSError):
        os.write(2, f"lit_fed: {said}\n".encode())
    os._exit(128 + signum)
