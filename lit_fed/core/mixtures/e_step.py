"""A mixture of models: the E-step, and averages of the models that clients sent."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.noise import protecting_normals
from lit_fed.core.reduce import cast_like
from lit_fed.core.task import Task
from lit_fed.core.types import Batch, Chosen, ClientData, ModelState, Reduced

__all__ = [
    "PositionLoss", "average_chosen", "batch_weights", "choose", "expectation", "nearest_mixture",
    "num_factors", "private_expectation",
]  # fmt: skip

PositionLoss = Literal["mean", "sum"]
"""−log p(y | x, θ_m) of a sequence in an E-step: the mean or the sum of the losses of its positions."""


def num_factors(task: Task, data: ClientData, position_loss: PositionLoss) -> int | Tensor:
    """Number of factors exp(−loss) in a sample's likelihood, where the loss is the mean over its positions.

    The likelihood of a text under one component is p(y | x, θ_m) = Π_l p(y_l | x, θ_m) = exp(−L·ℓ) over its L
    positions, where ℓ is the mean of their losses: with `sum` there are L factors. With `mean` there is one, exp(−ℓ),
    the L-th root of the likelihood, whose posterior is closer to π. A sample without positions has one factor. If some
    positions are ignored, L counts the others, [N, 1].
    """
    labelled = task.target.labelled(data.y) if position_loss == "sum" else None
    if labelled is not None:
        return labelled.sum(-1, keepdim=True).clamp(min=1)
    return task.target.num_terms(data.all_y) if position_loss == "sum" else 1


def expectation(
    mixture: Tensor, losses: Tensor, mask: Tensor, num_factors: int | Tensor = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """One E-step and its M-step for the mixture weights, in log space (Marfoq et al. 2021, Alg. 1, lines 5-6).

    Args:
        mixture: π, [M]; a weight of 0 stays 0.
        losses: ℓ(θ_m; s), [N, M], in nats.
        mask: 1 for a sample, 0 for padding, [N].
        num_factors: F, a number or [N, 1], see the function `num_factors`: a sample's likelihood is exp(−F·ℓ).

    Returns:
        The new π [M] (unchanged without samples), q [N, M] (0 in padded rows) and the mean negative log-likelihood []
        per factor under the old π.

    Example:
        >>> pi, q, nll = expectation(torch.tensor([0.5, 0.5]), torch.tensor([[0.1, 2.3], [1.2, 0.4]]), torch.ones(2))
        >>> [round(value, 4) for value in pi.tolist()]
        [0.6051, 0.3949]
    """
    # Only differences of losses matter. Subtracting first keeps them exact for large, close losses, so rounding cannot
    # swallow log π; and the softmax of finite differences sums to 1.
    least = (losses + torch.where(mixture == 0, torch.inf, 0.0)).amin(1, keepdim=True)
    joint = mixture.log() - num_factors * (losses - least)
    # softmax and logsumexp share their passes over the short axis of models
    highest = joint.amax(1, keepdim=True)
    likelihood = (joint - highest).exp()
    total = likelihood.sum(1, keepdim=True)
    q = likelihood * (mask.unsqueeze(1) / total)
    negative = least[:, 0] - ((highest + total.log()) / num_factors)[:, 0]
    num_samples = mask.sum(dtype=torch.float64)
    pi = (q.sum(0, dtype=torch.float64) / num_samples.clamp(min=1)).to(mixture.dtype)
    pi = torch.where(num_samples > 0, pi, mixture)
    return pi, q, (negative * mask).sum() / num_samples.clamp(min=1)


def private_expectation(
    ctx: Context, mixture: Tensor, losses: Tensor, data: ClientData, position_loss: PositionLoss
) -> tuple[Tensor, Tensor, Tensor]:
    """`expectation` of a client's samples, with noise on the new π if `ctx.mixture_noise` protects each sample.

    q comes from the old π, which was noised in its own round. Adding or removing a sample changes Σ_s q_s by a vector
    of norm 1 at most; the number of samples counts as public.

    Args:
        ctx: the context.
        mixture: π, [M].
        losses: ℓ(θ_m; s), [N, M], in nats.
        data: the client's samples.
        position_loss: loss of a sequence.
    """
    factors = 1 if position_loss == "mean" else num_factors(ctx.task, data, position_loss)
    pi, q, negative = expectation(mixture, losses, data.mask, factors)
    return (pi if ctx.mixture_noise is None else _noised(ctx, mixture, q, data)), q, negative


def _noised(ctx: Context, mixture: Tensor, q: Tensor, data: ClientData) -> Tensor:
    """The new π, [M], from q [N, M] with noise."""
    assert ctx.secret is not None
    assert ctx.mixture_noise is not None
    chances = protecting_normals(ctx.secret, ctx.round_idx, data.client_id, f"mixture/{ctx.phase}", len(mixture))
    total = q.sum(0, dtype=torch.float64) + ctx.mixture_noise * chances
    noised = nearest_mixture(total / data.num_samples.clamp(min=1)).to(mixture.dtype)
    return torch.where(data.num_samples > 0, noised, mixture)


def nearest_mixture(weights: Tensor) -> Tensor:
    """Projection of M numbers onto the simplex: the closest mixture weights [M], non-negative with sum 1.

    Example:
        >>> nearest_mixture(torch.tensor([0.755138, 0.294862], dtype=torch.float64)).tolist()
        [0.730138, 0.269862]
    """
    falling = weights.sort(descending=True).values
    counts = torch.arange(1, len(weights) + 1, device=weights.device)
    return (weights - ((falling.cumsum(0) - 1) / counts).max()).clamp(min=0)


def batch_weights(responsibility: Tensor, batch: Batch) -> Tensor:
    """The rows of q [N, M] that belong to a batch, [B, M]; each model may have its own batch."""
    own_batches = batch.index.ndim == 2  # [M, B]
    rows = batch.index.T if own_batches else batch.index.unsqueeze(1).expand(-1, responsibility.shape[1])
    return responsibility.gather(0, rows)


def choose(models: ModelState, taken: Tensor) -> Chosen:
    """The message of a client whose models enter averages with shares `taken` [M]; models [1, ...] are repeated."""
    taken = taken.double()
    kept = tree.map_leaves(lambda leaf: leaf * taken.to(leaf.dtype).view(-1, *[1] * (leaf.ndim - 1)), models)
    return Chosen(kept, taken)


def average_chosen(
    ctx: Context, models: ModelState, reduced: Reduced, *, all_participants: bool = False, absent_alike: bool = False
) -> ModelState:
    """Average each model over the clients that sent it, by their shares; a model that no client sent is unchanged.

    With `stale_fill` all other clients of the T count with the server's model, which they received last.
    With shares between 0 and 1 it would then shorten the steps of the participants; see `absent_alike`.

    Args:
        ctx: the context.
        models: the server's models, leaves [M, ...].
        reduced: the mean of messages `Chosen`.
        all_participants: count participants that did not send a model with the server's model.
        absent_alike: with `stale_fill`, give absent clients the mean shares of the participants.
    """
    sent: Chosen = reduced.value
    stale = ctx.aggregation == "stale_fill"
    if stale and not absent_alike:
        weight = reduced.weight / ctx.total_weight
        rest = 1 - sent.taken * weight
    elif all_participants:
        weight, rest = torch.ones_like(sent.taken), 1 - sent.taken
    else:
        weight = torch.where(sent.taken > 0, 1 / sent.taken.clamp(min=1e-300), 0.0)
        rest = (sent.taken <= 0).double()
    if stale and absent_alike:
        part = reduced.weight / ctx.total_weight
        weight, rest = part * weight, part * rest + 1 - part

    def average(new: Tensor, old: Tensor) -> Tensor:
        shape = (-1, *[1] * (old.ndim - 1))
        return weight.view(shape) * new + rest.view(shape) * old.double()

    return cast_like(tree.map_leaves(average, sent.models, models), models)  # type: ignore[no-any-return]
