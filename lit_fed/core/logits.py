"""What becomes of logits, in the layout in which they lie in memory, which is what decides how fast it is.

Symbols:
    B, M, K -> samples, models, logits of a sample
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name everybody knows

__all__ = ["logistic_losses", "mixed_log_probabilities", "over_classes"]


def over_classes(function: Callable[[Tensor, int], Tensor], outputs: Tensor) -> Tensor:
    """`torch.softmax` or `torch.log_softmax` of the last axis; where samples, the first, lie close in memory, theirs.

    Both take rows of few classes one after another, but long rows of samples many numbers at once, twenty times faster.
    """
    if outputs.ndim > 1 and outputs.stride(0) == 1 < outputs.stride(-1):
        return function(outputs.movedim(0, -1), -2).movedim(-1, 0)
    return function(outputs, -1)


def logistic_losses(logit: Tensor, y: Tensor) -> Tensor:
    """Log-loss of each label, 0 or 1 or a probability of 1, under log p(1)/p(0); all [...]."""
    if y.is_floating_point():
        return -y * F.logsigmoid(logit) - (1 - y) * F.logsigmoid(-logit)
    one = y[..., :1] if y.ndim and not y.stride(-1) else y  # of labels that all models share
    return -_log_sigmoid(logit * torch.where(one > 0, 1.0, -1.0))


def _log_sigmoid(logit: Tensor) -> Tensor:
    """`F.logsigmoid` where its input lies in memory; PyTorch's turns what has samples last, which takes longer."""
    if logit.ndim > 1 and logit.stride(0) == 1 < logit.stride(-1):
        return F.logsigmoid(logit.movedim(0, -1)).movedim(-1, 0)
    return F.logsigmoid(logit)


def mixed_log_probabilities(weights: Tensor, logit: Tensor) -> Tensor:
    """Log-probabilities of 0 and 1, [B, ..., 2], of a mixture of logits [B, M, ...] with weights that broadcast."""
    if logit.shape[1] == 1:
        both = torch.stack([F.logsigmoid(-logit[:, 0]), F.logsigmoid(logit[:, 0])])
    else:  # two sums of probabilities are exact on both sides and far cheaper than two log-sum-exps
        mixed = torch.stack([(weights * torch.sigmoid(part)).sum(1) for part in (-logit, logit)])
        both = mixed.clamp(min=torch.finfo(mixed.dtype).tiny).log()
    return both.movedim(0, -1)
