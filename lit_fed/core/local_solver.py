"""The local solver: optimizers as pure functions state -> state, their learning rate over rounds, and penalties."""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.objective import Objective
from lit_fed.core.task import Task
from lit_fed.core.types import Batch, Leaves, LocalWork, ModelState
from lit_fed.errors import ConfigError, check_settings
from lit_fed.system.upgrade import instead_of

__all__ = [
    "BY_CLIENT",
    "ByClient",
    "LocalSolver",
    "OptimizerState",
    "Penalty",
    "StepInputs",
    "UpdateRule",
    "is_rule_of_torch",
]

OPTIMIZERS = ("sgd", "adam", "adamw")
"""Names of PyTorch's update rules; each acts on every number by itself."""

DEFAULT_RATE = 0.1
"""Learning rate where neither settings nor a module name one."""

UpdateRule = Callable[..., Sequence[Tensor]]
"""`(solver, step, gradient, first, second) -> (direction, first, second)`, for each leaf [M, ...].

`step` [] counts from 1; `first` and `second` are what the last step returned, at first zeros like the leaf. The
learning rate times `direction` is subtracted. Weight decay and clipping come before. A rule consists of functions of
torch, without branches by values, since clients may run at once.
"""

MOST_STEPS = 10**6
"""Upper limit of local epochs or steps of a round; a larger plan would not fit into memory."""


class ByClient(NamedTuple):
    """An option of the solver that has values for some clients, by patterns of their names."""

    wanted: str
    fits: Callable[[float], bool]


BY_CLIENT = {
    "client_lr": ByClient("factors > 0", lambda one: 0 < one < math.inf),
    "client_work": ByClient("shares above 0 and up to 1", lambda one: 0 < one <= 1),
    "client_batch_size": ByClient(
        "whole numbers from 0 to 2^31", lambda one: 0 <= one <= 2**31 and float(one).is_integer()
    ),
}
"""These options, by name: `Context.of_clients` has their values, and a node is sent those of its own clients."""


class OptimizerState(NamedTuple):
    """State of the local optimizer; dicts are empty if the method has no moments."""

    step: Tensor  # [] number of updates so far
    first: Leaves  # momentum or first moment, leaves as the parameters; other optimizers: see their rules
    second: Leaves  # second moment, leaves as the parameters


class StepInputs(NamedTuple):
    """Arguments of `LocalSolver.step`."""

    models: ModelState
    optimizer: OptimizerState
    batch: Batch
    lr: Tensor
    weight: Tensor | None
    penalty: Penalty | None
    objective: Objective | None
    moving: frozenset[str] | None


def is_searched(rate: Any) -> bool:
    """Whether a value of `lr` leaves the rate to a search: `auto`, or a list."""
    return isinstance(rate, str | list | tuple)


@dataclass(frozen=True)
class LocalSolver:
    """Local optimizer and local work, for every algorithm.

    Args:
        optimizer: `sgd`, `adam` or `adamw`, with PyTorch's update rules: weight decay is added to the gradient, but
            shrinks the parameters directly in `adamw` (https://arxiv.org/abs/1711.05101). PyTorch's classes of these
            rules are taken by their paths, too, such as `torch.optim.Adam`. The path of a function such as
            `my_file.lion` takes it as an `UpdateRule`.
        lr: learning rate of the first round; `auto`, or a list of rates: a fit searches it on validation samples before
            its first round, among six rates or those of the list; null: 0.1, or the rate of a module's own
            `configure_optimizers`.
        schedule: factor on `lr` by round t of R: `constant`; `multi_step`, ×0.1 at R//2 and again at 3·(R//4);
            `cosine`, (1 + cos(πt/R))/2; `sqrt`, 1/√(t+1); `linear`, 1/(t+1); `exponential`, γᵗ.
        schedule_decay: γ of `exponential`, in (0, 1].
        schedule_rounds: R, after which `multi_step` and `cosine` keep their last rate; null takes the rounds of the
            run. A run that is continued with more rounds keeps its first R.
        adapt_lr: learning rate of adaptation before serving; null takes `lr`, since the decayed rate of the last rounds
            is too small.
        momentum: momentum of `sgd`, in [0, 1).
        nesterov: Nesterov's form of the momentum of `sgd`.
        weight_decay: λ of the L2 penalty λ/2·‖θ‖²; `adamw` shrinks parameters by η·λ in each step.
        betas: decay of the two moments of `adam` and `adamw`.
        eps: added to the root of the second moment.
        local_epochs: passes over the local samples per round; 0: no local steps.
        local_steps: optimizer steps per round instead of epochs.
        straggler_fraction: share of the clients, sampled in every round, that take fewer local steps: a number drawn
            uniformly from one to all (FedProx, https://arxiv.org/abs/1812.06127, 5.2).
        client_lr: factors on the learning rate of some clients, adaptation included, by patterns of their names, such
            as `{hospital_*: 0.5}`; also on rates of its models that the algorithm has beside `lr`. If several match,
            the last one applies; if none matches, the factor is 1.
        client_work: share of the local steps of a round, in (0, 1], that some clients take, by patterns of their names:
            `{phone_*: 0.5}` takes 2 of 4 epochs. A client takes at least one step, and passes that measure gradients in
            whole. Its weight in averages is unchanged.
        client_batch_size: batch size of some clients, by patterns of their names: `{phone_*: 8}`; 0 takes the whole
            local set. Others have `--data.batch_size`, and so do unseen clients.
        clip_norm: maximum Euclidean norm of the gradient of each model.
        persist_optimizer: keep each client's optimizer state between rounds, as the official FedEM code does;
            otherwise every round starts with a fresh one.
    """

    optimizer: str = "sgd"
    lr: float | Literal["auto"] | tuple[float, ...] | None = None
    schedule: Literal["constant", "multi_step", "cosine", "sqrt", "linear", "exponential"] = "constant"
    schedule_decay: float = 0.99
    schedule_rounds: int | None = None
    adapt_lr: float | None = None
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    local_epochs: int = 1
    local_steps: int | None = None
    straggler_fraction: float = 0.0
    client_lr: dict[str, float] = field(default_factory=dict, hash=False)
    client_work: dict[str, float] = field(default_factory=dict, hash=False)
    client_batch_size: dict[str, int] = field(default_factory=dict, hash=False)
    clip_norm: float | None = None
    persist_optimizer: bool = False

    def __post_init__(self) -> None:
        if is_rule_of_torch(self.optimizer):
            object.__setattr__(self, "optimizer", self.optimizer.rpartition(".")[2].lower())
        if gone := instead_of(f"model.solver.optimizer {self.optimizer}"):
            raise ConfigError("\n".join(gone))
        if isinstance(self.lr, list):
            object.__setattr__(self, "lr", tuple(self.lr))
        rates: tuple[Any, ...] = self.lr if isinstance(self.lr, tuple) else (self.lr,)
        schedules = ("constant", "multi_step", "cosine", "sqrt", "linear", "exponential")
        checks = {
            "optimizer": (
                self.optimizer in OPTIMIZERS or _is_path(self.optimizer),
                f"one of {', '.join(OPTIMIZERS)}, or the path of a function such as my_file.lion",
            ),
            "schedule": (self.schedule in schedules, f"one of {', '.join(schedules)}"),
            "lr": (
                self.lr in (None, "auto") or (not isinstance(self.lr, str) and min(rates, default=-1) >= 0),
                "a number >= 0, auto, or a list of numbers >= 0",
            ),
            "schedule_decay": (
                0 < self.schedule_decay <= 1 and (self.schedule == "exponential" or self.schedule_decay == 0.99),
                "a number in (0, 1], with the schedule exponential",
            ),
            "schedule_rounds": (self.schedule_rounds is None or self.schedule_rounds >= 1, "a number >= 1, or null"),
            "adapt_lr": (self.adapt_lr is None or self.adapt_lr >= 0, "a number >= 0, or null"),
            "momentum": (0 <= self.momentum < 1, "a number in [0, 1)"),
            "nesterov": (
                not self.nesterov or (self.momentum > 0 and self.optimizer == "sgd"),
                "false, or momentum > 0 with sgd",
            ),
            "weight_decay": (self.weight_decay >= 0, "a number >= 0"),
            "betas": (all(0 <= beta < 1 for beta in self.betas), "two numbers in [0, 1)"),
            "local_epochs": (0 <= self.local_epochs <= MOST_STEPS, f"a whole number from 0 to {MOST_STEPS}"),
            "local_steps": (
                self.local_steps is None or 1 <= self.local_steps <= MOST_STEPS,
                f"a whole number from 1 to {MOST_STEPS}, or null",
            ),
            "straggler_fraction": (0 <= self.straggler_fraction <= 1, "a number in [0, 1]"),
            **{name: (all(map(one.fits, getattr(self, name).values())), one.wanted) for name, one in BY_CLIENT.items()},
            "clip_norm": (self.clip_norm is None or self.clip_norm > 0, "a number > 0, or null"),
        }
        check_settings(self, checks, "--model.solver")
        if self.optimizer not in OPTIMIZERS:
            self._try_rule()

    def _try_rule(self) -> None:
        """Refuse a user-defined rule that does not return three tensors like the gradient, of clients at once."""
        rule, place = _rule(self.optimizer), f"--model.solver.optimizer {self.optimizer}"
        wanted = "three tensors of the gradient's shape and type"

        def fits(leaf: Tensor) -> Tensor:
            found = rule(self, torch.ones((), dtype=torch.float64), leaf, leaf, leaf)
            alike = isinstance(found, tuple | list) and [(one.shape, one.dtype) for one in found]
            return torch.full_like(leaf, alike == 3 * [(leaf.shape, leaf.dtype)])

        try:
            result = torch.func.vmap(fits)(torch.zeros(2, 1, 3))
        except Exception as error:  # user-defined code may raise anything
            raise ConfigError(f"{place} fails on zeros of two clients ({error}); let it return {wanted}") from error
        if not result.all():
            raise ConfigError(f"{place} does not return {wanted}; see `UpdateRule`")

    @property
    def rate(self) -> float:
        """`lr` as a number.

        Raises:
            ConfigError: if it is still to be searched.
        """
        if isinstance(self.lr, str | tuple):
            raise ConfigError(f"--model.solver.lr is {self.lr}, which only a fit searches; give a number")
        return DEFAULT_RATE if self.lr is None else self.lr

    @property
    def given(self) -> LocalSolver:
        """The solver of the settings, by which runs are compared: with a rate, unless it is that of a module."""
        return self if self.lr is not None else replace(self, lr=DEFAULT_RATE)

    @property
    def work(self) -> LocalWork:
        """The local work of a round."""
        epochs = None if self.local_steps else self.local_epochs
        return LocalWork(epochs, self.local_steps, straggler_fraction=self.straggler_fraction)

    @property
    def whole_work(self) -> LocalWork:
        """The local work of a round without stragglers: that of an unseen client on what training would give it."""
        return self.work._replace(straggler_fraction=0.0)

    @property
    def has_horizon(self) -> bool:
        """Whether the rate of a round depends on the number of rounds."""
        return self.schedule in ("multi_step", "cosine")

    def lr_at(self, round_idx: int, num_rounds: int) -> Tensor:
        """Learning rate of round `round_idx`, [] float64; R is `schedule_rounds`, else `num_rounds`.

        Example:
            >>> [round(float(LocalSolver(lr=1.0, schedule="multi_step").lr_at(t, 8)), 3) for t in (3, 4, 6, 8)]
            [1.0, 0.1, 0.01, 0.01]
        """
        horizon = self.schedule_rounds or num_rounds
        # a milestone at 0 (fewer than four rounds) would decay the rate before the first round
        passed = sum(0 < milestone <= round_idx for milestone in (horizon // 2, 3 * (horizon // 4)))
        factor = {
            "constant": 1.0,
            "multi_step": 0.1**passed,
            "cosine": (1 + math.cos(math.pi * min(round_idx, horizon - 1) / horizon)) / 2,
            "sqrt": (round_idx + 1) ** -0.5,
            "linear": 1 / (round_idx + 1),
            "exponential": self.schedule_decay**round_idx,
        }[self.schedule]
        return torch.tensor(self.rate * factor, dtype=torch.float64)

    def lr_in(self, phase: str, round_idx: int, num_rounds: int) -> Tensor:
        """Learning rate of a phase, [] float64: `adapt_lr` in the phase `adapt`, else that of the round."""
        if phase != "adapt":
            return self.lr_at(round_idx, num_rounds)
        return torch.tensor(self.rate if self.adapt_lr is None else self.adapt_lr, dtype=torch.float64)

    def of_clients(self, names: Sequence[str], batch_size: int) -> dict[str, Tensor]:
        """Values of the options of `BY_CLIENT` that are given, for the clients with these names, [T] float64 each.

        Args:
            names: of the clients, [T].
            batch_size: that of clients whose names match no pattern.

        Raises:
            ConfigError: naming a pattern that matches no client.

        Example:
            >>> LocalSolver(client_lr={"*": 0.5, "b": 2.0}).of_clients(["a", "b"], 32)["client_lr"].tolist()
            [0.5, 2.0]
        """
        usual = {"client_batch_size": float(batch_size)}
        return {name: self._values(name, names, usual.get(name, 1.0)) for name in BY_CLIENT if getattr(self, name)}

    def _values(self, option: str, names: Sequence[str], usual: float) -> Tensor:
        values = torch.full((len(names),), usual, dtype=torch.float64)
        for pattern, value in getattr(self, option).items():
            matching = [position for position, name in enumerate(names) if fnmatchcase(name, str(pattern))]
            if not matching:
                raise ConfigError(
                    f"--model.solver.{option} has {pattern!r}, which matches no client of the training; clients are "
                    f"called {', '.join(names[:4])}{', …' if len(names) > 4 else ''}"
                )
            values[matching] = value
        return values

    def init(self, models: ModelState) -> OptimizerState:
        """Fresh optimizer state for these models."""
        step = torch.zeros((), dtype=torch.float64, device=next(iter(models.parameters.values())).device)
        leaves, kept = models.parameters.items(), int(self.momentum > 0) if self.optimizer == "sgd" else 2
        # expanded from one number, since most are read at most once
        moments = [{name: leaf.new_zeros(()).expand_as(leaf) for name, leaf in leaves} for _ in range(kept)]
        return OptimizerState(step, *moments, *[{}] * (2 - kept))

    def step(
        self, task: Task, models: ModelState, optimizer: OptimizerState, batch: Batch, lr: Tensor, *,
        weight: Tensor | None = None, penalty: Penalty | None = None, objective: Objective | None = None,
        moving: frozenset[str] | None = None,
    ) -> tuple[ModelState, OptimizerState, Tensor]:  # fmt: skip
        """One step of every model on one batch, each sample's loss multiplied by `weight` [B, M].

        The gradient of a `penalty` is added to that of the loss before clipping, weight decay and momentum. An
        `objective` replaces the loss of the task. `moving` names the leaves that the step changes, with their moments;
        the others are unchanged and excluded from the clipped norm.

        Returns:
            The new models, the new optimizer state and the loss before the step without the penalty, [M].
        """
        return self._advance(task, StepInputs(models, optimizer, batch, lr, weight, penalty, objective, moving))

    def _advance(self, task: Task, given: StepInputs) -> tuple[ModelState, OptimizerState, Tensor]:
        loss, gradient, buffers = self._gradient(task, given)
        old, optimizer = given.models.parameters, given.optimizer
        if given.moving is not None:
            old = tree.named(old, given.moving)
            optimizer = OptimizerState(optimizer.step, *(tree.named(part, given.moving) for part in optimizer[1:]))
        if given.penalty is not None:
            gradient = tree.map_leaves(torch.add, gradient, given.penalty.gradient(old))
        parameters, optimizer = self._updated(old, gradient, optimizer, given.lr)
        models = ModelState(parameters, buffers)
        return (models, optimizer, loss) if given.moving is None else (*_merged(given, models, optimizer), loss)

    def _gradient(self, task: Task, given: StepInputs) -> tuple[Tensor, Leaves, Leaves]:
        """The loss before the step [M], its gradient, and the new buffers."""
        return task.value_and_grad(
            given.models, given.batch, given.weight, objective=given.objective, moving=given.moving
        )

    def update(
        self, parameters: Leaves, gradient: Leaves, optimizer: OptimizerState, lr: Tensor
    ) -> tuple[Leaves, OptimizerState]:
        """New parameters and optimizer state from a gradient; leaves [M, ...]."""
        return self._updated(parameters, gradient, optimizer, lr)

    def _updated(
        self, parameters: Leaves, gradient: Leaves, optimizer: OptimizerState, lr: Tensor
    ) -> tuple[Leaves, OptimizerState]:
        """As `update`, which a subclass may refuse for gradients of algorithms."""
        rule = {"sgd": self._sgd, "adam": self._adam, "adamw": self._adam}.get(self.optimizer, self._by_rule)
        if self.clip_norm is not None:
            gradient = self._clip(gradient)
        if self.weight_decay and self.optimizer != "adamw":
            gradient = self._decayed(gradient, parameters)
        direction, optimizer = rule(gradient, optimizer)
        if self.weight_decay and self.optimizer == "adamw":
            direction = self._decayed(direction, parameters)
        return {name: p - lr * direction[name] for name, p in parameters.items()}, optimizer

    def _by_rule(self, gradient: Leaves, optimizer: OptimizerState) -> tuple[Leaves, OptimizerState]:
        """Direction and state of a user-defined rule."""
        step, rule = optimizer.step + 1, _rule(self.optimizer)
        direction: Leaves = {}
        first: Leaves = {}
        second: Leaves = {}
        for name, g in gradient.items():
            found = rule(self, step, g, optimizer.first[name], optimizer.second.get(name))
            for part, leaf in zip((direction, first, second), found, strict=False):
                part[name] = leaf
        return direction, OptimizerState(step, first, second)

    def _decayed(self, direction: Leaves, parameters: Leaves) -> Leaves:
        """Add weight decay to a direction."""
        return {name: leaf.add(parameters[name], alpha=self.weight_decay) for name, leaf in direction.items()}

    def _sgd(self, gradient: Leaves, optimizer: OptimizerState) -> tuple[Leaves, OptimizerState]:
        if not self.momentum:
            return gradient, optimizer._replace(step=optimizer.step + 1)
        velocity = {name: g.add(optimizer.first[name], alpha=self.momentum) for name, g in gradient.items()}
        state = optimizer._replace(step=optimizer.step + 1, first=velocity)
        if self.nesterov:
            return {name: g.add(velocity[name], alpha=self.momentum) for name, g in gradient.items()}, state
        return velocity, state

    def _adam(self, gradient: Leaves, optimizer: OptimizerState) -> tuple[Leaves, OptimizerState]:
        step, (beta1, beta2) = optimizer.step + 1, self.betas
        first = {name: optimizer.first[name].mul(beta1).add(g, alpha=1 - beta1) for name, g in gradient.items()}
        second = {name: optimizer.second[name].mul(beta2).add(g * g, alpha=1 - beta2) for name, g in gradient.items()}
        correction1, correction2 = 1 - beta1**step, (1 - beta2**step).sqrt()
        direction = {
            name: (first[name] / correction1) / (second[name].sqrt() / correction2 + self.eps) for name in gradient
        }
        return direction, OptimizerState(step, first, second)

    def _clip(self, gradient: Leaves) -> Leaves:
        assert self.clip_norm is not None
        squares = torch.stack([g.reshape(len(g), -1).pow(2).sum(1) for g in tree.leaves(gradient)])
        factor = (self.clip_norm / (squares.sum(0).sqrt() + 1e-6)).clamp(max=1.0)  # [M]
        return {name: g * factor.view(-1, *[1] * (g.ndim - 1)) for name, g in gradient.items()}


# ---------------------------------------------------------------------- update rules
def is_rule_of_torch(optimizer: str) -> bool:
    """Whether this is the path of a class of PyTorch whose rule has a name; nothing is imported.

    Example:
        >>> is_rule_of_torch("torch.optim.Adam"), is_rule_of_torch("torch.optim.LBFGS"), is_rule_of_torch("adam")
        (True, False, False)
    """
    package, _, name = optimizer.rpartition(".")
    return package == "torch.optim" and name.lower() in OPTIMIZERS


def _is_path(optimizer: str) -> bool:
    """Whether this is a module and a name in it, and no other text that `resolve_name` would import."""
    first, *rest = optimizer.split(".")
    return bool(rest) and all(part.isidentifier() for part in (first, *rest))


@cache
def _rule(path: str) -> UpdateRule:
    """The function at a path."""
    fix = (
        f"give one of {', '.join(OPTIMIZERS)}, or the path of a function of (solver, step, gradient, first, second) -> "
        "(direction, first, second)"
    )
    try:
        found = pkgutil.resolve_name(path)
    except Exception as error:  # a user-defined module may raise anything
        raise ConfigError(f"--model.solver.optimizer is {path}, which cannot be imported ({error}); {fix}") from error
    if isinstance(found, type) or not callable(found):
        kind = "a class without a rule here" if isinstance(found, type) else "no function"
        raise ConfigError(f"--model.solver.optimizer is {path}, {kind}; {fix}")
    return found  # type: ignore[no-any-return]


def _merged(given: StepInputs, models: ModelState, optimizer: OptimizerState) -> tuple[ModelState, OptimizerState]:
    """Models and optimizer after a step of some leaves, with the leaves and moments that did not move."""
    assert given.moving is not None
    buffers = given.models.buffers | tree.named(models.buffers, given.moving)
    models = ModelState(given.models.parameters | models.parameters, buffers)
    kept = given.optimizer
    return models, OptimizerState(optimizer.step, kept.first | optimizer.first, kept.second | optimizer.second)


class Penalty(NamedTuple):
    """⟨linear, θ⟩ + weight/2·‖θ − anchor‖², added to each model's loss; leaves [M, ...], or [1, ...] shared by all.

    A proximal term has a weight and an anchor, a gradient correction a linear part, an augmented Lagrangian all three.
    """

    weight: Tensor | float = 0.0  # [] or [M]
    anchor: Leaves | None = None  # None: the origin
    linear: Leaves | None = None  # None: zero

    def gradient(self, parameters: Leaves) -> Leaves:
        """The gradient, linear + weight·(θ − anchor), leaves [M, ...]."""
        if self.linear is not None and not isinstance(self.weight, Tensor) and not self.weight:
            return {name: self.linear[name].expand_as(leaf) for name, leaf in parameters.items()}
        found = {}
        for name, leaf in parameters.items():
            part = self._weight(leaf) * (leaf if self.anchor is None else leaf - self.anchor[name])
            found[name] = part if self.linear is None else part + self.linear[name]
        return found

    def value(self, parameters: Leaves) -> Tensor:
        """The penalty of each model, [M]."""
        parts = []
        for name, leaf in parameters.items():
            away = leaf if self.anchor is None else leaf - self.anchor[name]
            part = 0.5 * self._weight(leaf) * away.square()
            parts.append(
                (part if self.linear is None else part + self.linear[name] * leaf).reshape(len(leaf), -1).sum(1)
            )
        return torch.stack(parts).sum(0)

    def _weight(self, leaf: Tensor) -> Tensor | float:
        if not isinstance(self.weight, Tensor):
            return self.weight
        weight = self.weight.to(leaf.dtype)
        return weight.view(-1, *[1] * (leaf.ndim - 1)) if weight.ndim else weight
