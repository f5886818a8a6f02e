"""FedDR: randomised Douglas-Rachford splitting, for a common model with or without an L1 penalty.

Tran-Dinh, Pham, Phan, Nguyen. "FedDR – Randomized Douglas-Rachford Splitting Algorithms for Nonconvex Federated
Composite Optimization". NeurIPS 2021. https://arxiv.org/abs/2103.03452, Algorithm 1.

Symbols:
    x̄   -> shared.models   prox_{ηg}(x̃), the common model, leaves [1, ...]
    x̃   -> shared.mean     mean of all x̂_i, leaves [1, ...]; {} without g, where it is x̄
    x_i -> state.models    the model of user i, prox_{ηf_i}(y_i), leaves [1, ...]
    y_i -> state.centre    centre of its proximal step, leaves [1, ...]
    x̂_i -> _reflected      2x_i − y_i, leaves [1, ...]
    1/η -> penalty_weight
    α   -> relaxation
    g   -> l1_weight·‖x‖₁
Deviations:
    Users start with x_i = y_i = x̂_i = x̄, so that x̃ is the mean of all x̂_i from the start; the paper starts with one
    proximal step of all users, which is here that of the first round.
    An inexact proximal step is the solver's local work from x_i, as in the authors' code, in place of a bound on its
    error. The only regulariser offered is the L1 norm. asyncFedDR is not offered.
    With `model.weighting: samples` x̃ is a weighted mean, as in the authors' code, and the solution that of all
    samples. fl-sim averages over n + 1 blocks, the last of them a y of the server.
    A user drawn twice counts once. Changes of running statistics are averaged.
    Users, seen or unseen, are served by x̄.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import MessageSpec, Participation
from lit_fed.core.context import Context
from lit_fed.core.solvers.penalised_solve import PenalisedRun, ProximalSplitting
from lit_fed.core.types import ClientData, ClientResult, Message, ModelState, Phase, Reduced
from lit_fed.errors import check_settings

__all__ = ["DRState", "FedDR", "Reflections", "soft_threshold"]


class Reflections(NamedTuple):
    """The server's state."""

    models: ModelState  # x̄, leaves [1, ...]
    mean: dict[str, Tensor]  # x̃, leaves [1, ...]


class DRState(NamedTuple):
    """A user's state."""

    models: ModelState  # x_i, leaves [1, ...]
    centre: dict[str, Tensor]  # y_i, leaves [1, ...]


@dataclass(frozen=True)
class FedDR(ProximalSplitting[Reflections, DRState]):
    """The minimiser of the mean loss plus an L1 penalty: proximal steps of sampled users, with averaged reflections.

    Args:
        relaxation: α, in (0, 2) for convex losses; the authors' code: 1.9.
        l1_weight: weight of the L1 norm of the common model, relative to the mean loss; 0: none.
    """

    relaxation: float = 1.0
    l1_weight: float = 0.0

    message = MessageSpec("changes", accumulates=True)
    participation = Participation(weighting="uniform", counts_draws=False, fills_in_absent=False)
    server_only = ("mean",)

    def __post_init__(self) -> None:
        check_settings(self, penalty_weight="> 0", relaxation="(0, 2)", l1_weight=">= 0")

    def shared_init(self, ctx: Context) -> Reflections:
        """x̄ = x̃."""
        models = super().shared_init(ctx).models
        return Reflections(models, models.parameters)

    def state_init(self, ctx: Context, shared: Reflections, data: ClientData) -> DRState:
        """x_i = y_i = x̄."""
        return DRState(shared.models, shared.models.parameters)

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase]:
        """The sampled users S_k."""
        return (Phase("train", torch.unique(client_ids), self.local_work(ctx)),)

    def client_init(
        self, ctx: Context, shared: Reflections, state: DRState, data: ClientData, losses: None
    ) -> PenalisedRun:
        """y_i <- y_i + α(x̄ − x_i); then x_i <- prox_{ηf_i}(y_i) from the old x_i."""
        return self.near(ctx, state, state.models, self._moved(shared, state))

    def _moved(self, shared: Reflections, state: DRState) -> dict[str, Tensor]:
        away = tree.sub(shared.models.parameters, state.models.parameters)
        return tree.add(state.centre, tree.scale(away, self.relaxation))  # type: ignore[no-any-return]

    def client_final(self, ctx: Context, shared: Reflections, work: PenalisedRun, data: ClientData) -> ClientResult:
        """Send the change of x̂_i."""
        work = self.solved(ctx, work, data)
        new = DRState(work.models, self._moved(shared, work.state))
        change = tree.sub(_reflected(new), _reflected(work.state))
        return ClientResult(Message(change, ctx.client_weight(data)), new, {"loss": work.loss})

    def server_step(self, ctx: Context, shared: Reflections, reduced: Reduced, client_ids: Tensor) -> Reflections:
        """x̃ <- x̃ + 1/n·Σ_{S_k} Δx̂_i; then x̄ <- prox_{ηg}(x̃)."""
        change: ModelState = tree.scale(reduced.value, reduced.weight / ctx.total_weight)
        mean = tree.map_leaves(lambda old, way: old.double() + way, shared.mean, change.parameters)
        buffers = tree.add(shared.models.buffers, change.buffers)
        common = tree.map_leaves(lambda leaf: soft_threshold(leaf, self.l1_weight / self.penalty_weight), mean)
        return Reflections(ModelState(common, buffers), mean)


def _reflected(state: DRState) -> ModelState:
    """x̂_i = 2x_i − y_i; running statistics are those of x_i."""
    reflected = tree.map_leaves(lambda x, y: 2 * x - y, state.models.parameters, state.centre)
    return ModelState(reflected, state.models.buffers)


def soft_threshold(leaf: Tensor, threshold: float) -> Tensor:
    """The proximal point of `threshold`·‖x‖₁.

    Example:
        >>> soft_threshold(torch.tensor([3.0, -0.5, -2.0]), 1.0).tolist()
        [2.0, -0.0, -1.0]
    """
    return leaf.sign() * (leaf.abs() - threshold).clamp(min=0)
