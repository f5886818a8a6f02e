"""What a machine has room for: sizes that come from outside are compared with it before anything is allocated."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from lit_fed.errors import ConfigError

__all__ = ["available_memory", "check_models", "check_network", "require_memory"]

MEMINFO = Path("/proc/meminfo")
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Where Linux says how much a container may take."""


def available_memory() -> int | None:
    """Bytes that can still be allocated, with swap, within limits of container and process; None if nothing says it."""
    known = [size for size in (_free(), *map(_limit, LIMITS), _limit_of_process()) if size is not None]
    return min(known, default=None)


def require_memory(num_bytes: int, what: str, fix: str) -> None:
    """Refuse what cannot fit, before it is allocated.

    Args:
        num_bytes: what it takes at least.
        what: what takes it.
        fix: what to give instead.

    Raises:
        ConfigError: naming what it would take, and what the machine has.
    """
    available = available_memory()
    if available is not None and num_bytes > available:
        raise ConfigError(f"{what}: takes {_in_words(num_bytes)}, and {_in_words(available)} are free here; {fix}")


def check_models(num_models: int, network: nn.Module) -> None:
    """Refuse more stacked models than fit.

    Args:
        num_models: M.
        network: one of them; what is not trained is not stacked.

    Raises:
        ConfigError: naming their number and size.
    """
    each = _bytes_of(network) - sum(leaf.nbytes for leaf in network.parameters() if not leaf.requires_grad)
    require_memory(
        2 * num_models * each,  # one by one, and stacked
        f"{num_models} initial models of {each} bytes each",
        "lower the number of models in --model.algorithm, or choose a smaller --model.network",
    )


def check_network(build: Callable[[], nn.Module]) -> None:
    """Refuse a network that does not fit, by building it without memory first, which takes no random numbers.

    Args:
        build: makes a network from torch's global generator.

    Raises:
        ConfigError: naming what it would take, and what the machine has.
    """
    try:
        with torch.device("meta"), warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")  # weights that are loaded find no room
            size = _bytes_of(build())
    except Exception:  # a network that wants numbers while it is built; what else is wrong, the real build finds
        return
    require_memory(size, "the --model.network", "choose smaller sizes, or another network")


def _bytes_of(network: nn.Module) -> int:
    """Bytes of parameters and buffers."""
    return sum(leaf.numel() * leaf.element_size() for leaf in (*network.parameters(), *network.buffers()))


def _free() -> int | None:
    """Bytes that Linux reports as available; on other systems all memory of the machine."""
    try:
        rows = [line.split() for line in MEMINFO.read_text(encoding="ascii").splitlines()]
        sizes = {row[0]: 1024 * int(row[1]) for row in rows}
        return sizes["MemAvailable:"] + sizes.get("SwapFree:", 0)
    except (OSError, ValueError, LookupError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _limit(path: Path) -> int | None:
    """A container's limit, where it has one."""
    try:
        return int(path.read_text(encoding="ascii"))  # "max" is no number
    except (OSError, ValueError):
        return None


def _limit_of_process() -> int | None:
    """What `ulimit` leaves to this process, where the system knows such limits."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_DATA, resource.RLIMIT_AS)]
    return min((size for size in soft if size != resource.RLIM_INFINITY), default=None)


def _in_words(num_bytes: int) -> str:
    """Gigabytes of 10⁹ bytes."""
    return f"{num_bytes / 1e9:,.3g} GB" if num_bytes < 1e15 else f"{num_bytes / 1e9:.1e} GB"
