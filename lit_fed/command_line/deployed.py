"""The commands of real federations: `certificates`, `client`, `federation local`, `flare-job` and `flower-app`."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
from argparse import SUPPRESS
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.context import ForkProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from lit_fed.command_line.client import client_parser, node_settings, run_client
from lit_fed.command_line.start_page import COMMANDS, PlainParser
from lit_fed.deployment.certificates import DAYS, make_certificates
from lit_fed.deployment.https_node import Link, run_node
from lit_fed.errors import ClientError, ConfigError, WriteError, logged, notice
from lit_fed.system.files import given_path

__all__ = [
    "DEPLOYED", "certificates_parser", "federation_parser", "main", "run_deployed", "run_local_federation",
    "write_certificates",
]  # fmt: skip

PATIENCE = 120.0
"""Seconds after which nodes end whose server was killed."""

SECONDS_TO_END = 5.0


def run_deployed(command: str, arguments: list[str], load: Callable[[], ModuleType]) -> None:
    """Run one of these commands; `load` imports `lit_fed.cli`, for those that take arguments of `fit`.

    Raises:
        ConfigError: naming a refused argument, or the reason why the command cannot go on.
    """
    if command == "certificates":
        write_certificates(arguments)
    elif command == "client":
        run_client(arguments, load)
    elif command == "federation":
        run_local_federation(arguments, load)
    elif command == "flare-job":
        from lit_fed.command_line.flare_job import write_flare_job  # loads jsonargparse

        write_flare_job(arguments, load().ArgumentsCLI)
    else:
        from lit_fed.command_line.flower_app import write_flower_app  # loads jsonargparse

        write_flower_app(arguments, load().ArgumentsCLI)


def main(load: Callable[[], ModuleType]) -> None:
    """Run the command of this process; expected failures end with a message and a non-zero status."""
    try:
        run_deployed(sys.argv[1], sys.argv[2:], load)
    except (ConfigError, ClientError, WriteError, KeyboardInterrupt) as error:
        if os.environ.get("LIT_FED_DEBUG") == "1":
            raise
        sys.stderr.write(f"lit_fed: {'interrupted' if isinstance(error, KeyboardInterrupt) else error}\n")
        sys.stderr.flush()
        sys.exit({KeyboardInterrupt: 130, WriteError: 1}.get(type(error), 2))


# ---------------------------------------------------------------------- certificates
def certificates_parser() -> PlainParser:
    """The arguments of the command."""
    parser = PlainParser("certificates", f"{COMMANDS['certificates']} Run again with other clients it adds these.")
    parser.add_argument(
        "--server", default="", metavar="HOST[,HOST…]",
        help="names or addresses by which nodes reach the server; leave it out to add clients",
    )  # fmt: skip
    parser.add_argument("--clients", default="", metavar="NAME[,NAME…]", help="names of the nodes")
    parser.add_argument("--output", default="tls", metavar="DIR", help="folder to be written (default: %(default)s)")
    parser.add_argument(
        "--days", type=int, default=DAYS, metavar="N", help="how long they are good (default: %(default)s)"
    )
    return parser


def write_certificates(arguments: list[str]) -> None:
    """Run the command.

    Raises:
        ConfigError: naming a refused argument.
    """
    given = certificates_parser().parse_args(arguments)
    output = given_path(given.output, "--output")
    clients = _words(given.clients)
    made = make_certificates(_words(given.server), clients, output, given.days)
    lines = [f"written: {', '.join(str(one) for one in made)}"]
    lines.append(f"the server needs server.pem, server.key and ca.pem: --data.dataset.tls {output}")
    if clients:
        lines.append(f"each node needs its own folder and no other: --tls {output / clients[0]}")
    lines.append(f"{output / 'ca.key'} must never leave this machine: with it anyone can make nodes and servers")
    sys.stdout.write("\n".join(lines) + "\n")


def _words(given: str) -> list[str]:
    """The words between commas."""
    return [one.strip() for one in given.split(",")] if given else []


# ---------------------------------------------------------------------- federation local
def federation_parser() -> PlainParser:
    """The arguments of the command."""
    parser = PlainParser(
        "federation",
        f"{COMMANDS['federation']} The clients of a ClientFolder are shared out among node processes, which get "
        "certificates and folders of their own for as long as it runs; all other arguments are those of `fit`.",
        "federation local [options] [ARGUMENTS OF FIT]",
    )
    parser.add_argument("where", choices=["local"], help=SUPPRESS)
    parser.add_argument(
        "--nodes", type=int, default=3, metavar="N", help="how many node processes (default: %(default)s)"
    )
    return parser


def run_local_federation(arguments: list[str], load: Callable[[], ModuleType]) -> None:
    """Run the command; it ends with the status of the fit.

    Raises:
        ConfigError: naming a refused argument.
    """
    given, of_fit = federation_parser().parse_known_args(arguments)
    if given.nodes < 1:
        raise ConfigError(f"--nodes is {given.nodes}; give a whole number >= 1")
    command_line = load()
    parsed = command_line.ArgumentsCLI(["fit", *of_fit])
    config = _arguments(parsed)
    root = _folder_of(config["data"]["dataset"])
    names = [f"node-{number}" for number in range(1, given.nodes + 1)]
    with tempfile.TemporaryDirectory(prefix="lit-fed-") as place:
        folder, address = Path(place), _free_address()
        _share_out(root, names, folder)
        make_certificates(["127.0.0.1"], names, folder / "tls")
        options = {"listen": address, "tls": str(folder / "tls"), "num_nodes": len(names), "nodes": names}
        config["data"]["dataset"] = {"class_path": "lit_fed.deployment.federation.Federation", "init_args": options}
        (folder / "fit.yaml").write_text(json.dumps(config))  # JSON is YAML
        with _node_processes(names, folder, address, node_settings(parsed)):
            command_line.main(["fit", "--config", str(folder / "fit.yaml")])
    notice("the states of these nodes are deleted with this command; nodes started by `lit-fed client` keep theirs")


def _arguments(parsed: Any) -> dict[str, Any]:
    """The parsed arguments of `fit`, as plain values."""
    text = parsed._parser("fit").dump(parsed.config["fit"], skip_unset=False, format="json")
    config: dict[str, Any] = json.loads(text)
    if config["ckpt_path"] is not None:
        raise ConfigError(
            "--ckpt_path: the states of the nodes of a `federation local` are deleted at its end; start `lit-fed "
            "client` and `fit` by themselves for a run that can be resumed"
        )
    return config


def _folder_of(dataset: dict[str, Any]) -> Path:
    """The folder of a ClientFolder whose clients can be shared out."""
    name, options = dataset["class_path"].rpartition(".")[2], dataset.get("init_args") or {}
    if name != "ClientFolder":
        raise ConfigError(f"--data.dataset is {name}; give ClientFolder, whose files nodes can have for themselves")
    for option, value in options.items():
        if option != "root" and value not in (None, "auto"):
            raise ConfigError(f"--data.dataset.{option} is {value}; leave it out: nodes describe their samples")
    root = given_path(options.get("root") or "", "--data.dataset.root").absolute()
    if not any((root / "seen").glob("*.npz")):
        raise ConfigError(f"--data.dataset.root {root}: no folder `seen` with a .npz file for each client; correct it")
    return root


def _share_out(root: Path, names: Sequence[str], folder: Path) -> None:
    """Give each node its clients, in turn, by links."""
    for kind in ("seen", "unseen"):
        files = sorted((root / kind).glob("*.npz"))
        if kind == "seen" and len(files) < len(names):
            raise ConfigError(
                f"--nodes is {len(names)}, and {root / kind} has {len(files)} clients; give at most so many"
            )
        for position, file in enumerate(files):
            place = folder / "data" / names[position % len(names)] / kind
            place.mkdir(parents=True, exist_ok=True)
            (place / file.name).symlink_to(file)


def _free_address() -> str:
    """A free address of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


@contextmanager
def _node_processes(names: Sequence[str], folder: Path, address: str, settings: tuple[Any, Any]) -> Iterator[None]:
    """Run node processes, and end them on exit."""
    from lit_fed.deployment.node import Node

    nodes = [  # of one operator, who may know all
        Node(folder / "data" / name, folder / "states" / name, *settings, reveal_mixture=True) for name in names
    ]
    context, threads = multiprocessing.get_context("fork"), max(1, (os.cpu_count() or 1) // len(names))
    started: list[ForkProcess] = []
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        for name, node in zip(names, nodes, strict=True):
            link = Link(address, folder / "tls" / name, None, PATIENCE, _say_nothing)
            started.append(context.Process(target=_node, args=(name, node, link, threads), daemon=True))
            started[-1].start()
        yield
    finally:
        for one in started:
            one.terminate()
        for one in started:
            one.join(SECONDS_TO_END)
            one.kill()
        signal.signal(signal.SIGTERM, before)


def _say_nothing(line: str) -> None:
    """Print nothing: the server reports its nodes."""


def _terminated(signum: int, frame: Any) -> None:
    raise SystemExit(128 + signum)


def _node(name: str, node: Any, link: Link, threads: int) -> None:
    """A node process."""
    import torch

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the fit, which ends its nodes
    torch.set_num_threads(threads)
    try:
        run_node(node.handle, link)
    except ConfigError as error:
        logged(f"{name}: {error}")
        raise SystemExit(2) from None


def _flare_job_parser() -> Any:
    from lit_fed.command_line.flare_job import flare_job_parser  # loads jsonargparse

    return flare_job_parser()


def _flower_app_parser() -> Any:
    from lit_fed.command_line.flower_app import flower_app_parser  # loads jsonargparse

    return flower_app_parser()


DEPLOYED: dict[str, Callable[[], Any]] = {
    "certificates": certificates_parser, "client": client_parser, "federation": federation_parser,
    "flare-job": _flare_job_parser, "flower-app": _flower_app_parser,
}  # fmt: skip
"""Commands, and the functions that make their parsers."""
