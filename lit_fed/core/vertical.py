"""One linear model of parties that hold different features of the same n rows, and the loss of its predictions."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_fed.core.context import Context
from lit_fed.core.errors import ConfigError
from lit_fed.core.solvers.affine_networks import check_linear_task, with_constant
from lit_fed.core.solvers.margin_losses import MarginLoss, margin_loss, margin_prox
from lit_fed.core.types import ClientData

__all__ = ["check_parties", "holds_labels", "label_loss", "label_prox", "labels_of", "party_features"]


def check_parties(ctx: Context, algorithm: str) -> None:
    """Refuse anything but one linear output and the same number of training rows at each party.

    Raises:
        ConfigError: naming what is given and what is needed.
    """
    check_linear_task(ctx.task, algorithm, ("regression", "binary"))
    if ctx.most_samples * ctx.num_clients != ctx.total_samples:
        raise ConfigError(
            f"{algorithm} needs the same training rows at each party, and of {ctx.num_clients} parties the largest has "
            f"{ctx.most_samples} of {ctx.total_samples} rows in all; correct --data.dataset"
        )


def holds_labels(data: ClientData) -> Tensor:
    """Whether this is party 0, [] bool."""
    return data.client_id == 0


def party_features(ctx: Context, data: ClientData) -> Tensor:
    """The features of a party with 0 for those of the others, and a constant that party 0 holds, [n, d + 1]."""
    return with_constant(data.x, holds_labels(data))[: ctx.most_samples].to(ctx.task.dtype)


def labels_of(ctx: Context, data: ClientData) -> Tensor:
    """The labels at party 0, [n]; 0 at all others, whatever stands there."""
    labels = data.y[: ctx.most_samples].to(ctx.task.dtype)
    return torch.where(holds_labels(data), labels, torch.zeros_like(labels))


def label_loss(ctx: Context, loss: MarginLoss, fit: Tensor, labels: Tensor) -> Tensor:
    """Loss of each row: half the squared error, or that of the margin; [n].

    Args:
        ctx: what every client knows.
        loss: of two classes.
        fit: predictions, [n].
        labels: numbers, or 0 and 1, [n].
    """
    if ctx.task.target.continuous:
        return 0.5 * (fit - labels).square()
    return margin_loss(loss, _signs(labels) * fit)


def label_prox(ctx: Context, loss: MarginLoss, point: Tensor, labels: Tensor, weight: float) -> Tensor:
    """The s that minimises `label_loss` plus weight/2·(s − point)², row by row; [n].

    Args:
        ctx: what every client knows.
        loss: of two classes.
        point: [n].
        labels: numbers, or 0 and 1, [n].
        weight: > 0.
    """
    if ctx.task.target.continuous:
        return (labels + weight * point) / (1 + weight)
    return _signs(labels) * margin_prox(loss, _signs(labels) * point, weight)


def _signs(labels: Tensor) -> Tensor:
    return torch.where(labels > 0.5, 1.0, -1.0).to(labels.dtype)
