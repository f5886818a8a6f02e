"""The server's state as parameters and buffers of a module, and the optimizer that writes it once per round."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from inspect import unwrap
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer

from lit_fed.core import tree
from lit_fed.core.task import Task
from lit_fed.core.types import Tree
from lit_fed.training.frozen_part import FrozenPart
from lit_fed.wrappers.base import buffer_names

__all__ = ["Assign", "ModuleServer", "register_leaves"]


class ModuleServer:
    """A server whose state a LightningModule holds, so that checkpoints restore it and devices are Lightning's affair.

    Leaves of models become parameters of the module; all other leaves and the number of rounds become buffers, as does
    what is frozen, which no checkpoint holds.

    Args:
        module: the module.
        task: the task.
        shared: the initial shared state.
        source: where the network came from, for messages.
    """

    def __init__(self, module: LightningModule, task: Task, shared: Tree, source: str = "") -> None:
        self._module, self._task, self.initial_shared = module, task, shared
        self.frozen_part = FrozenPart(module, task.frozen, source)
        self._names = register_leaves(module, shared)
        module.register_buffer("rounds", torch.zeros((), dtype=torch.int64))

    def start_from(self, task: Task, shared: Tree) -> None:
        """Take another task, whose models start elsewhere, and what clients without a state of their own start from."""
        self._task, self.initial_shared = task, shared

    @property
    def task(self) -> Task:
        """The task with what is frozen on the module's device."""
        return replace(self._task, frozen=self.frozen_part.leaves) if self._task.frozen else self._task

    @property
    def leaves(self) -> list[Tensor]:
        """The leaves of the committed shared state, as the module holds them."""
        return [getattr(self._module, name) for name in self._names]

    @property
    def shared(self) -> Tree:
        """The committed shared state; never tracked by autograd."""
        return tree.rebuild(self.initial_shared, [leaf.detach() for leaf in self.leaves])

    @property
    def rounds_done(self) -> int:
        """Completed rounds."""
        return int(self._module.rounds)  # type: ignore[arg-type]

    @property
    def device(self) -> torch.device:
        """The module's."""
        return self._module.device

    def overwrite(self, shared: Tree) -> None:
        """Take another shared state, between rounds and without counting one."""
        for leaf, new in zip(self.leaves, tree.leaves(shared), strict=True):
            leaf.data.copy_(new)

    def commit(self, shared: Tree) -> None:
        """Write the new shared state by a step of the optimizer, which Lightning counts, and count the round."""
        optimizer: Any = self._module.optimizers()
        optimizer.optimizer.staged = tree.leaves(shared)
        optimizer.step()
        rounds: Any = self._module.rounds
        rounds += 1


class Assign(Optimizer):
    """Writes the server's new shared state, exactly, once per round.

    Lightning counts optimizer steps as `global_step`, by which checkpoints and loggers know time; so a round is a step.
    The new values come from `staged`, in the order of `leaves`, and are copied, whatever their type.

    Args:
        leaves: all leaves of the shared state, parameters and buffers.
        lr: local learning rate of the current round, shown by Lightning's learning-rate monitor; never used here.
    """

    # PyTorch keeps its compiler out of these, and loads it for that, which takes longer than a small run
    add_param_group, zero_grad = unwrap(Optimizer.add_param_group), unwrap(Optimizer.zero_grad)
    state_dict, load_state_dict = unwrap(Optimizer.state_dict), unwrap(Optimizer.load_state_dict)

    def __init__(self, leaves: Iterable[Tensor], lr: float = 0.0) -> None:
        super().__init__(leaves, {"lr": lr})
        self._step_supports_amp_scaling = True  # a gradient scaler would otherwise look for gradients and skip the step
        self.staged: list[Tensor] = []

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Copy the staged leaves, which have the shapes and types of those that they replace (`as_shared`)."""
        loss = closure() if closure is not None else None
        leaves = [leaf for group in self.param_groups for leaf in group["params"]]
        for leaf, new in zip(leaves, _apart(leaves, self.staged), strict=True):
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
    names = buffer_names(path for path, _ in tree.items(shared))
    for name, leaf in zip(names, tree.leaves(shared), strict=True):
        if id(leaf) in trainable:
            module.register_parameter(name, nn.Parameter(leaf.clone()))
        else:
            module.register_buffer(name, leaf.clone())
    return names
