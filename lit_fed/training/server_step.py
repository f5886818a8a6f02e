"""The shared state as parameters and buffers, and the optimizer that writes it once per round."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lit_fed.core import tree
from lit_fed.core.types import Tree

__all__ = ["Assign", "register_leaves"]


class Assign(Optimizer):
    """Writes the server's new shared state, exactly, once per round.

    Lightning counts optimizer steps as `global_step`, by which checkpoints and loggers know time; so a round is a step.
    The new values come from `staged`, in the order of `leaves`, and are copied, whatever their type.

    Args:
        leaves: all leaves of the shared state, parameters and buffers.
        lr: local learning rate of the current round, shown by Lightning's learning-rate monitor; never used here.
    """

    def __init__(self, leaves: Iterable[Tensor], lr: float = 0.0) -> None:
        super().__init__(leaves, {"lr": lr})
        self._step_supports_amp_scaling = True  # a gradient scaler would otherwise look for gradients and skip the step
        self.staged: list[Tensor] = []

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Copy the staged leaves.

        Raises:
            ValueError: if a staged leaf differs in shape or type from the one it replaces.
        """
        loss = closure() if closure is not None else None
        leaves = [leaf for group in self.param_groups for leaf in group["params"]]
        for leaf, new in zip(leaves, _apart(leaves, self.staged), strict=True):
            if leaf.shape != new.shape or leaf.dtype != new.dtype:
                raise ValueError(
                    f"server_step returned a leaf {list(new.shape)} of {new.dtype} for one {list(leaf.shape)} of "
                    f"{leaf.dtype}; shapes and types of the shared state never change"
                )
            leaf.copy_(new)
        self.staged = []
        return loss


def _apart(leaves: list[Tensor], staged: list[Tensor]) -> list[Tensor]:
    """The staged leaves; one that is a view of a leaf, such as a row of it, is copied before that is written."""
    written = {leaf.untyped_storage().data_ptr() for leaf in leaves}

    def apart(leaf: Tensor, new: Tensor) -> Tensor:
        stays = new.data_ptr() == leaf.data_ptr() and new.stride() == leaf.stride()
        return new if stays or new.untyped_storage().data_ptr() not in written else new.clone()

    return [apart(leaf, new) for leaf, new in zip(leaves, staged, strict=True)]


def register_leaves(module: nn.Module, shared: Tree) -> list[str]:
    """Register leaves of models as parameters and all others as buffers; returns their names in order."""
    trainable = {id(leaf) for models in tree.models(shared) for leaf in models.parameters.values()}
    names = []
    for path, leaf in tree.items(shared):
        name = path.replace("/", "__").replace(".", "_")
        if id(leaf) in trainable:
            module.register_parameter(name, nn.Parameter(leaf.clone()))
        else:
            module.register_buffer(name, leaf.clone())
        names.append(name)
    return names
