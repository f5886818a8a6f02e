"""Linear models: parameters as a matrix with a column of biases, and losses h(a) of a margin a = y·f(x), y = ±1."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name everybody knows

from lit_fed.core.task import Task
from lit_fed.core.types import Leaves, ModelState
from lit_fed.errors import ConfigError

__all__ = [
    "MarginLoss", "best_dual", "check_linear_task", "from_columns", "logistic_root", "margin_loss", "margin_prox",
    "to_columns", "with_constant",
]  # fmt: skip


def check_linear_task(task: Task, algorithm: str, kinds: tuple[str, ...]) -> None:
    """Refuse labels that an algorithm for linear models cannot learn, and networks that are not linear.

    Args:
        task: labels and network, whose parameters must be a matrix [K, d] and a vector [K].
        algorithm: the algorithm's name.
        kinds: names of the supported targets.

    Raises:
        ConfigError: naming the kind of labels or the network.
    """
    if task.target.name not in kinds:
        raise ConfigError(
            f"{algorithm} learns {' and '.join(kinds)} labels, and these are {task.target.name}; give another "
            "--data.dataset or --model.algorithm"
        )
    if not _is_affine(task):
        raise ConfigError(
            f"{algorithm} trains linear models, and {type(task.network).__name__} is no affine map of the flattened "
            "input with a matrix and a vector to train; give --model.network Linear"
        )


def _is_affine(task: Task) -> bool:
    """Whether outputs equal those of an affine map for random parameters and inputs."""
    like, num_outputs = task.fresh(1, 0), task.target.num_outputs
    shapes = sorted((tuple(leaf.shape[1:]) for leaf in like.parameters.values()), key=len)
    if like.buffers or [len(shape) for shape in shapes] != [1, 2] or {shape[0] for shape in shapes} != {num_outputs}:
        return False
    rng = torch.Generator().manual_seed(0)
    columns = torch.randn(1, num_outputs, shapes[1][1] + 1, generator=rng).to(task.dtype)
    x = torch.randn(4, shapes[1][1], generator=rng).to(task.dtype)
    try:
        found = task.outputs(ModelState(from_columns(columns, like.parameters), {}), x)
    except (RuntimeError, ValueError):  # it does not accept flat inputs
        return False
    wanted = (with_constant(x) @ columns[0].T).unsqueeze(1)
    return found.shape == wanted.shape and bool(torch.allclose(found, wanted, rtol=1e-4, atol=1e-4))


def with_constant(x: Tensor, constant: Tensor | float = 1.0) -> Tensor:
    """Flattened inputs with one more feature of a fixed value, [B, d + 1]."""
    rows = x.flatten(1)
    return torch.cat([rows, torch.ones_like(rows[:, :1]) * constant], dim=1)


def to_columns(parameters: Leaves) -> Tensor:
    """Matrix [..., K, d] and biases [..., K] side by side, [..., K, d + 1]."""
    bias, weight = sorted(parameters.values(), key=lambda leaf: leaf.ndim)
    return torch.cat([weight, bias.unsqueeze(-1)], dim=-1)


def from_columns(columns: Tensor, like: Leaves) -> Leaves:
    """The inverse of `to_columns`, with the names and types of `like`."""
    widest = max(leaf.ndim for leaf in like.values())
    return {
        name: (columns[..., :-1] if leaf.ndim == widest else columns[..., -1]).to(leaf.dtype).contiguous()
        for name, leaf in like.items()
    }


# ---------------------------------------------------------------------- losses of a margin
MarginLoss = Literal["hinge", "logistic"]

ITERATIONS = 24
"""Newton steps of `logistic_root`: at most about ln(slope) of them pass before it converges quadratically."""


def margin_loss(loss: MarginLoss, margin: Tensor) -> Tensor:
    """max(0, 1 − a) or log(1 + exp(−a)), elementwise."""
    return (1 - margin).clamp(min=0) if loss == "hinge" else -F.logsigmoid(margin)


def best_dual(loss: MarginLoss, dual: Tensor, margin: Tensor, curvature: Tensor) -> Tensor:
    """The dual variable β in [0, 1] of a sample that maximises −h*(−β) − a·(β − β₀) − curvature/2·(β − β₀)².

    Args:
        loss: h.
        dual: β₀, any shape.
        margin: a under the model of β₀, the same shape.
        curvature: growth of the margin with β, > 0.

    Example:
        >>> best_dual("hinge", torch.tensor(0.25), torch.tensor(0.5), torch.tensor(1.0)).item()
        0.75
    """
    if loss == "hinge":
        return (dual + (1 - margin) / curvature).clamp(0, 1)
    return torch.sigmoid(logistic_root(curvature * dual - margin, curvature))


def margin_prox(loss: MarginLoss, point: Tensor, weight: float) -> Tensor:
    """The minimiser over a of h(a) + weight/2·(a − point)², elementwise.

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
