"""The processors that this process may use: more processes than that only cost memory."""

from __future__ import annotations

import os

from lit_fed.errors import ConfigError

__all__ = ["cores", "require_cores"]


def cores() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def require_cores(processes: int, option: str) -> None:
    """Refuse more processes than there are cores; two are always granted, to try out how they work together.

    Args:
        processes: how many are to be started.
        option: the argument that asked for them.

    Raises:
        ConfigError: naming the argument, and the most that it may be.
    """
    granted = len(cores())
    if processes > max(granted, 2):
        raise ConfigError(
            f"{option} is {processes}, one process each, and this machine grants {granted} CPU cores; give at most "
            f"{max(granted, 2)}"
        )
