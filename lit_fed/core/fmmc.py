"""The fastest mixing Markov chain on a graph.

Boyd, Diaconis, Xiao. "Fastest Mixing Markov Chain on a Graph". SIAM Review 46(4), 2004.
https://doi.org/10.1137/S0036144503423264
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["fastest_mixing"]


def fastest_mixing(edges: Tensor) -> Tensor:
    """The mixing matrix of a graph with the smallest second-largest eigenvalue modulus, [T, T] float64.

    Args:
        edges: adjacency, [T, T] float64.
    """
    larger = torch.maximum(edges.sum(1)[:, None], edges.sum(1)).clamp(min=1)
    weight = edges / larger
    return weight + torch.diag(1 - weight.sum(1))
