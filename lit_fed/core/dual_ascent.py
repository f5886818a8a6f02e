"""Dual coordinate ascent for the K linear classifiers of one client, one sample at a time."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name everybody knows

from lit_fed.core import tree
from lit_fed.core.local_solver import OptimizerState
from lit_fed.core.solvers.affine_networks import with_constant
from lit_fed.core.solvers.margin_losses import MarginLoss, dual_step, margin_loss
from lit_fed.core.targets import Target
from lit_fed.core.types import Batch

__all__ = ["DualRun", "coordinate_step", "dual_run", "resized", "signs"]


class DualRun(NamedTuple):
    """Work of a client that maximises its share of a dual problem."""

    columns: Tensor  # w at the start, [K, d + 1]
    change: Tensor  # Δb of b = share·Σ_s y_s·β_s·x_s, [K, d + 1]
    dual: Tensor  # β_s, [K, N]
    reach: Tensor  # [K] the local model is w + reach·Δb
    share: Tensor  # [] weight of one sample's loss
    optimizer: OptimizerState  # of no use to coordinate steps
    loss: Tensor  # [] sum over steps of the sample's loss under the local model, before the step; mean over classes
    steps: Tensor  # [] steps taken

    @property
    def local_columns(self) -> Tensor:
        """The local model, [K, d + 1]."""
        return torch.addcmul(self.columns, self.reach.unsqueeze(1), self.change)


def dual_run(columns: Tensor, dual: Tensor, reach: Tensor, share: Tensor, optimizer: OptimizerState) -> DualRun:
    """Work that starts here; all numbers get the type of the model."""
    zero = torch.zeros((), dtype=columns.dtype, device=columns.device)
    reach, share = reach.to(columns.dtype), share.to(columns.dtype)
    return DualRun(columns, torch.zeros_like(columns), dual, reach, share, optimizer, zero, zero.clone())


def signs(target: Target, y: Tensor) -> Tensor:
    """Whether a label is the class of an output, ±1 for each output, [..., K].

    Example:
        >>> one = torch.tensor(1)
        >>> from lit_fed.core.targets import Binary, Multiclass
        >>> signs(Multiclass(3), one).tolist(), signs(Binary(), one).tolist()
        ([-1.0, 1.0, -1.0], [1.0])
    """
    first = target.num_classes - target.num_outputs  # 1 of two classes, whose only output is that of class 1
    classes = torch.arange(first, first + target.num_outputs, device=y.device)
    return torch.where(y.unsqueeze(-1) == classes, 1.0, -1.0)


def resized(dual: Tensor, size: int) -> Tensor:
    """The first entries of the last axis, or all of them and zeros behind.

    Example:
        >>> resized(torch.ones(1, 2), 3).tolist(), resized(torch.ones(1, 2), 1).tolist()
        ([[1.0, 1.0, 0.0]], [[1.0]])
    """
    return F.pad(dual, (0, max(size - dual.shape[-1], 0)))[..., :size]


def coordinate_step(loss: MarginLoss, target: Target, run: DualRun, batch: Batch) -> DualRun:
    """The best dual variables of the first sample of a batch, all others as they are."""
    one: Batch = tree.index(batch, slice(0, 1))  # the others are padding
    x, here = with_constant(one.x)[0], one.mask[0].to(run.dual.dtype)
    sign, position = signs(target, one.y)[0].to(x.dtype), one.index.expand(len(run.dual), 1)
    margin = sign * (run.local_columns @ x)
    old = run.dual.gather(1, position)[:, 0]
    moved = here * (dual_step(loss, old, margin, run.reach * run.share * x.square().sum()) - old)
    return run._replace(
        change=torch.addcmul(run.change, (run.share * sign * moved).unsqueeze(1), x),
        dual=run.dual.scatter(1, position, (old + moved).unsqueeze(1)),
        loss=run.loss + here * margin_loss(loss, margin).mean(),
        steps=run.steps + here,
    )
