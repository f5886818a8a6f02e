"""Server optimizers: PyTorch's update rules as functions of leaves, gradient and state.

Server steps do not run under `vmap`, so any optimizer with tensors as state works. The state is a tree, stored in
checkpoints like models.
"""

# Annotations are not postponed, so that the command line can read those of algorithms in other modules.
import inspect
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import Leaves
from lit_fed.errors import ConfigError, check_settings

__all__ = ["ServerMoments", "ServerOptimizer"]


REFUSED = ("params", "lr", "maximize", "foreach", "fused", "capturable", "differentiable")
"""Arguments that are no option here: how they run, what has a setting of its own, and what turns steps round."""


class ServerMoments(NamedTuple):
    """The state of an optimizer."""

    steps: Tensor  # [] int64, steps taken so far
    kept: dict[str, Leaves]  # PyTorch's name, e.g. `exp_avg` -> leaves as the parameters, or numbers []


@dataclass(frozen=True)
class ServerOptimizer:
    """An optimizer of `torch.optim` at the server.

    Args:
        name: the class: SGD, Adam, AdamW, Adagrad, Adadelta, Adamax, NAdam, RAdam, RMSprop or Rprop.
        lr: learning rate of the first round.
        schedule: factor on `lr` by round, as `--model.solver.schedule`, ending in the same round.
        options: other arguments of the class, such as `{momentum: 0.9}`.
    """

    name: Literal["SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop"] = "SGD"
    lr: float = 1.0
    schedule: Literal["constant", "multi_step", "cosine", "sqrt", "linear"] = "constant"
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    def check(self, place: str) -> None:
        """Refuse values that are out of range or that the class does not take.

        Args:
            place: the option that holds these settings.

        Raises:
            ConfigError: naming the setting.
        """
        check_settings(self, {"lr": "> 0"}, place)
        known = [name for name in inspect.signature(getattr(torch.optim, self.name)).parameters if name not in REFUSED]
        for name, value in self.options.items():
            if name not in known:
                raise ConfigError(f"{place}.options has {name!r}; {self.name} takes {', '.join(known)}")
            numbers = value if isinstance(value, list | tuple) else [value]
            if not all(isinstance(one, bool | int | float) for one in numbers):
                raise ConfigError(
                    f"{place}.options: {name} is {value!r}; give a number, true, false or a list of numbers"
                )
        try:
            self._made([nn.Parameter(torch.zeros(1))])
        except (IndexError, TypeError, ValueError) as error:  # a ValueError names value and argument
            raise ConfigError(f"{place}.options: {error}; give values that torch.optim.{self.name} takes") from None

    def init(self, parameters: Leaves) -> ServerMoments:
        """The state before the first step."""
        optimizer, given = self._with(parameters, tree.zeros_like(parameters))
        optimizer.step()  # optimizers create their state in the first step, which ignores these zeros
        steps = torch.zeros((), dtype=torch.int64, device=next(iter(parameters.values())).device)
        return ServerMoments(steps, tree.zeros_like(_kept(optimizer, given, steps.device)))

    def update(
        self, ctx: Context, parameters: Leaves, gradient: Leaves, moments: ServerMoments
    ) -> tuple[Leaves, ServerMoments]:
        """Parameters and state after a gradient step at the rate of the round.

        Args:
            ctx: context of the server step.
            parameters: leaves of any shapes.
            gradient: leaves of the same shapes.
            moments: the state before.
        """
        optimizer, given = self._with(parameters, gradient, ctx)
        if int(moments.steps):
            for name, leaf in given.items():  # PyTorch counts steps on the CPU
                optimizer.state[leaf] = {
                    key: one[name].to(leaf.dtype, copy=True) if one[name].ndim else one[name].to("cpu", copy=True)
                    for key, one in moments.kept.items()
                    if name in one
                }
        optimizer.step()
        found = {name: leaf.detach() for name, leaf in given.items()}
        return found, ServerMoments(moments.steps + 1, _kept(optimizer, given, moments.steps.device))

    def _with(
        self, parameters: Leaves, gradient: Leaves, ctx: Context | None = None
    ) -> tuple[torch.optim.Optimizer, dict[str, nn.Parameter]]:
        """A fresh optimizer of copies of the parameters, and the copies with their gradient."""
        given = {name: nn.Parameter(leaf.detach().clone()) for name, leaf in parameters.items()}
        for name, leaf in given.items():
            leaf.grad = gradient[name].detach().to(leaf.dtype)
        return self._made(list(given.values()), ctx), given

    def _made(self, parameters: list[nn.Parameter], ctx: Context | None = None) -> torch.optim.Optimizer:
        rate = self.lr
        if ctx is not None:
            horizon = ctx.horizon or ctx.num_rounds
            rate = float(LocalSolver(lr=self.lr, schedule=self.schedule).lr_at(ctx.round_idx, horizon))
        made: torch.optim.Optimizer = getattr(torch.optim, self.name)(parameters, lr=rate, **self.options)
        return made


def _kept(optimizer: torch.optim.Optimizer, given: dict[str, nn.Parameter], device: torch.device) -> dict[str, Leaves]:
    """The state of an optimizer by PyTorch's names, then by the names of leaves."""
    kept: dict[str, Leaves] = {}
    for name, leaf in given.items():
        for key, value in optimizer.state[leaf].items():
            if isinstance(value, Tensor):
                kept.setdefault(key, {})[name] = value.to(device)
    return kept
