"""Surrogates of known methods: the mixture of FedEM, the Moreau envelope of pFedMe, and FedAvg's, which is f_i itself.

Marfoq, Neglia, Bellet, Kameni, Vidal. "Federated Multi-Task Learning under a Mixture of Distributions". NeurIPS 2021.
https://arxiv.org/abs/2108.10252, Section 3.4 and Appendices F and F.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from lit_fed.core.local_solver import Penalty
from lit_fed.core.mixtures.e_step import PositionLoss, batch_weights, expectation, num_factors
from lit_fed.core.mixtures.surrogate import Surrogate
from lit_fed.core.solvers.newton import check_solvable, minimise
from lit_fed.core.task import Task
from lit_fed.core.types import Batch, ClientData, Leaves, ModelState
from lit_fed.errors import ConfigError

__all__ = ["IdentitySurrogate", "MixtureSurrogate", "MoreauSurrogate"]


class Mixture(NamedTuple):
    """The local variable v_i of the mixture surrogate."""

    mixture: Tensor  # π_i, [M]


class MixtureBound(NamedTuple):
    """g(Θ, π) = (1/n_i) Σ_s Σ_m q_sm (ℓ(θ_m; s) + (log q_sm − log π_m)/F); F·g is the negative evidence bound."""

    responsibility: Tensor  # q, [N, M]; 0 in padded rows
    mixture: Tensor  # the mean of q over the samples, [M]
    value: Tensor  # []


@dataclass(frozen=True)
class MixtureSurrogate(Surrogate[Mixture, MixtureBound]):
    """FedEM: u are M component models, v_i is the client's mixture of them, and g fixes the posterior q.

    f_i(Θ, π) = −(1/(n_i·F)) Σ_s log Σ_m π_m exp(−F·ℓ(θ_m; s)), with F = 1, or the positions of a text.

    Args:
        num_components: M.
        position_loss: loss of a sequence in the posterior: the `mean` of the losses of its positions, or their `sum`,
            the likelihood of the whole text.
    """

    num_components: int = 3
    position_loss: PositionLoss = "mean"

    def __post_init__(self) -> None:
        if self.position_loss not in get_args(PositionLoss):
            raise ConfigError(f"--model.algorithm.surrogate.position_loss is {self.position_loss}; give mean or sum")
        if self.num_components < 1:
            raise ConfigError(
                f"--model.algorithm.surrogate.num_components is {self.num_components}; give a whole number >= 1"
            )

    @property
    def num_models(self) -> int:  # type: ignore[override]
        """The number M of component models."""
        return self.num_components

    def local_init(self, task: Task, models: ModelState, data: ClientData) -> Mixture:
        """Uniform mixture weights π_i."""
        return Mixture(torch.full((self.num_components,), 1 / self.num_components, dtype=task.dtype))

    def losses(self, task: Task, models: ModelState, batch: Batch) -> Tensor:
        """ℓ(θ_m; s) under each received component, [B, M]."""
        return task.losses_of(models, batch.x, batch.y)

    def build(
        self, task: Task, models: ModelState, local: Mixture, data: ClientData, losses: Tensor | None
    ) -> MixtureBound:
        """The posterior q under the received components and the old π."""
        assert losses is not None
        mixture, q, value = expectation(local.mixture, losses, data.mask, num_factors(task, data, self.position_loss))
        return MixtureBound(q, mixture, value)

    def argmin_local(self, bound: MixtureBound) -> Mixture:
        """The new mixture weights: the mean of q over the client's samples."""
        return Mixture(bound.mixture)

    def gradient(
        self, task: Task, bound: MixtureBound, local: Mixture, models: ModelState, batch: Batch
    ) -> tuple[Leaves, Leaves]:
        """The gradient of the mean over the batch of the losses, weighted by q."""
        return task.value_and_grad(models, batch, batch_weights(bound.responsibility, batch))[1:]

    def log_prob(self, task: Task, local: Mixture, x: Tensor, outputs: Tensor) -> Tensor:
        """The components' probabilities, mixed with the weights π_i."""
        return task.mix(local.mixture, outputs)


class ProxPoint(NamedTuple):
    """State of a client of pFedMe, for predictions only; f_i and g do not depend on it."""

    models: ModelState  # θ_i, leaves [1, ...]


class MoreauBound(NamedTuple):
    """g(w) = ℓ_i(θ_i) + λ/2·‖θ_i − w‖², with θ_i the proximal point at the received w⁰."""

    point: ModelState  # θ_i, leaves [1, ...]
    value: Tensor  # []


@dataclass(frozen=True)
class MoreauSurrogate(Surrogate[ProxPoint, MoreauBound]):
    """PFedMe (Appendix F.3): f_i is the Moreau envelope of the local loss, and g fixes the proximal point.

    f_i(w) = min_θ ℓ_i(θ) + λ/2·‖θ − w‖², with ℓ_i the client's mean loss; there is no local variable. The minimum is
    found by Newton's method, so the network must be small, and the local loss convex or the weight large.

    Args:
        prox_weight: λ.
    """

    weighting = "uniform"

    prox_weight: float = 15.0

    def __post_init__(self) -> None:
        if not self.prox_weight > 0:
            raise ConfigError(f"--model.algorithm.surrogate.prox_weight is {self.prox_weight}; give a number > 0")

    def local_init(self, task: Task, models: ModelState, data: ClientData) -> ProxPoint:
        """The initial model; networks whose proximal point cannot be found are refused."""
        check_solvable(task, models)
        return ProxPoint(models)

    def build(
        self, task: Task, models: ModelState, local: ProxPoint, data: ClientData, losses: Tensor | None
    ) -> MoreauBound:
        """Find the proximal point at the received w exactly, which fixes g."""
        penalty = Penalty(self.prox_weight, models.parameters)
        point = minimise(task, models, data, penalty)
        loss = _mean(task.losses_of(point, data.x, data.y)[:, 0], data.mask)
        return MoreauBound(point, loss + penalty.value(point.parameters)[0])

    def argmin_local(self, bound: MoreauBound) -> ProxPoint:
        """The proximal point, which the client keeps for its predictions; g does not depend on it."""
        return ProxPoint(bound.point)

    def gradient(
        self, task: Task, bound: MoreauBound, local: ProxPoint, models: ModelState, batch: Batch
    ) -> tuple[Leaves, Leaves]:
        """The gradient λ(w − θ_i), which is the same for every batch."""
        return Penalty(self.prox_weight, bound.point.parameters).gradient(models.parameters), models.buffers

    def outputs(self, task: Task, models: ModelState, x: Tensor) -> None:
        """None: each client predicts with its own model, so no output depends on the shared model alone."""

    def log_prob(self, task: Task, local: ProxPoint, x: Tensor, outputs: None) -> Tensor:
        """The prediction of the client's proximal point."""
        own = task.outputs(local.models, x)
        return task.mix(own.new_ones(1), own)


class IdentityBound(NamedTuple):
    """The surrogate g, which is f_i itself; only its value is kept."""

    value: Tensor  # []


@dataclass(frozen=True)
class IdentitySurrogate(Surrogate[tuple[()], IdentityBound]):
    """FedAvg: the client's mean loss is its own surrogate; there is no local variable."""

    def local_init(self, task: Task, models: ModelState, data: ClientData) -> tuple[()]:
        """The empty tuple: there is no local variable."""
        return ()

    def losses(self, task: Task, models: ModelState, batch: Batch) -> Tensor:
        """ℓ(w; s) under the received model, [B, 1]."""
        return task.losses_of(models, batch.x, batch.y)

    def build(
        self, task: Task, models: ModelState, local: tuple[()], data: ClientData, losses: Tensor | None
    ) -> IdentityBound:
        """The surrogate, which is the objective itself."""
        assert losses is not None
        return IdentityBound(_mean(losses[:, 0], data.mask))

    def argmin_local(self, bound: IdentityBound) -> tuple[()]:
        return ()

    def gradient(
        self, task: Task, bound: IdentityBound, local: tuple[()], models: ModelState, batch: Batch
    ) -> tuple[Leaves, Leaves]:
        """The gradient of the mean loss of the batch."""
        return task.value_and_grad(models, batch)[1:]

    def log_prob(self, task: Task, local: tuple[()], x: Tensor, outputs: Tensor) -> Tensor:
        """The prediction of the shared model."""
        return task.mix(outputs.new_ones(1), outputs)


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean [] of the samples' values [N], 0 without samples; padded rows are ignored and must be finite."""
    return (values * mask).sum() / mask.sum(dtype=torch.float64).clamp(min=1)
