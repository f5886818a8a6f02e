"""Memory and processors of this machine: limits, alignment of tensors, settings of malloc."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from lit_fed.errors import ConfigError

__all__ = [
    "aligned", "available_memory", "cores", "forget_peak_memory", "free_gpu_memory", "keep_freed_memory",
    "memory_limited", "peak_memory", "require_cores", "require_memory",
]  # fmt: skip

MEMINFO = Path("/proc/meminfo")
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Memory limits of a container, on Linux."""


def available_memory() -> int | None:
    """Bytes available, with swap, within the limits of container and process; None if unknown."""
    known = [size for size in (_free(), *map(_limit, LIMITS), _limit_of_process()) if size is not None]
    return min(known, default=None)


def free_gpu_memory(device: torch.device) -> int:
    """Free bytes of a CUDA device, with those that PyTorch's allocator holds and does not use."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def require_memory(num_bytes: int, what: str, fix: str) -> None:
    """Refuse an allocation that cannot fit.

    Args:
        num_bytes: lower bound of its size.
        what: what is allocated, for the message.
        fix: what to give instead.

    Raises:
        ConfigError: naming both sizes.
    """
    available = available_memory()
    if available is not None and num_bytes > available:
        raise ConfigError(f"{what}: takes {_in_words(num_bytes)}, and {_in_words(available)} are free here; {fix}")


@contextmanager
def memory_limited() -> Iterator[None]:
    """Context in which an allocation beyond the free memory is a MemoryError; on Linux, which would kill the process.

    For files that unpack to a size which no header tells.
    """
    free, used = available_memory(), _kilobytes("VmData")
    if free is None or used is None:
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit = 1024 * used + free
    if before[0] != resource.RLIM_INFINITY:
        limit = min(limit, before[0])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _kilobytes(name: str) -> int | None:
    """A size in Linux's status of this process; None on other systems."""
    with suppress(OSError):
        if found := re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text()):
            return int(found[1])
    return None


def forget_peak_memory() -> None:
    """Let the system measure this process's peak memory anew, where it can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """Peak memory of this process, in bytes."""
    if (found := _kilobytes("VmHWM")) is not None:
        return found * 1024
    import resource  # Windows has none

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _free() -> int | None:
    """Available bytes on Linux; on other systems the total memory."""
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
    """Limit of a container, if it has one."""
    try:
        return int(path.read_text(encoding="ascii"))  # "max" is no number
    except (OSError, ValueError):
        return None


def _limit_of_process() -> int | None:
    """Limit by `ulimit`, if the system has one."""
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
"""Bytes; PyTorch aligns its allocations on a CPU to multiples."""


def aligned(leaf: Tensor) -> Tensor:
    """The tensor, or a copy if it is not aligned like a fresh allocation.

    Alignment changes the summation order of matrix products, and a client's numbers must not depend on which samples
    and states lie before its own.
    """
    elsewhere = leaf.is_floating_point() and leaf.device.type == "cpu" and leaf.data_ptr() % BOUNDARY
    return leaf.clone() if elsewhere else leaf


MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of glibc's malloc.h
LARGEST_KEPT, MOST_KEPT = 2**28, 2**31 - 1
"""Bytes of the largest freed block that is kept, and of all of them."""

BY_HAND = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
"""Environment variables by which users set malloc themselves."""


def keep_freed_memory(device: torch.device) -> bool:
    """Let glibc keep freed memory of large CPU tensors; returns whether it does.

    By default glibc returns blocks of 32 MB or more to the system and maps new pages for the next one, which took a
    third of the time of local steps of convolutional networks. Other devices, other C libraries and users' own settings
    of glibc are left alone.
    """
    return device.type == "cpu" and _tell_glibc()


@cache
def _tell_glibc() -> bool:
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
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def require_cores(processes: int, option: str) -> None:
    """Refuse more processes than cores; two are always allowed, for trying out.

    Args:
        processes: number of processes to start.
        option: the argument that sets it.

    Raises:
        ConfigError: naming the argument and its maximum.
    """
    granted = len(cores())
    if processes > max(granted, 2):
        raise ConfigError(
            f"{option} is {processes}, one process each, and this machine grants {granted} CPU cores; give at most "
            f"{max(granted, 2)}"
        )
