"""Networks that are affine in their inputs, as matrices with a column of biases."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_fed.core.task import Task
from lit_fed.core.types import ModelState
from lit_fed.errors import ConfigError

__all__ = ["check_linear_task", "from_columns", "to_columns", "with_constant"]


def check_linear_task(task: Task, algorithm: str, kinds: tuple[str, ...]) -> None:
    """Refuse labels that an algorithm for linear models cannot learn, and networks that are none.

    Args:
        task: labels and network; the network has to have a matrix [K, d] and a vector [K] as its parameters.
        algorithm: the algorithm's name.
        kinds: names of the targets that it learns.

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
    """Whether random parameters turn random inputs into what an affine map makes of them."""
    like, num_outputs = task.fresh(1, 0), task.target.num_outputs
    shapes = sorted((tuple(leaf.shape[1:]) for leaf in like.parameters.values()), key=len)
    if like.buffers or [len(shape) for shape in shapes] != [1, 2] or {shape[0] for shape in shapes} != {num_outputs}:
        return False
    rng = torch.Generator().manual_seed(0)
    columns = torch.randn(1, num_outputs, shapes[1][1] + 1, generator=rng).to(task.dtype)
    x = torch.randn(4, shapes[1][1], generator=rng).to(task.dtype)
    try:
        found = task.outputs(ModelState(from_columns(columns, like.parameters), {}), x)
    except (RuntimeError, ValueError):  # it does not read flat inputs
        return False
    wanted = (with_constant(x) @ columns[0].T).unsqueeze(1)
    return found.shape == wanted.shape and bool(torch.allclose(found, wanted, rtol=1e-4, atol=1e-4))


def with_constant(x: Tensor, constant: Tensor | float = 1.0) -> Tensor:
    """Flattened inputs with one more feature of a fixed value, [B, d + 1]."""
    rows = x.flatten(1)
    return torch.cat([rows, torch.ones_like(rows[:, :1]) * constant], dim=1)


def to_columns(parameters: dict[str, Tensor]) -> Tensor:
    """Matrix [..., K, d] and biases [..., K] side by side, [..., K, d + 1]."""
    bias, weight = sorted(parameters.values(), key=lambda leaf: leaf.ndim)
    return torch.cat([weight, bias.unsqueeze(-1)], dim=-1)


def from_columns(columns: Tensor, like: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `to_columns`, in the types and under the names of other parameters."""
    widest = max(leaf.ndim for leaf in like.values())
    return {
        name: (columns[..., :-1] if leaf.ndim == widest else columns[..., -1]).to(leaf.dtype).contiguous()
        for name, leaf in like.items()
    }
