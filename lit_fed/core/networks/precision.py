"""Arithmetic that must not be narrowed by autocast."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["full_precision"]


def full_precision(like: Tensor) -> torch.autocast:
    """Within it, operands are taken in their own types, also where autocast would narrow them.

    Solves and differences of nearly equal numbers need it: bfloat16 keeps three digits, and these are gone.

    Args:
        like: any tensor on the device of the operands.
    """
    return torch.autocast(like.device.type, enabled=False)
