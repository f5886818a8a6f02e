"""Flower's ClientApp: Flower runs it on a client's machine, in a new process for each message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lit_fed.deployment.flower_transport import bytes_of, flower, reply_of
from lit_fed.deployment.node import Node
from lit_fed.deployment.wire import Packet, to_bytes
from lit_fed.errors import ConfigError, logged

__all__ = ["answer_of", "client_app"]  # noqa: F822 - below


def answer_of(data: bytes, settings: Mapping[str, Any]) -> bytes:
    """The node's answer to a packet.

    Args:
        data: the packet.
        settings: of the SuperNode: `data-root`, `state-root`, and `trust`, names of modules separated by commas.
    """
    try:
        for name in ("data-root", "state-root"):
            if not settings.get(name):
                raise ConfigError(
                    f"the SuperNode was started without {name}; give it --node-config "
                    '\'data-root="FOLDER" state-root="FOLDER"\''
                )
        trusted = [one.strip() for one in str(settings.get("trust", "")).split(",") if one.strip()]
        node = Node(str(settings["data-root"]), str(settings["state-root"]), trusted)
    except ConfigError as error:
        logged(str(error))
        return to_bytes(Packet({"refused": "folders"}))
    return node.handle(data)


def _handle(message: Any, context: Any) -> Any:
    return reply_of(answer_of(bytes_of(message) or b"", context.node_config), message)


def __getattr__(name: str) -> Any:
    """Make the app when Flower asks for it, so that this module imports without flwr."""
    if name != "client_app":
        raise AttributeError(name)
    app = flower("clientapp").ClientApp()
    app.query()(_handle)
    return app
