"""Matrices as products of thin ones."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_fed.core.grids import NUMBER_BITS
from lit_fed.core.networks.products import full_precision
from lit_fed.errors import check_settings
from lit_fed.wrappers.compression.codecs.base import Chances, Codec, Encoded

__all__ = ["LowRank", "power_iteration"]


@dataclass(frozen=True)
class LowRank(Codec):
    """Each leaf as a matrix n × p of rank r: P̂·Qᵀ with orthonormal P̂; biased, so it needs a memory of its errors.

    Vogels, Karimireddy, Jaggi. "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization".
    NeurIPS 2019. https://arxiv.org/abs/1905.13727. n is the length of the first axis. Each iteration starts from the
    same random matrix for all clients of a round, instead of the previous round's result. A leaf that the two thin
    matrices would not shorten, such as a vector, is sent unchanged.

    Args:
        rank: r.
        iterations: passes of the power method; more passes come closer to the best matrix of that rank.
    """

    rank: int = 2
    iterations: int = 1

    randomness = "common"
    keeps_shape = True

    def __post_init__(self) -> None:
        check_settings(self, prefix=type(self).__name__, rank=">= 1", iterations=">= 1")

    def encode(self, values: Tensor, chances: Chances) -> Encoded:
        """P̂Qᵀ; the numbers of both, or those of the leaf."""
        matrix = values.reshape(values.shape[0] if values.ndim else 1, -1)
        numbers = self.rank * sum(matrix.shape)
        bits = torch.full((), NUMBER_BITS * min(numbers, values.numel()), dtype=torch.float64, device=values.device)
        if numbers >= values.numel():
            return Encoded(values, bits)
        start = (2 * chances(matrix.shape[1] * self.rank) - 1).to(values.dtype).view(-1, self.rank)
        return Encoded(power_iteration(matrix, start, self.iterations).view(values.shape), bits)


def power_iteration(matrix: Tensor, start: Tensor, iterations: int = 1) -> Tensor:
    """The matrix [n, p], projected to the span of its products with a start [p, r], r at most min(n, p)."""
    with full_precision(matrix):
        right = start
        for _ in range(iterations):
            left = torch.linalg.qr(matrix @ right).Q  # P̂, [n, r]
            right = matrix.mT @ left
        product: Tensor = left @ right.mT
    return product
