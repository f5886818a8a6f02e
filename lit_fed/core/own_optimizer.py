"""The optimizer of a module's `configure_optimizers` as a local solver: by its rule, or the optimizer itself."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.local_solver import OPTIMIZERS, LocalSolver, OptimizerState
from lit_fed.core.own_module import OwnModule, defines
from lit_fed.core.types import Leaves, ModelState, Tree
from lit_fed.errors import ConfigError

__all__ = ["OwnOptimizer", "ScheduledSolver", "own_solver"]

OF_OPTIMIZER = ("optimizer", "schedule", "momentum", "nesterov", "weight_decay", "betas", "eps")
"""Fields of a solver in whose place `configure_optimizers` stands; the others, apart from the rate, are local work."""

UNUSED = ("params", "lr", "initial_lr", "foreach", "capturable", "fused", "differentiable", "decoupled_weight_decay")
"""Options of PyTorch's optimizers that change no number, or are read elsewhere."""

SCHEDULED = ("params", "initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum")
"""Entries of a group that are no options of its optimizer."""

Group = tuple[tuple[str, ...], dict[str, Any]]
"""Names of the leaves of a group of an optimizer, and its options."""


@dataclass(frozen=True)
class ScheduledSolver(LocalSolver):
    """A solver whose rate follows a scheduler of PyTorch.

    Args:
        rates: the rate of each round; the last one holds afterwards. (): the rate is constant.
        of_settings: the solver of the settings, by which runs are compared.
    """

    rates: tuple[float, ...] = ()
    of_settings: LocalSolver | None = None

    @property
    def given(self) -> LocalSolver:
        return self.of_settings or self

    def lr_at(self, round_idx: int, num_rounds: int) -> Tensor:
        rate = self.rates[min(round_idx, len(self.rates) - 1)] if self.rates else self.rate
        return torch.tensor(rate, dtype=torch.float64)


@dataclass(frozen=True)
class OwnOptimizer(ScheduledSolver):
    """An optimizer of any class, one for each model of a client, for clients one after another.

    Args:
        kind: its class; `optimizer` is the path of this class.
        defaults: its arguments.
        groups: its groups.
    """

    kind: type[torch.optim.Optimizer] = field(default=torch.optim.SGD, compare=False)
    defaults: dict[str, Any] = field(default_factory=dict, hash=False)
    groups: tuple[Group, ...] = field(default=(), hash=False)

    def _try_rule(self) -> None:
        """An optimizer is no rule, and needs no trial."""

    def init(self, models: ModelState) -> OptimizerState:
        """The form of its state, from a step without gradients; at step 0 the optimizer makes its own values."""
        zeros = {name: torch.zeros_like(leaf) for name, leaf in models.parameters.items()}
        start = OptimizerState(torch.zeros((), dtype=torch.float64), {}, {})
        state = self._updated(models.parameters, zeros, start, torch.tensor(self.rate))[1]
        return state._replace(step=start.step)

    def _updated(
        self, parameters: Leaves, gradient: Leaves, optimizer: OptimizerState, lr: Tensor
    ) -> tuple[Leaves, OptimizerState]:
        gradient = gradient if self.clip_norm is None else self._clip(gradient)
        num_models = len(next(iter(parameters.values())))
        given: Any = (parameters, gradient, optimizer.first)
        goes_on, factor = bool(optimizer.step), float(lr) / self.rate if self.rate else 1.0
        each = [self._model_updated(tree.index(given, m), goes_on, factor) for m in range(num_models)]
        new, state = tree.stack(each)
        return new, OptimizerState(optimizer.step + 1, state, {})

    def _model_updated(
        self, given: tuple[Leaves, Leaves, Tree], goes_on: bool, factor: float
    ) -> tuple[Leaves, Tree]:  # fmt: skip
        """One model after a step, and the state of its optimizer by leaf and part, from both and the gradient."""
        parameters, gradient, state = given
        leaves = {name: leaf.detach().clone().requires_grad_() for name, leaf in parameters.items()}
        groups = [
            options | {"params": [leaves[name] for name in names if name in leaves]} for names, options in self.groups
        ]
        optimizer = self.kind([one for one in groups if one["params"]], **self.defaults)
        for name, leaf in leaves.items():
            leaf.grad = gradient[name].clone()
            if goes_on and name in state:
                optimizer.state[leaf] = {part: value.clone() for part, value in state[name].items()}
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * factor
        optimizer.step()
        held = {
            name: {part: torch.as_tensor(value) for part, value in optimizer.state[leaf].items() if value is not None}
            for name, leaf in leaves.items()
        }
        return {name: leaf.detach() for name, leaf in leaves.items()}, held


def own_solver(own: OwnModule, given: LocalSolver, num_rounds: int, epoch_steps: int) -> tuple[LocalSolver, str]:
    """The solver with the optimizer of a module, unless settings name another; and a line that says what is taken.

    `lr` of the settings replaces the rate alone.

    Args:
        own: the module.
        given: the solver of the settings.
        num_rounds: of the training.
        epoch_steps: local steps of an epoch of the largest client.

    Raises:
        ConfigError: if the module has several optimizers, or one that no client can run.
    """
    usual, name = LocalSolver(), f"{own.name}.configure_optimizers"
    if not defines(own.network, "configure_optimizers"):
        return given, ""
    chosen = [option for option in OF_OPTIMIZER if getattr(given, option) != getattr(usual, option)]
    if chosen:
        return given, f"--model.solver.{chosen[0]} is given, so that {name} is not used"
    epochs = num_rounds * max(given.local_epochs, 1)
    optimizer, scheduler = _configured(own, name, epochs, epochs * epoch_steps)
    first = optimizer.param_groups[0]
    start = float(first.get("initial_lr", first["lr"]))
    base = float(first.get("max_lr", start))  # of a scheduler that rises to it
    rate = base if given.lr is None else given.rate
    groups = _groups(own, name, optimizer)
    rates, scheduled = _rates(optimizer, scheduler, num_rounds, max(given.local_epochs, 1), epoch_steps, name)
    rates = tuple(one * rate / base if base else one for one in rates)
    work: dict[str, Any] = {
        one.name: getattr(given, one.name) for one in fields(LocalSolver) if one.name not in (*OF_OPTIMIZER, "lr")
    }
    work["of_settings"] = given
    shown = f"{type(optimizer).__name__}(lr={rate:g}) of {name}{scheduled}"
    rule = _as_rule(optimizer)
    if isinstance(rule, dict):
        return ScheduledSolver(**work, **rule, lr=rate, rates=rates), f"clients step by {shown}"
    kind = type(optimizer)
    known = set(inspect.signature(kind).parameters) - {"lr"}
    own_defaults = {key: value for key, value in optimizer.defaults.items() if key in known} | {"lr": rate}
    groups = tuple((names, options | {"lr": options["lr"] * rate / start}) for names, options in groups)
    solver = OwnOptimizer(
        **work, lr=rate, rates=rates, optimizer=f"{kind.__module__}.{kind.__name__}", kind=kind, defaults=own_defaults,
        groups=groups,
    )  # fmt: skip
    return solver, f"clients run, one after another since {rule}, {shown}"


def _configured(own: OwnModule, name: str, epochs: int, steps: int) -> tuple[torch.optim.Optimizer, Any]:
    """The optimizer of a module, and its scheduler, possibly with settings."""
    own.run.max_epochs, own.run.estimated_stepping_batches = epochs, steps
    found: Any = own.call_plain("configure_optimizers")
    scheduler: Any = None
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], list | tuple):
        found, schedulers = found
        scheduler = schedulers[0] if schedulers else None
        if len(schedulers) > 1:
            raise ConfigError(f"{name} returns {len(schedulers)} schedulers, and a client has one; chain them in one")
    if isinstance(found, list | tuple):
        if len(found) != 1:
            raise ConfigError(
                f"{name} returns {len(found)} optimizers, and a client steps by one; return one with several groups of "
                "parameters"
            )
        found = found[0]
    if isinstance(found, Mapping):
        found, scheduler = found.get("optimizer"), found.get("lr_scheduler", scheduler)
    if not isinstance(found, torch.optim.Optimizer):
        raise ConfigError(f"{name} returns {type(found).__name__}; return an optimizer of torch.optim, or leave it out")
    if isinstance(found, torch.optim.LBFGS):
        raise ConfigError(f"{name} returns LBFGS, whose closure trains by itself; return another optimizer")
    return found, scheduler


def _groups(own: OwnModule, name: str, optimizer: torch.optim.Optimizer) -> tuple[Group, ...]:
    """The groups of an optimizer by names of leaves.

    Raises:
        ConfigError: if it does not step all trained leaves.
    """
    trained = {id(leaf): path for path, leaf in own.network.named_parameters() if leaf.requires_grad}
    groups = tuple(
        (
            tuple(trained[id(leaf)] for leaf in one["params"] if id(leaf) in trained),
            {key: value for key, value in one.items() if key not in SCHEDULED}
            | {"lr": one.get("initial_lr", one["lr"])},
        )
        for one in optimizer.param_groups
    )
    left = [path for path in trained.values() if not any(path in names for names, _ in groups)]
    if left:
        raise ConfigError(
            f"{name} leaves out {left[0]}, one of {len(left)} leaves that require a gradient; give all of them to the "
            "optimizer, or --model.trainable with patterns of those that it steps"
        )
    return groups


def _rates(
    optimizer: torch.optim.Optimizer, scheduler: Any, num_rounds: int, epochs: int, epoch_steps: int, name: str
) -> tuple[tuple[float, ...], str]:  # fmt: skip
    """The rate at the start of each round, by the scheduler itself; and how that is said."""
    settings = dict(scheduler) if isinstance(scheduler, Mapping) else {"scheduler": scheduler}
    scheduler = settings.get("scheduler")
    if scheduler is None:
        return (), ""
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ConfigError(
            f"{name} returns ReduceLROnPlateau, which waits for a metric of one machine; return another scheduler, or "
            "give --model.solver.schedule"
        )
    before = _momenta(optimizer)
    by_step, frequency = settings.get("interval", "epoch") == "step", int(settings.get("frequency", 1) or 1)
    rates, done = [], 0
    for round_idx in range(num_rounds):
        wanted = round_idx * epochs * (epoch_steps if by_step else 1) // frequency
        for _ in range(wanted - done):
            optimizer.step()  # without gradients nothing moves; PyTorch warns of schedulers that step first
            scheduler.step()
        done = wanted
        rates.append(float(optimizer.param_groups[0]["lr"]))
    for group in optimizer.param_groups:
        group["lr"] = group.get("initial_lr", group["lr"])
    unit = "step of the largest client" if by_step else "local epoch"
    moved = ", without its changes of momentum" if _momenta(optimizer) != before else ""
    return tuple(rates), f", with {type(scheduler).__name__} by {unit}, one rate a round{moved}"


def _momenta(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Entries of groups that schedulers change beside the rate."""
    return [(one.get("momentum"), one.get("betas")) for one in optimizer.param_groups]


def _as_rule(optimizer: torch.optim.Optimizer) -> dict[str, Any] | str:
    """Fields of a solver with the same rule, or why there are none."""
    kind, groups = type(optimizer), optimizer.param_groups
    if not kind.__module__.startswith("torch.") or kind.__name__.lower() not in OPTIMIZERS:
        return f"{kind.__name__} has no rule here"
    options = [{key: value for key, value in one.items() if key not in (*SCHEDULED, "param_names")} for one in groups]
    if any(one != options[0] for one in options[1:]):
        return f"its {len(groups)} groups differ"
    left = {key: value for key, value in options[0].items() if key not in UNUSED}
    taken: dict[str, Any] = {"optimizer": kind.__name__.lower()}
    for name in ("momentum", "nesterov", "weight_decay", "betas", "eps"):
        if name in left:
            taken[name] = left.pop(name)
    if unknown := [key for key, value in left.items() if value]:
        return f"it has {', '.join(unknown)}"
    return taken
