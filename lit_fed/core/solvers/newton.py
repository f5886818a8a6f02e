"""The exact local solve: the minimiser of a client's loss plus a penalty, by Newton's method."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.local_solver import Penalty
from lit_fed.core.networks.products import full_precision
from lit_fed.core.task import Task
from lit_fed.core.types import Batch, ClientData, Leaves, ModelState
from lit_fed.errors import ConfigError

__all__ = ["MOST_PARAMETERS", "check_solvable", "minimise", "solvable_start"]

MOST_PARAMETERS = 2048
"""Maximum number of parameters for which a Hessian is built."""

STEP_SIZES = (1.0, 0.5, 0.25, 0.125, 1 / 16, 1 / 32, 1 / 128, 1 / 1024, 0.0)

ROUNDING = 16
"""Differences of the objective up to this many units of precision count as rounding."""


def check_solvable(task: Task, models: ModelState) -> None:
    """Refuse networks without an exact local solve.

    Args:
        task: network and loss.
        models: leaves [M, ...].

    Raises:
        ConfigError: if a model has more than `MOST_PARAMETERS` trained parameters, or if the network's function
            changes from pass to pass or with the batch.
    """
    size = sum(leaf[0].numel() for leaf in models.parameters.values())
    if size > MOST_PARAMETERS:
        raise ConfigError(
            f"an exact local solve needs the Hessian of {size} parameters; it takes up to {MOST_PARAMETERS}: "
            "choose a smaller network, or the inexact solve of --model.algorithm"
        )
    if not task.same_in_training:
        raise ConfigError(
            f"an exact local solve minimises one function of the parameters, and {type(task.network).__name__} is "
            "another one for every batch or pass, by its BatchNorm, running statistics or dropout; choose a network "
            "without these, or the inexact solve of --model.algorithm"
        )


def solvable_start(ctx: Context, local_solve: str) -> ModelState:
    """A fresh model, leaves [1, ...]; `exact` solves are checked by `check_solvable` before training."""
    models = ctx.task.init(1, ctx.seed)
    if local_solve == "exact":
        check_solvable(ctx.task, models)
    return models


def minimise(
    task: Task, models: ModelState, data: ClientData | Batch, penalty: Penalty, *, iterations: int = 16
) -> ModelState:
    """The minimiser of f_i(θ) + penalty, if strictly convex; exact for quadratics after one iteration.

    The number of iterations is fixed, so that it runs under `vmap` over clients. Each takes the best of a few step
    sizes, including 0, so that no iteration increases the objective. Step sizes within rounding count as equal and the
    largest is taken: near the minimum the objective is flat before the gradient is as small as possible.

    Args:
        task: network and loss.
        models: starting point, leaves [1, ...].
        data: all samples of the client, or some; f_i is their mean loss.
        penalty: the penalty.
        iterations: Newton steps.

    Raises:
        ConfigError: as `check_solvable`.

    Example:
        >>> from lit_fed.core.targets import Regression
        >>> task = Task.create(lambda: torch.nn.Linear(1, 1, bias=False), Regression())
        >>> one = Batch(torch.ones(1, 1), torch.tensor([4.0]), torch.zeros(1, dtype=torch.int64), torch.ones(1))
        >>> prox = Penalty(1.0, {"weight": torch.zeros(1, 1, 1)})  # ½(w − 4)² + ½w²
        >>> round(float(minimise(task, task.init(1, 0), one, prox).parameters["weight"]), 4)
        2.0
    """
    check_solvable(task, models)
    with full_precision(next(iter(models.parameters.values()))):
        return _minimise(task, models, data if isinstance(data, Batch) else data.batch, penalty, iterations)


def _minimise(task: Task, models: ModelState, batch: Batch, penalty: Penalty, iterations: int) -> ModelState:
    """`minimise` in the models' type: in a narrower type, rounding would hide the slope near the minimum."""
    mask = batch.mask.to(task.dtype)
    share = mask / mask.sum().clamp(min=1)
    task.set_mode(True)

    def objective(flat: Tensor) -> Tensor:
        parameters = _shaped(flat, models.parameters)
        single, buffers = tree.index((parameters, models.buffers), 0)
        loss, _ = task.weighted_loss(single, buffers, batch.x, batch.y, share)
        return loss + penalty.value(parameters)[0]

    def slope(flat: Tensor) -> tuple[Tensor, Tensor]:
        gradient = grad(objective)(flat)
        return gradient, gradient  # the first is differentiated

    flat = torch.cat([leaf.flatten() for leaf in models.parameters.values()])
    sizes = torch.tensor(STEP_SIZES, dtype=flat.dtype, device=flat.device)
    for _ in range(iterations):
        hessian, gradient = jacrev(slope, has_aux=True, chunk_size=64)(flat)
        step = torch.linalg.solve(hessian, gradient)
        reached = vmap(objective)(flat - sizes[:, None] * step).nan_to_num(nan=torch.inf)
        lowest = reached.min()
        rounding = ROUNDING * torch.finfo(flat.dtype).eps * (1 + lowest.abs())
        best = (reached <= lowest + rounding).to(torch.int8).argmax()  # the largest step size within rounding
        flat = flat - sizes.index_select(0, best.view(1)) * step
    return models._replace(parameters=_shaped(flat, models.parameters))


def _shaped(flat: Tensor, like: Leaves) -> Leaves:
    parts = torch.split(flat, [leaf.numel() for leaf in like.values()])
    return {name: part.view(leaf.shape) for (name, leaf), part in zip(like.items(), parts, strict=True)}
