"""Minimisers of ½·xᵀGx − ⟨b, x⟩ plus a penalty on the entries of x, where G and b come from least squares."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

__all__ = ["Regulariser", "lasso_solution", "regularised_solution", "ridge_solution"]

Regulariser = Literal["ridge", "lasso"]


def regularised_solution(
    regulariser: Regulariser, gram: Tensor, linear: Tensor, weight: float, start: Tensor, num_steps: int
) -> Tensor:
    """With the penalty of a ridge or a lasso on all entries but the last, the weight of a constant.

    Args:
        regulariser: which penalty.
        gram: G, [d, d].
        linear: b, [d].
        weight: of the penalty.
        start: where the steps of a lasso begin, [d].
        num_steps: how many it takes.
    """
    each = torch.full_like(linear[:-1], weight)
    each = torch.cat([each, torch.zeros_like(linear[-1:])])
    if regulariser == "ridge":
        return ridge_solution(gram, linear, each)
    return lasso_solution(gram, linear, each, start, num_steps)


def ridge_solution(gram: Tensor, linear: Tensor, weight: Tensor) -> Tensor:
    """With ½·Σ_j weight_j·x_j², exactly; entries of features that are 0 everywhere are 0.

    Args:
        gram: G, [d, d].
        linear: b, [d].
        weight: of each entry, [d], >= 0.

    Example:
        >>> ridge_solution(torch.diag(torch.tensor([1.0, 0.0])), torch.tensor([4.0, 0.0]), torch.tensor([1.0, 0.0]))
        tensor([2., 0.])
    """
    absent = (gram.diagonal() == 0).to(gram.dtype)
    return torch.linalg.solve(gram + torch.diag(weight + absent), linear)  # type: ignore[no-any-return]


def lasso_solution(gram: Tensor, linear: Tensor, weight: Tensor, start: Tensor, num_steps: int) -> Tensor:
    """With Σ_j weight_j·|x_j|, by accelerated proximal gradient steps (FISTA).

    Args:
        gram: G, [d, d].
        linear: b, [d].
        weight: of each entry, [d], >= 0.
        start: where the steps begin, [d].
        num_steps: how many are taken.

    Example:
        >>> lasso_solution(torch.eye(2), torch.tensor([3.0, 0.5]), torch.ones(2), torch.zeros(2), 5)
        tensor([2., 0.])
    """
    rate = 1 / torch.linalg.eigvalsh(gram)[-1].clamp(min=torch.finfo(gram.dtype).tiny)
    x, ahead, pace = start, start, 1.0
    for _ in range(num_steps):
        moved = ahead - rate * (gram @ ahead - linear)
        new = moved.sign() * (moved.abs() - rate * weight).clamp(min=0)
        faster = (1 + (1 + 4 * pace * pace) ** 0.5) / 2
        ahead, x, pace = new + (pace - 1) / faster * (new - x), new, faster
    return x
