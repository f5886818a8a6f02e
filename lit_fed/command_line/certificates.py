"""`python -m lit_fed certificates`: a CA of one's own, and a pair for the server and for each node."""

from __future__ import annotations

import sys

from lit_fed.command_line.plain_parser import PlainParser
from lit_fed.command_line.start_page import COMMANDS
from lit_fed.deployment.certificates import DAYS, make_certificates
from lit_fed.system.given_paths import given_path

__all__ = ["certificates_parser", "write_certificates"]


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

    Args:
        arguments: what stands behind `certificates` on the command line.

    Raises:
        ConfigError: naming an argument that will not do.
    """
    given = certificates_parser().parse_args(arguments)
    output = given_path(given.output, "--output")
    clients = _words(given.clients)
    made = make_certificates(_words(given.server), clients, output, given.days)
    lines = [f"written: {', '.join(str(one) for one in made)}"]
    lines.append(f"the server needs server.pem, server.key and ca.pem: --data.dataset.tls {output}")
    if clients:
        lines.append(f"each node needs its own folder and no other: --tls {output / clients[0]}")
    lines.append(f"{output / 'ca.key'} must never leave this machine: whoever has it can make nodes and servers")
    sys.stdout.write("\n".join(lines) + "\n")


def _words(given: str) -> list[str]:
    """The words between commas."""
    return [one.strip() for one in given.split(",")] if given else []
