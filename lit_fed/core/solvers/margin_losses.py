"""Losses h(a) of a margin a = y·f(x), y = ±1: hinge and logistic; their dual coordinate steps and proximal steps."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name everybody knows

__all__ = ["MarginLoss", "best_dual", "logistic_root", "margin_loss", "margin_prox"]

MarginLoss = Literal["hinge", "logistic"]

ITERATIONS = 24
"""Newton steps of `logistic_root`: at most about ln(slope) of them pass before it converges quadratically."""


def margin_loss(loss: MarginLoss, margin: Tensor) -> Tensor:
    """max(0, 1 − a), or log(1 + exp(−a)); element by element."""
    return (1 - margin).clamp(min=0) if loss == "hinge" else -F.logsigmoid(margin)


def best_dual(loss: MarginLoss, dual: Tensor, margin: Tensor, curvature: Tensor) -> Tensor:
    """The dual variable β in [0, 1] of a sample that maximises −h*(−β) − a·(β − β₀) − curvature/2·(β − β₀)².

    Args:
        loss: h.
        dual: β₀, any shape.
        margin: a under the model of β₀, the same shape.
        curvature: how much the margin grows with β, > 0.

    Example:
        >>> best_dual("hinge", torch.tensor(0.25), torch.tensor(0.5), torch.tensor(1.0)).item()
        0.75
    """
    if loss == "hinge":
        return (dual + (1 - margin) / curvature).clamp(0, 1)
    return torch.sigmoid(logistic_root(curvature * dual - margin, curvature))


def margin_prox(loss: MarginLoss, point: Tensor, weight: float) -> Tensor:
    """The minimiser over a of h(a) + weight/2·(a − point)², element by element.

    Example:
        >>> margin_prox("hinge", torch.tensor([-3.0, 0.5, 2.0]), 1.0).tolist()
        [-2.0, 1.0, 2.0]
    """
    if loss == "hinge":
        return torch.maximum(point, (point + 1 / weight).clamp(max=1))
    return logistic_root(point + 1 / weight, torch.full_like(point, 1 / weight))


def logistic_root(total: Tensor, slope: Tensor) -> Tensor:
    """The t with t + slope·σ(t) = total, for slope >= 0, by a fixed number of Newton steps.

    The left side is steepest at 0, convex below and concave above, so steps from 0 never pass the root.
    """
    t = torch.zeros_like(total)
    for _ in range(ITERATIONS):
        s = torch.sigmoid(t)
        t = t - (t + slope * s - total) / (1 + slope * s * (1 - s))
    return t
