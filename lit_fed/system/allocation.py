"""Memory of large temporaries, kept for the next ones."""

from __future__ import annotations

import ctypes
import os
from functools import cache

import torch

__all__ = ["keep_freed_memory"]

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
