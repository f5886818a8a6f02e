"""Where numbers begin in memory: the last bits of matrix products hang on it."""

from __future__ import annotations

from torch import Tensor

__all__ = ["from_boundary"]

BOUNDARY = 64
"""Bytes; what PyTorch allocates on a CPU begins at a multiple."""


def from_boundary(leaf: Tensor) -> Tensor:
    """The tensor itself, or a copy if it does not begin where memory of its own would.

    Matrix products add up in another order where rows begin at another address. A client's numbers must not depend on
    whose samples and states lie before its own, in this process or another one.
    """
    elsewhere = leaf.is_floating_point() and leaf.device.type == "cpu" and leaf.data_ptr() % BOUNDARY
    return leaf.clone() if elsewhere else leaf
