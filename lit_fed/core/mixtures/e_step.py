"""A mixture of models: the E-step, and averages of those models that a client trained."""

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
    "PositionLoss", "average_chosen", "batch_weights", "choose", "counted_rows", "expectation", "largest",
    "nearest_mixture", "num_factors", "private_expectation",
]  # fmt: skip

PositionLoss = Literal["mean", "sum"]
"""What an E-step takes for −log p(y | x, θ_m) of a sequence: the mean of the losses of its positions, or their sum."""


def num_factors(task: Task, data: ClientData, position_loss: PositionLoss) -> int | Tensor:
    """How many factors like exp(−loss) a sample's likelihood has, the loss being the mean over its positions.

    A text that one component wrote has p(y | x, θ_m) = Π_l p(y_l | x, θ_m) = exp(−L·ℓ) over its L positions, where ℓ is
    the mean of their losses: with `sum` there are L factors. With `mean` there is one, exp(−ℓ), the L-th root of the
    likelihood, whose posterior is closer to π. A sample without positions has one factor. Where some positions do not
    count, L is the number of the others, [N, 1].
    """
    labelled = task.target.labelled(data.y) if position_loss == "sum" else None
    if labelled is not None:
        return labelled.sum(-1, keepdim=True).clamp(min=1)
    return task.target.num_terms(data.all_y) if position_loss == "sum" else 1


def counted_rows(task: Task, data: ClientData) -> Tensor:
    """The mask of samples [N], with 0 for a sample of whose positions none counts."""
    return task.target.counted(data.y, data.mask) if task.target.partly_labelled else data.mask


def expectation(
    mixture: Tensor, losses: Tensor, mask: Tensor, num_factors: int | Tensor = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """One E-step and its M-step for the mixture weights, in log space (Marfoq et al. 2021, Alg. 1, lines 5-6).

    Args:
        mixture: π, [M]; a weight of 0 stays 0.
        losses: ℓ(θ_m; s), [N, M], in nats.
        mask: 1 for a sample, 0 for padding, [N].
        num_factors: F or [N, 1], as `num_factors` counts them: a sample's likelihood is exp(−F·ℓ).

    Returns:
        The new π [M] (unchanged without samples), q [N, M] (0 in padded rows) and the mean negative log-likelihood []
        of a factor under the old π.

    Example:
        >>> pi, q, nll = expectation(torch.tensor([0.5, 0.5]), torch.tensor([[0.1, 2.3], [1.2, 0.4]]), torch.ones(2))
        >>> [round(value, 4) for value in pi.tolist()]
        [0.6051, 0.3949]
    """
    # Only differences of losses matter. Taken first, they are exact where losses are large and close, so that log π is
    # not lost beside them; and softmax sums to 1 whatever they are.
    least = (losses + torch.where(mixture == 0, torch.inf, 0.0)).amin(1, keepdim=True)
    joint = mixture.log() - num_factors * (losses - least)
    # softmax and logsumexp in one: the axis of models is short, and each of them alone would take it twice
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
    ctx: Context, mixture: Tensor, losses: Tensor, data: ClientData, num_factors: int | Tensor = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """`expectation` whose new π is noised where a context asks for it, so that a sample tells little by it.

    q comes from the old π, which was noised when it was new. One sample more or less changes Σ_s q_s by a vector of
    norm 1 at most; how many there are counts as public.
    """
    pi, q, negative = expectation(mixture, losses, counted_rows(ctx.task, data), num_factors)
    if ctx.mixture_noise is None:
        return pi, q, negative
    assert ctx.secret is not None
    chances = protecting_normals(ctx.secret, ctx.round_idx, data.client_id, f"mixture/{ctx.phase}", len(mixture))
    total = q.sum(0, dtype=torch.float64) + ctx.mixture_noise * chances
    noised = nearest_mixture(total / data.num_samples.clamp(min=1)).to(mixture.dtype)
    return torch.where(data.num_samples > 0, noised, mixture), q, negative


def nearest_mixture(weights: Tensor) -> Tensor:
    """The mixture weights [M], not negative and summing to 1, that are closest to any M numbers.

    Example:
        >>> nearest_mixture(torch.tensor([0.755138, 0.294862], dtype=torch.float64)).tolist()
        [0.730138, 0.269862]
    """
    falling = weights.sort(descending=True).values
    counts = torch.arange(1, len(weights) + 1, device=weights.device)
    return (weights - ((falling.cumsum(0) - 1) / counts).max()).clamp(min=0)


def batch_weights(responsibility: Tensor, batch: Batch) -> Tensor:
    """The rows of q [N, M] that belong to a batch, [B, M]; each model may have a batch of its own."""
    own_batches = batch.index.ndim == 2  # [M, B]
    rows = batch.index.T if own_batches else batch.index.unsqueeze(1).expand(-1, responsibility.shape[1])
    return responsibility.gather(0, rows)


def largest(mixture: Tensor, most: int | None = None, at_least: float = 0.0) -> Tensor:
    """Which models have the largest weights, [M] float64: 1 for at most `most` of them, 0 for the others.

    Args:
        mixture: weights, [M].
        most: number of models; of equal weights the first go before. None: all.
        at_least: smallest weight; the largest one counts whatever it is.

    Example:
        >>> largest(torch.tensor([0.1, 0.5, 0.0, 0.4]), most=3, at_least=0.2).tolist()
        [0.0, 1.0, 0.0, 1.0]
    """
    position = torch.arange(len(mixture), device=mixture.device)
    before = (mixture > mixture[:, None]) | ((mixture == mixture[:, None]) & (position < position[:, None]))
    rank = before.sum(1)
    wanted = (mixture >= at_least) & (rank < (len(mixture) if most is None else most))
    return (wanted | (rank == 0)).double()


def choose(models: ModelState, taken: Tensor) -> Chosen:
    """The message of a client whose models count with shares `taken`, [M]; models [1, ...] stand for each of them."""
    taken = taken.double()
    kept = tree.map_leaves(lambda leaf: leaf * taken.to(leaf.dtype).view(-1, *[1] * (leaf.ndim - 1)), models)
    return Chosen(kept, taken)


def average_chosen(
    ctx: Context, models: ModelState, reduced: Reduced, *, all_participants: bool = False, absent_alike: bool = False
) -> ModelState:
    """Average each model over the clients that sent it, by their shares; a model that no client sent is unchanged.

    `stale_fill` lets all others of the T clients count with the model that they were last sent, which is the server's.
    With shares between 0 and 1 it would then shorten the steps of clients that take part; see `absent_alike`.

    Args:
        ctx: what every client knows.
        models: the server's, leaves [M, ...].
        reduced: the mean of messages `Chosen`.
        all_participants: let those that took part without sending a model count with the server's.
        absent_alike: let `stale_fill` give absent clients the mean shares of those that took part.
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
