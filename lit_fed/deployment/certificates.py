"""Certificates of a federation: a CA of its own, a pair for the server, a pair for each node.

    OUTPUT/ca.key                                    signs; must never leave the operator's machine
    OUTPUT/ca.pem, server.pem, server.key            what the server needs
    OUTPUT/<client>/ca.pem, node.pem, node.key       what a node needs, under the client's name

A certificate of a node says its name (the common name), and that it is a client's; the server's says its hosts, and
that it is a server's. So neither can be taken for the other. Private keys are for the owner alone (mode 600).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path

from lit_fed.deployment.transport import check_node_name
from lit_fed.errors import ConfigError
from lit_fed.system.files import write_atomically
from lit_fed.system.packages import optional_package

__all__ = ["DAYS", "make_certificates"]

DAYS = 825
"""The longest that common systems accept."""

MOST_DAYS = 10 * 365
HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,62})?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,62})?)*")
OWN_NAMES = {"ca.key", "ca.pem", "server.key", "server.pem"}


def make_certificates(server: Sequence[str], clients: Sequence[str], output: Path, days: int = DAYS) -> list[Path]:
    """Write certificates and keys; those that there are, and the CA, stay as they are.

    Args:
        server: hosts by which nodes reach the server, names or addresses; none: there is a server's pair already.
        clients: names of nodes.
        output: the folder, which is made if need be.
        days: how long the certificates are good.

    Returns:
        The folders and certificates that were written.

    Raises:
        ConfigError: if a name will not do or is taken, or days are no positive number; nothing was written then.
    """
    _check_names(server, clients, days)
    _check_folder(server, clients, output)
    optional_package("cryptography", "cryptography>=42", "federation", "certificates")
    from lit_fed.deployment.authority import Authority

    try:
        output.mkdir(parents=True, exist_ok=True)
        authority = Authority(output, days)
        if server:
            authority.issue(output / "server", "server", server)
        for name in clients:
            (output / name).mkdir(mode=0o700)
            write_atomically(output / name / "ca.pem", (output / "ca.pem").read_bytes())
            authority.issue(output / name / "node", name)
    except OSError as error:
        raise ConfigError(f"--output {output}: {error.strerror}; give a folder that can be written") from error
    return [*([output / "server.pem"] if server else []), *(output / name for name in clients)]


def _check_names(server: Sequence[str], clients: Sequence[str], days: int) -> None:
    if not 0 < days <= MOST_DAYS:
        raise ConfigError(f"--days is {days}; give a whole number from 1 to {MOST_DAYS}")
    if not server and not clients:
        raise ConfigError("neither --server nor --clients is given; give what certificates are to be made for")
    for host in server:
        if not is_address(host) and not HOST.fullmatch(host):
            raise ConfigError(
                f"--server {host[:80]!r}: no host; give names or addresses by which nodes reach the server"
            )
    for name in clients:
        check_node_name(name, "--clients")
        if name.lower() in OWN_NAMES or [one.lower() for one in clients].count(name.lower()) > 1:
            raise ConfigError(f"--clients {name!r}: the name is taken; give another one")


def _check_folder(server: Sequence[str], clients: Sequence[str], output: Path) -> None:
    """Refuse to write over anything, and to add to half a CA."""
    for name in clients:
        if (output / name).exists():
            raise ConfigError(f"{output / name} is there already; leave {name} out, or move it away for a new one")
    authority = [one for one in ("ca.pem", "ca.key") if (output / one).exists()]
    if len(authority) == 1:
        raise ConfigError(
            f"{output}: of its CA there is {authority[0]} alone; bring the other part, or give a new --output"
        )
    made = [one for one in ("server.pem", "server.key") if (output / one).exists()]
    if server and made:
        raise ConfigError(f"{output / made[0]} is there already; leave --server out to add clients, or move it away")
    if not server and not made:
        raise ConfigError(f"--server is not given, and {output} has no server.pem; give the server's hosts")


def is_address(host: str) -> bool:
    """Whether a host is an IP address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
