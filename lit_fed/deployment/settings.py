"""The section `model` of a configuration on both sides: each has its own file, and a node refuses what differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lit_fed.core.local_solver import BY_CLIENT
from lit_fed.deployment.transport import foreign_text
from lit_fed.errors import ConfigError
from lit_fed.system.names import few
from lit_fed.wrappers.feature import features

__all__ = ["common_settings", "refuse_other_settings"]

OF_THE_SERVER: Mapping[str, Any] = {name: {} for name in BY_CLIENT}
"""Options of the solver that name clients: each node is sent the numbers of its own clients instead."""

MOST_SHOWN = 10
"""Settings that a refusal names."""


def common_settings(model: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that server and nodes have in common: without what each chooses, and patterns of clients' names.

    Args:
        model: the section `model`, as the command line writes it.
    """
    common = {**model, "solver": {**model["solver"], **OF_THE_SERVER}} if "solver" in model else dict(model)
    for path in (path for one in features() for path in one.own_options):
        common = _without(common, path)
    return common


def _without(options: dict[str, Any], path: str) -> dict[str, Any]:
    """Nested options without the one at a path, with dots between keys."""
    key, _, rest = path.partition(".")
    if not rest:
        return {name: value for name, value in options.items() if name != key}
    return options | {key: _without(options[key], rest)} if options.get(key) else options


def refuse_other_settings(sent: dict[str, Any] | None, own: dict[str, Any] | None) -> None:
    """Refuse settings of a server that differ from a node's own.

    Args:
        sent: the server's, from `common_settings`; None: it is a program that sends none.
        own: the node's; None: a program gives the same settings to both sides.

    Raises:
        ConfigError: naming the settings and both values.
    """
    if own is None:
        return
    if sent is None:
        raise ConfigError("the server is a program that sends no settings; start this node from a program, too")
    found = list(_differences(sent, own, "model"))
    if found:
        raise ConfigError(f"{few(found, MOST_SHOWN, '; ')}; give --config the file of the server's run")


def _differences(sent: Any, own: Any, place: str) -> Iterator[str]:
    if isinstance(sent, dict) and isinstance(own, dict):
        for name in sorted(own.keys() | sent.keys()):
            yield from _differences(sent.get(name), own.get(name), f"{place}.{name}")
    elif sent != own:
        yield f"--{foreign_text(place)} is {foreign_text(sent)} at the server and {foreign_text(own)} here"
