"""The commands of federations of real machines; they start without Lightning."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import ModuleType

from lit_fed.command_line.certificates import certificates_parser, write_certificates
from lit_fed.command_line.client import client_parser, run_client
from lit_fed.command_line.local_federation import federation_parser, run_local_federation
from lit_fed.errors import ClientError, ConfigError, WriteError

__all__ = ["DEPLOYED", "main", "run_deployed"]

DEPLOYED = {"certificates": certificates_parser, "client": client_parser, "federation": federation_parser}
"""Commands, and what makes their parsers."""


def run_deployed(command: str, arguments: list[str], load: Callable[[], ModuleType]) -> None:
    """Run one of these commands.

    Args:
        command: its name.
        arguments: what stands behind it on the command line.
        load: gives `lit_fed.cli`, which stands above this room, where a command runs a fit.

    Raises:
        ConfigError: naming an argument that will not do, or saying why the command cannot go on.
    """
    if command == "federation":
        run_local_federation(arguments, load)
    else:
        {"certificates": write_certificates, "client": run_client}[command](arguments)


def main(load: Callable[[], ModuleType]) -> None:
    """Run the command of this process; expected failures end with a message and a non-zero status.

    Args:
        load: see `run_deployed`.
    """
    try:
        run_deployed(sys.argv[1], sys.argv[2:], load)
    except (ConfigError, ClientError, WriteError, KeyboardInterrupt) as error:
        if os.environ.get("LIT_FED_DEBUG") == "1":
            raise
        sys.stderr.write(f"lit_fed: {'interrupted' if isinstance(error, KeyboardInterrupt) else error}\n")
        sys.stderr.flush()
        raise SystemExit({KeyboardInterrupt: 130, WriteError: 1}.get(type(error), 2)) from None
