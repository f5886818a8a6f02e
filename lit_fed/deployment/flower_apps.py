"""Flower's two apps.

The ServerApp is the command line's `fit`, whose clients are behind Flower's Grid. The ClientApp is a node, which Flower
runs in a new process for each message.
"""

import importlib
import json
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from lit_fed.deployment.federation import RemoteClients
from lit_fed.deployment.flower_transport import FlowerTransport, bytes_of, flower, reply_of
from lit_fed.deployment.node import Node
from lit_fed.deployment.transport import Transport
from lit_fed.deployment.wire import Packet, to_bytes
from lit_fed.errors import ConfigError, check_settings, logged
from lit_fed.system.plain_yaml import read_yaml

__all__ = ["FlowerFederation", "answer_of", "client_app", "run_fit", "server_app"]  # noqa: F822 - below

GRID: ContextVar[Any] = ContextVar("grid")
"""The Grid of the running app; a data set is built from plain settings, which cannot hold it."""


@dataclass(frozen=True)
class FlowerFederation(RemoteClients):
    """Clients on the SuperNodes of a Flower federation; their samples and states stay with them.

    The run begins when `num_nodes` SuperNodes are connected; more than these take part as well. `seconds` includes
    about 10 s for Flower itself.

    Args:
        pause: seconds between two looks for answers.
    """

    num_nodes: int = 2
    pause: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        names = ("seconds", "patience", "pause")
        check_settings(self, {one: (getattr(self, one) > 0, "a number > 0") for one in names}, "--data.dataset")

    def connect(self) -> Transport:
        """A transport over the Grid of the running app; `ConfigError` if no app is running."""
        grid = GRID.get(None)
        if grid is None:
            raise ConfigError(
                "--data.dataset FlowerFederation is for runs that Flower starts; write their app with `lit-fed "
                "flower-app`, or take Federation, which needs no Flower"
            )
        return FlowerTransport(grid, self.pause)


def run_fit(grid: Any, context: Any) -> None:
    """Run `lit-fed fit` in this process, with the configuration of the app.

    Args:
        grid: Flower's.
        context: Flower's, with the run's settings `config`, text in YAML, and `ckpt-path`, or "".

    Raises:
        RuntimeError: if it ends with a nonzero status; its message is in the log.
    """
    settings = context.run_config
    resumed = ["--ckpt_path", str(settings["ckpt-path"])] if settings.get("ckpt-path") else []
    config = json.dumps(read_yaml(str(settings["config"])))
    before, token = sys.argv, GRID.set(grid)
    sys.argv = ["lit-fed", "fit", "--config", config, *resumed]
    try:
        importlib.import_module("lit_fed.__main__").main()  # by its name: that room is above this one
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"lit-fed fit ended with status {end.code}") from end
    finally:
        sys.argv = before
        GRID.reset(token)


def answer_of(data: bytes, settings: Mapping[str, Any]) -> bytes:
    """The node's answer to a packet.

    Args:
        data: the packet.
        settings: settings of the SuperNode: `config`, the file of its operator, `data-root` and `state-root`; with
            `reveal-mixture` true the server may learn the clients' mixture weights.
    """
    try:
        for name in ("config", "data-root", "state-root"):
            if not settings.get(name):
                raise ConfigError(
                    f"the SuperNode was started without {name}; give it --node-config "
                    '\'config="FILE" data-root="FOLDER" state-root="FOLDER"\''
                )
        in_files = importlib.import_module("lit_fed.command_line.client").settings_in  # a room above this one
        own = in_files([str(settings["config"])], importlib.import_module("lit_fed.__main__").command_line)
        node = Node(
            str(settings["data-root"]), str(settings["state-root"]), *own,
            reveal_mixture=settings.get("reveal-mixture") is True,
        )  # fmt: skip
    except ConfigError as error:
        logged(str(error))
        return to_bytes(Packet({"refused": "folders"}))
    return node.handle(data)


def _handle(message: Any, context: Any) -> Any:
    return reply_of(answer_of(bytes_of(message) or b"", context.node_config), message)


def __getattr__(name: str) -> Any:
    """Make an app when Flower asks for it, so that this module imports without flwr."""
    if name == "server_app":
        app = flower("serverapp").ServerApp()
        app.main()(run_fit)
    elif name == "client_app":
        app = flower("clientapp").ClientApp()
        app.query()(_handle)
    else:
        raise AttributeError(name)
    return app
