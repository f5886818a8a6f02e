"""Finding one client among those of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lit_fed.core.types import Population
from lit_fed.errors import ConfigError
from lit_fed.system.spreadsheets import unquoted

__all__ = ["find_client"]

SHOWN = 3
"""Clients of each population that an error names."""


def find_client(client: str, populations: Mapping[str, Population | None]) -> tuple[str, int]:
    """The population of a client, and its position there.

    Args:
        client: its name, or else its number (the column `client_id` of predictions), counted over all populations.
        populations: by name; None has no clients. Names are looked up in this order.

    Raises:
        ConfigError: if there is no such client, with some that there are.
    """
    there = {name: population for name, population in populations.items() if population is not None}
    for called in dict.fromkeys((client, unquoted(client))):  # as a table of results may have it
        for name, population in there.items():
            if called in population.names:
                return name, population.names.index(called)
    for name, population in there.items():
        position = int(client) - population.train.first_id if client.isdecimal() else -1
        if 0 <= position < population.train.num_clients:
            return name, position
    known = "; ".join(f"{name}: {_some(population.names)}" for name, population in there.items())
    raise ConfigError(f"--client {client or 'is not set and'} names no client; give one of them ({known})")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
