"""The memory and the processors of this machine: what they have room for, and how they are used well."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from lit_fed.errors import ConfigError

__all__ = [
    "available_memory",
    "cores",
    "from_boundary",
    "keep_freed_memory",
    "require_cores",
    "require_memory",
]

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


# ---------------------------------------------------------------------- alignment and freed memory
BOUNDARY = 64
"""Bytes; what PyTorch allocates on a CPU begins at a multiple."""


def from_boundary(leaf: Tensor) -> Tensor:
    """The tensor itself, or a copy if it does not begin where memory of its own would.

    Matrix products add up in another order where rows begin at another address. A client's numbers must not depend on
    whose samples and states lie before its own, in this process or another one.
    """
    elsewhere = leaf.is_floating_point() and leaf.device.type == "cpu" and leaf.data_ptr() % BOUNDARY
    return leaf.clone() if elsewhere else leaf


MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of glibc's malloc.h
LARGEST_KEPT, MOST_KEPT = 2**28, 2**31 - 1
"""Bytes of the largest block that is kept when it is freed, and of what is kept in all."""

BY_HAND = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
"""Variables by which users decide for themselves."""


def keep_freed_memory(device: torch.device) -> bool:
    """Let the C library keep what large tensors on a CPU leave behind; whether it does.

    By default glibc gives every block of 32 MB or more, and the freed end of its heap, back to the system, and takes
    the pages of the next one anew: in local steps of convolutional networks that took a third of the time. It changes
    nothing on other devices, with other C libraries or where users set glibc's own variables.
    """
    return device.type == "cpu" and _tell_glibc()


@cache
def _tell_glibc() -> bool:
    """Once for a process."""
    if any(name in os.environ for name in BY_HAND):
        return False
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 - another C library has no such function
        return bool(library.mallopt(MMAP_THRESHOLD, LARGEST_KEPT)) and bool(library.mallopt(TRIM_THRESHOLD, MOST_KEPT))
    except (AttributeError, OSError, TypeError):
        return False


# ---------------------------------------------------------------------- processors
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
