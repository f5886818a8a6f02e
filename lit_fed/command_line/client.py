"""`python -m lit_fed client`: a node, which works on the data of this machine for a federation's server."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from lit_fed.command_line.plain_parser import PlainParser
from lit_fed.command_line.start_page import COMMANDS
from lit_fed.core.errors import ConfigError, notice
from lit_fed.core.machine.folder_lock import FolderLock
from lit_fed.core.machine.given_paths import given_path
from lit_fed.deployment.https_link import Link
from lit_fed.deployment.https_node import run_node

__all__ = ["client_parser", "end_at_once", "run_client"]

PATIENCE = 3600.0


def client_parser() -> PlainParser:
    """The arguments of the command."""
    parser = PlainParser(
        "client",
        f"{COMMANDS['client']} Samples and what clients keep stay on this machine; messages and sums go to the server. "
        "It runs until it is stopped, and may be killed and started again at any time.",
    )
    parser.add_argument("--server", required=True, metavar="HOST:PORT", help="where the server listens")
    parser.add_argument(
        "--data.root", dest="root", required=True, metavar="DIR",
        help="folder with seen/*.npz, a file for each client, and unseen/*.npz of clients that never train",
    )  # fmt: skip
    parser.add_argument(
        "--states", required=True, metavar="DIR", help="folder of this node alone, for what its clients keep"
    )
    parser.add_argument(
        "--tls", metavar="DIR", help="folder with node.pem, node.key and ca.pem, which `lit-fed certificates` writes"
    )
    parser.add_argument("--name", metavar="NAME", help="of this node, where it has no certificate: on one machine")
    parser.add_argument(
        "--trust", action="append", default=[], metavar="MODULE",
        help="module whose classes the server may ask for, besides those of lit_fed; may be given often",
    )  # fmt: skip
    parser.add_argument(
        "--patience", type=float, default=PATIENCE, metavar="SECONDS",
        help="how long to go on without a server (default: %(default)g)",
    )  # fmt: skip
    return parser


def run_client(arguments: list[str]) -> None:
    """Run the command.

    Args:
        arguments: what stands behind `client` on the command line.

    Raises:
        ConfigError: naming an argument that will not do, or saying why the node cannot go on.
    """
    given = client_parser().parse_args(arguments)
    end_at_once()
    if not given.patience > 0:
        raise ConfigError(f"--patience is {given.patience:g}; give a number of seconds > 0")
    tls = None if given.tls is None else given_path(given.tls, "--tls")
    root, states = given_path(given.root, "--data.root"), given_path(given.states, "--states")
    if not root.is_dir():
        raise ConfigError(f"--data.root {given.root}: no such folder; give that of the clients' files")
    link = Link(given.server, tls, given.name, given.patience, notice)
    with FolderLock(states, f"--states {given.states}", "give each node a folder of its own"):
        from lit_fed.deployment.node import Node  # loads PyTorch

        node = Node(root, states, given.trust)
        notice(f"{len(list(root.glob('*seen/*.npz')))} clients in {given.root} are ready; asking {given.server}")
        run_node(node.handle, link)


def end_at_once() -> None:
    """Let Ctrl-C and SIGTERM end this process with a word: whatever it is at, it may be killed."""
    for one in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(one) is not signal.SIG_IGN:  # as that of a shell's background job is
            signal.signal(one, _end)


def _end(signum: int, frame: FrameType | None) -> NoReturn:
    with contextlib.suppress(Exception):
        notice("interrupted" if signum == signal.SIGINT else "terminated")
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(128 + signum)
