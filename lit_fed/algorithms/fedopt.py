"""FedOpt: a server optimizer uses the average change of the clients' models as its gradient.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan. "Adaptive Federated Optimization". ICLR 2021.
https://arxiv.org/abs/2003.00295, Algorithms 1 (FedOpt) and 2 (FedAdagrad, FedYogi, FedAdam).

Symbols:
    x_t   -> shared.models   the global model, leaves [1, ...]
    Δ_t   -> change          the average of x_i − x_t, an ascent direction
    m_t   -> shared.first    first moment, leaves [1, ...]
    v_t   -> shared.second   second moment, leaves [1, ...]
    η, η_l    -> server_lr (server_optimizer.lr), solver.lr
    β1, β2, τ -> beta1, beta2, tau
Deviations:
    The algorithms average Δ_i uniformly; the paper's experiments weight them by samples, as here unless
    `model.weighting: uniform` is given.
    The square in v_t is that of Δ_t; an early version of the paper overwrites Δ_t by its moment and so squares m_t. As
    in the paper, moments have no bias correction, and v_0 is τ².
    The paper tunes η for each task. Ours: 0.1.
    Ours: running statistics of BatchNorm are averaged as in FedAvg; they have no moments.
    FedOpt takes PyTorch's update rules with -Δ_t as the gradient, which have bias correction and no τ; their rate may
    follow a schedule. With SGD and momentum it is FedAvgM, with SGD of rate 1 FedAvg.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import Algorithm, LocalRun, ranged, tuned
from lit_fed.core.context import Context
from lit_fed.core.reduce import exact_average
from lit_fed.core.server_optimizer import ServerMoments, ServerOptimizer
from lit_fed.core.types import Leaves, ModelState, Reduced

__all__ = ["AdaptiveFedOpt", "FedAdagrad", "FedAdam", "FedOpt", "FedYogi", "Moments", "OptimizedModels"]


class OptimizedModels(NamedTuple):
    """The server's state in FedOpt."""

    models: ModelState  # x_t, leaves [1, ...]
    moments: ServerMoments  # state of the server's optimizer, leaves [1, ...]


@dataclass(frozen=True)
class FedOpt(Algorithm[OptimizedModels, tuple[()], LocalRun]):
    """Algorithm 1: any server optimizer, with its own schedule.

    Args:
        server_optimizer: an optimizer of `torch.optim`, its rate and other options.
    """

    server_optimizer: ServerOptimizer = field(default_factory=ServerOptimizer)

    server_only = ("moments",)

    def __post_init__(self) -> None:
        self.server_optimizer.check("--model.algorithm.server_optimizer")

    def shared_init(self, ctx: Context) -> OptimizedModels:
        """The initial model, and an optimizer that has taken no step."""
        models = ctx.task.init(1, ctx.seed)
        return OptimizedModels(models, self.server_optimizer.init(models.parameters))

    def server_step(
        self, ctx: Context, shared: OptimizedModels, reduced: Reduced, client_ids: Tensor
    ) -> OptimizedModels:
        """x_{t+1} = ServerOpt(x_t, -Δ_t, η, t); in float64, since Δ_t may be small beside x_t."""
        average = exact_average(ctx, shared.models, reduced)
        parameters = tree.map_leaves(Tensor.double, shared.models.parameters)
        gradient = tree.sub(parameters, average.parameters)
        parameters, moments = self.server_optimizer.update(ctx, parameters, gradient, shared.moments)
        return OptimizedModels(ModelState(parameters, average.buffers), moments)


class Moments(NamedTuple):
    """The server's state in Algorithm 2."""

    models: ModelState  # x_t, leaves [1, ...]
    first: Leaves  # m_t, leaves [1, ...]
    second: Leaves  # v_t, leaves [1, ...]


@dataclass(frozen=True)
class AdaptiveFedOpt(Algorithm[Moments, tuple[()], LocalRun], ABC):
    """Algorithm 2 without its second moment, in which the three methods differ.

    Args:
        server_lr: η.
        tau: τ, adaptivity of the steps: larger values come closer to plain steps; v starts at τ².
        beta1: decay of the first moment.
    """

    server_lr: float = tuned(0.1, 0.01, 0.0316, 0.1, 0.316, 1.0, within="> 0")
    tau: float = tuned(1e-3, 1e-5, 1e-4, 1e-3, 0.01, 0.1, within="> 0")
    beta1: float = ranged(0.9, "[0, 1)")

    server_only = ("first", "second")

    def shared_init(self, ctx: Context) -> Moments:
        """The initial model, m = 0 and v = τ²."""
        models = ctx.task.init(1, ctx.seed)
        second = tree.map_leaves(lambda leaf: torch.full_like(leaf, self.tau**2), models.parameters)
        return Moments(models, tree.zeros_like(models.parameters), second)

    def server_step(self, ctx: Context, shared: Moments, reduced: Reduced, client_ids: Tensor) -> Moments:
        """One step: m_t = β1 m_{t−1} + (1 − β1) Δ_t, then v_t, then x_{t+1} = x_t + η m_t / (√v_t + τ).

        In float64, since Δ_t may be small beside x_t.
        """
        average = exact_average(ctx, shared.models, reduced)
        change = tree.sub(average.parameters, shared.models.parameters)
        first = tree.lerp(change, shared.first, self.beta1)
        squares = tree.map_leaves(torch.square, change)
        second = tree.map_leaves(self.second_moment, shared.second, squares)
        step = tree.map_leaves(lambda m, v: self.server_lr * m / (v.sqrt() + self.tau), first, second)
        models = ModelState(tree.add(shared.models.parameters, step), average.buffers)
        return Moments(models, first, second)

    @abstractmethod
    def second_moment(self, second: Tensor, square: Tensor) -> Tensor:
        """The next v of a leaf from the last one and the square of Δ_t."""


@dataclass(frozen=True)
class FedAdagrad(AdaptiveFedOpt):
    """The server's steps shrink as squared changes accumulate."""

    beta1: float = ranged(0.0, "[0, 1)")

    def second_moment(self, second: Tensor, square: Tensor) -> Tensor:
        """A running sum: v_t = v_{t−1} + Δ_t²."""
        return second + square


@dataclass(frozen=True)
class FedYogi(AdaptiveFedOpt):
    """The second moment moves towards the squares by steps proportional to them.

    Args:
        beta2: decay of the second moment.
    """

    beta2: float = ranged(0.99, "[0, 1)")

    def second_moment(self, second: Tensor, square: Tensor) -> Tensor:
        """A step towards the square: v_t = v_{t−1} − (1 − β2) Δ_t² sign(v_{t−1} − Δ_t²)."""
        return second - (1 - self.beta2) * square * torch.sign(second - square)


@dataclass(frozen=True)
class FedAdam(AdaptiveFedOpt):
    """The second moment is a decaying average of the squares.

    Args:
        beta2: decay of the second moment.
    """

    beta2: float = ranged(0.99, "[0, 1)")

    in_every_combination = True

    def second_moment(self, second: Tensor, square: Tensor) -> Tensor:
        """A decaying average: v_t = β2 v_{t−1} + (1 − β2) Δ_t²."""
        return self.beta2 * second + (1 - self.beta2) * square
